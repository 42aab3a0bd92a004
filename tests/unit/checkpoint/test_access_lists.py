"""Access control lists and groups: a commit gives nobody more than the files' own directories and lists did."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest
from test_workspace import COPIES
from undo_arena import ORDINARY_ID, Arena, as_ordinary_user

from ringfence.checkpoint.modes import without_list
from ringfence.checkpoint.transaction import SNAPSHOT, Transaction

pytestmark = [pytest.mark.system, pytest.mark.privileges]
USER, NAMED, GROUP, MASK, OTHERS = 1, 2, 4, 16, 32
ACCESS, DEFAULT = "system.posix_acl_access", "system.posix_acl_default"
NOBODY_SPECIAL = 0xFFFFFFFF
A_USER, A_GROUP = 7777, 5555


def access_list(user: int, named: int, group: int, mask: int, others: int = 0) -> bytes:
    rows = ((USER, user, NOBODY_SPECIAL), (NAMED, named, A_USER), (GROUP, group, NOBODY_SPECIAL),
            (MASK, mask, NOBODY_SPECIAL), (OTHERS, others, NOBODY_SPECIAL))  # fmt: skip
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *row) for row in rows)


def _set(path: Path, name: str, rows: bytes) -> None:
    try:
        os.setxattr(path, name, rows)
    except OSError as error:
        pytest.skip(f"no access control lists here: {error}")


def _mode(path: Path) -> int:
    return path.stat().st_mode & 0o7777


@pytest.mark.parametrize(("rows", "mode"), [
    (access_list(6, 4, 0, 4), 0o600), (access_list(6, 4, 6, 4), 0o640), (access_list(6, 4, 6, 6), 0o660),
    (b"", 0o640), (b"cut", 0o640), (access_list(6, 4, 0, 4)[:20], 0o640),
])  # fmt: skip
def test_the_groups_bits_are_those_that_the_list_gives_it(rows: bytes, mode: int) -> None:
    assert without_list(0o640 if mode != 0o660 else 0o660, rows) == mode


@pytest.mark.parametrize("kind", COPIES)
@pytest.mark.parametrize(("group", "mode"), ((0, 0o600), (4, 0o640)))
def test_the_mask_of_a_list_does_not_become_what_the_group_may(
    group: int, mode: int, kind: str, tmp_path: Path
) -> None:
    (tmp_path / "base").mkdir()
    (tmp_path / "base/key").write_text("old")
    rows = access_list(6, 4, group, 4)
    _set(tmp_path / "base/key", ACCESS, rows)
    assert _mode(tmp_path / "base/key") == 0o640, "the mask"
    arena = Arena(kind, tmp_path)
    workspace = arena.open()
    place = tmp_path / "upper/key" if arena.overlay else arena.seen / "key"
    place.write_text("guest")
    if arena.overlay:
        _set(place, ACCESS, rows)  # as the overlay copies it
    workspace.commit()
    assert (tmp_path / "base/key").read_text() == "guest"
    assert (_mode(tmp_path / "base/key"), ACCESS in os.listxattr(tmp_path / "base/key")) == (mode, False)


def _work(folder: Path, done: str) -> None:
    """What a job does, or without ringfence the user."""
    (folder / "old").write_text(done)
    (folder / "fresh").write_text(done)
    (folder / "link").symlink_to("old")
    (folder / "new").mkdir()
    (folder / "new/inner").write_text(done)


NAMES = ("old", "fresh", "link", "new", "new/inner")


def _groups(folder: Path) -> dict[str, int]:
    return {name: (folder / name).lstat().st_gid for name in NAMES}


@pytest.mark.root  # only root gives a directory a group that its owner is not in
@pytest.mark.parametrize(("shared", "as_root"), (("", False), ("folder", False), ("folder", True)))
def test_what_is_committed_has_the_group_of_its_own_folder(shared: str, as_root: bool, tmp_path: Path) -> None:
    for name in ("folder", "control"):
        (tmp_path / "base" / name).mkdir(parents=True)
        (tmp_path / "base" / name / "old").write_text("old")

    def share() -> None:
        for folder in {shared, shared.replace("folder", "control")}:
            os.chown(tmp_path / "base" / folder, ORDINARY_ID, A_GROUP)
            (tmp_path / "base" / folder).chmod(0o2775)
        for each in () if shared else (tmp_path / "base").iterdir():
            each.chmod(0o755)

    def commit(place: Path) -> None:
        tx = Transaction.create(place / "tx", [place / "base"], kind=SNAPSHOT)
        _work(Path(tx.place(place / "base")) / "folder", "guest")
        tx.commit()
        assert (place / "base/folder/old").read_text() == "guest"

    def work(place: Path) -> None:
        if not as_root:
            commit(place)
        (place / "base/control/old").unlink()
        _work(place / "base/control", "direct")

    assert as_ordinary_user(tmp_path, work, share) == 0
    if as_root:
        commit(tmp_path)
    groups = _groups(tmp_path / "base/folder")
    assert groups == _groups(tmp_path / "base/control"), "as if made by hand"
    assert set(groups.values()) == {A_GROUP if shared else ORDINARY_ID}


@pytest.mark.parametrize("kind", COPIES)
def test_the_list_of_the_top_is_not_handed_down_to_files_of_other_folders(kind: str, tmp_path: Path) -> None:
    (tmp_path / "base/private").mkdir(parents=True)
    (tmp_path / "base/private/old").write_text("old")
    _set(tmp_path / "base", DEFAULT, access_list(7, 7, 5, 7, 5))
    arena = Arena(kind, tmp_path)
    workspace = arena.open()
    place = tmp_path / "upper" if arena.overlay else arena.seen
    (place / "private").mkdir(exist_ok=True)
    for name in ("old", "fresh"):
        (place / "private" / name).write_text("guest")
    (place / "made").mkdir()
    workspace.commit()
    lists = {name: sorted(os.listxattr(tmp_path / "base" / name)) for name in ("private/old", "private/fresh", "made")}
    assert lists == {"private/old": [], "private/fresh": [], "made": [ACCESS, DEFAULT]}, "only what the top has made"
