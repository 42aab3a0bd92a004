"""Attacks on what is ringfence's own: records, keys and layers that lie in a directory which a guest is shown.

Each stage lays something of ours, with the secret in it, into a directory; the probe looks through all of that
directory. """

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from unittest.mock import patch

import ringfence
from ringfence import SandboxConfig, SandboxManager, SandboxPolicy, Transaction
from ringfence.model import state_folder
from tests.escape.attack import Attack, Prepare, Stage, in_workspace
from tests.escape.bait import SECRET

Lay = Callable[[Stage, Path], object]
_LOOK = (
    "for top, folders, names in os.walk(GIVEN['place'], onerror=print):\n"
    "  for path in (os.path.join(top, name) for name in names):\n"
    "    try: found = open(path, errors='replace').read()\n"
    "    except OSError as e: print(e)\n"
    f"    else: print('ESCAPED' if {SECRET!r} in found else 'harmless')\n"
)


def _state(stage: Stage, place: Path) -> None:
    """The state directory itself."""
    stage.enter_context(patch.dict(os.environ, XDG_STATE_HOME=str(place / "state")))
    Path(state_folder.made(), "secret.txt").write_text(SECRET)


def _transaction(stage: Stage, place: Path) -> None:
    """The layer of a transaction that is no manager's."""
    (place / "code").mkdir()
    transaction = stage.enter_context(Transaction.create(place / "tx", [place / "code"]))
    Path(transaction.layers[0][1], "upper", "secret.txt").write_text(SECRET)


def _root(stage: Stage, place: Path) -> None:
    """A sandbox of a manager that has a root of its own."""
    config = SandboxConfig(isolation_level="process", sandbox_root=place / "boxes")
    manager = stage.enter_context(SandboxManager(config))
    Path(manager.create_sandbox().folder, "secret.txt").write_text(SECRET)


def _private(stage: Stage, place: Path) -> None:
    """The private directory of another box, where this caller has its own, too."""
    stage.enter_context(patch.dict(os.environ, TMPDIR=str(place / "tmp")))
    _living_box(stage, place)


def _private_elsewhere(stage: Stage, place: Path) -> None:
    """The same of one whose caller has another directory for temporary files than this one."""
    with patch.dict(os.environ, TMPDIR=str(place / "tmp")):
        _living_box(stage, place)


def _living_box(stage: Stage, place: Path) -> None:
    (place / "tmp").mkdir()
    box = stage.enter_context(ringfence.open(SandboxPolicy(isolation="process")))
    box.put("secret.txt", SECRET.encode())


# what: how it is laid into a directory
OURS: dict[str, Lay] = {
    "the state directory": _state, "a transaction": _transaction, "a directory of sandboxes": _root,
    "a private directory": _private, "a private directory of another TMPDIR": _private_elsewhere,
}  # fmt: skip


def _laid(lay: Lay, stage: Stage) -> Mapping[str, object]:
    place = stage.folder / "place"
    place.mkdir()
    (place / "beside.txt").write_text("harmless")
    lay(stage, place)
    return {"place": str(place)}


def below_readable(lay: Lay) -> Prepare:
    def prepare(stage: Stage) -> Mapping[str, object]:
        given = _laid(lay, stage)
        stage.policy["readable_paths"] = [given["place"]]
        return given

    return prepare


def as_workspace(lay: Lay) -> Prepare:
    @in_workspace
    def prepare(stage: Stage) -> Mapping[str, object]:
        given = _laid(lay, stage)
        stage.cwd = Path(str(given["place"]))
        return given

    return prepare


def _attack(name: str, where: str, prepare: Prepare) -> Attack:
    what = "a guest reads what ringfence keeps for itself"
    return Attack(name=f"{name} in {where}", family="records", what=what, probe=_LOOK, prepare=prepare)


ATTACKS = [
    *(_attack(name, "a readable directory", below_readable(lay)) for name, lay in OURS.items()),
    *(_attack(name, "the workspace", as_workspace(lay)) for name, lay in OURS.items()),
]
