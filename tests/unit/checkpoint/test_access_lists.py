"""Access control lists and groups: a commit gives nobody more than the files' own directories and lists did."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest
from test_workspace import COPIES
from undo_arena import Arena

from ringfence.checkpoint.modes import without_list

pytestmark = [pytest.mark.system, pytest.mark.privileges]
USER, NAMED, GROUP, MASK, OTHERS = 1, 2, 4, 16, 32
ACCESS, DEFAULT = "system.posix_acl_access", "system.posix_acl_default"
NOBODY_SPECIAL = 0xFFFFFFFF
A_USER = 7777


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
