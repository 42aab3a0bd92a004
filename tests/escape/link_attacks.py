"""Attacks by links: somebody else's link is to choose which part of the host a sandbox shows.

The workspace is a hostile repository, or was written by an earlier guest. What ``..`` means behind a link the text of
a path does not tell, and a link with a command's name may lead to anything.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from ringfence.model import state_folder
from tests.escape.attack import BOTH, Attack, Stage, in_workspace

SECRET = "the answer"
READ = (f"try:\n if open(GIVEN['path']).read() == {SECRET!r}: print('ESCAPED')\n"
        "except OSError as e: print(e)\n")  # fmt: skip
_DEPTH = 30
"""Deeper than any workspace of a test: so far up is the root, by the text."""


def _private(stage: Stage) -> Path:
    """A secret of the caller's, in a directory that nothing shows, beside an empty workspace."""
    stage.cwd = stage.folder / "workspace"
    (stage.cwd / "bin").mkdir(parents=True)
    folder = stage.folder / "private"
    folder.mkdir(mode=0o700)
    return _with_secret(folder)


def _with_secret(folder: Path) -> Path:
    (folder / "secret").write_text(SECRET)
    (folder / "secret").chmod(0o700)
    return folder


def _set(stage: Stage, name: str, value: str) -> None:
    before = os.environ.get(name)
    os.environ[name] = value
    stage.callback(lambda: os.environ.pop(name) if before is None else os.environ.update({name: before}))


def _named_by_text(stage: Stage, folder: Path) -> Mapping[str, object]:
    """``configure -> l/../../…/FOLDER``: the kernel goes up from where ``l`` leads, and runs a script of the
    repository; the text alone names the directory."""
    assert stage.cwd is not None
    down, up = "/".join("d" * _DEPTH), "/".join([".."] * _DEPTH)
    (stage.cwd / down).mkdir(parents=True)
    (stage.cwd / "l").symlink_to(down)
    stage.script = stage.cwd / str(folder).lstrip("/")
    stage.script.parent.mkdir(parents=True)
    (stage.cwd / "configure").symlink_to(f"l/{up}{folder}")
    stage.started_by = ("./configure",)
    return {"path": str(folder / "secret")}


@in_workspace
def _text(stage: Stage) -> Mapping[str, object]:
    return _named_by_text(stage, _private(stage))


@in_workspace
def _state(stage: Stage) -> Mapping[str, object]:
    """Our own directory, with the key of all seals."""
    _private(stage)
    _set(stage, "XDG_STATE_HOME", str(stage.folder / "state"))
    return _named_by_text(stage, _with_secret(Path(state_folder.made())))


def _by_name(name: str, leads_to: str, started_by: tuple[str, ...] = ()) -> Callable[[Stage], Mapping[str, object]]:
    """A directory of the workspace is on the PATH, as that of an active environment is; a link in it has this name."""

    def prepare(stage: Stage) -> Mapping[str, object]:
        folder = _private(stage)
        assert stage.cwd is not None
        (stage.cwd / "bin" / name).symlink_to(folder / leads_to)
        _set(stage, "PATH", f"{stage.cwd}/bin{os.pathsep}{os.environ['PATH']}")
        stage.started_by = started_by
        return {"path": str(folder / "secret")}

    return in_workspace(prepare)


@in_workspace
def _of_others(stage: Stage) -> Mapping[str, object]:
    """A directory on the PATH is the caller's own, but lies in one that everybody may write: they could exchange it."""
    folder, place = _private(stage), stage.folder / "shared" / "bin"
    place.mkdir(parents=True)
    place.parent.chmod(0o777)
    (place / "python").symlink_to(folder / "secret")
    _set(stage, "PATH", f"{place}{os.pathsep}{os.environ['PATH']}")
    return {"path": str(folder / "secret")}


_WALLS = {"readable_paths": ["/usr"]}
"""With paths in the policy the process level has walls."""

# (name, what must not happen, what the stage prepares, levels, policy)
_ROWS = (
    ("directory named by the text of a link", "a program that is a link shows a directory of the caller's", _text, BOTH,
     _WALLS),
    ("our own directory named by the text of a link", "a program that is a link shows the key of the seals", _state, BOTH,
     _WALLS),
    ("directory with a command's name", "a link on the PATH shows a directory of the caller's", _by_name("env", ".", ("env",)),
     BOTH, _WALLS),
    ("file with a command's name", "a link on the PATH shows a file of the caller's", _by_name("python", "secret"), BOTH,
     _WALLS),
    ("link that others could have put on the PATH", "a link of another user's shows a file of the caller's", _of_others,
     BOTH, _WALLS),
)  # fmt: skip

ATTACKS = [
    Attack(name=name, family="filesystem", what=what, probe=READ, prepare=prepare, levels=levels, policy=policy)
    for name, what, prepare, levels, policy in _ROWS
]
