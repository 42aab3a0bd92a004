"""Files that a program has mapped: it changes them without a call, and a checkpoint must notice all the same."""

from __future__ import annotations

import mmap
import os
import sys
from pathlib import Path

import pytest
from undo_arena import enter, in_child, mount_tmpfs

from ringfence.checkpoint import content, entry
from ringfence.checkpoint.overlay import OverlayLayer
from ringfence.checkpoint.workspace import Workspace, open_overlay

pytestmark = pytest.mark.privileges


def _mapped(place: Path) -> tuple[Workspace, mmap.mmap, Path]:
    for name in ("base", "upper"):
        (place / name).mkdir(parents=True)
    file = place / "upper" / "mapped"
    file.write_bytes(bytes(4096))
    with file.open("r+b") as opened:
        shared = mmap.mmap(opened.fileno(), 4096)
    return open_overlay(str(place / "upper"), str(place / "base"), str(place / "store")), shared, file


def _rolled_back(workspace: Workspace, shared: mmap.mmap, file: Path, *, believes_times: bool) -> bytes:
    if believes_times:
        _believe_times(workspace)
    shared[:1] = b"1"
    workspace.store.tick("since")  # else it is looked at again, for it changed just now
    first = workspace.create_checkpoint()
    shared[:1] = b"2"
    workspace.rollback_to_checkpoint(first.checkpoint_id)
    return file.read_bytes()[:1]


@pytest.mark.skipif(sys.platform != "linux", reason="there is no such call elsewhere")
@pytest.mark.parametrize("believes_times", (False, True))
def test_a_write_into_a_page_that_was_dirty_already_is_noticed(believes_times: bool, tmp_path: Path) -> None:
    """Also by times alone, which count for files that a commit has carried over while their program lived."""
    assert _rolled_back(*_mapped(tmp_path), believes_times=believes_times) == b"1"


def _believe_times(workspace: Workspace) -> None:
    assert isinstance(workspace.layer, OverlayLayer)
    workspace.layer.scan._telling = workspace.layer._everything._telling = True


@pytest.mark.parametrize("believes_times", (False, True))
@pytest.mark.parametrize("way", ("commit", "diff", "rollback"))
def test_a_write_that_changes_no_time_is_noticed(
    way: str, believes_times: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A direct read into a mapping makes one, if its bytes arrive after the look. When they do is up to the disk, so
    here it is the fingerprints that see no time."""
    mark = entry.fingerprint
    monkeypatch.setattr(entry, "fingerprint", lambda status: (*mark(status)[:2], 5, 5, *mark(status)[4:]))
    base, upper = (_one_file(tmp_path / name) for name in ("base", "upper"))
    if way == "commit":
        base.unlink()  # a commit looks at the base by times that are true
    workspace = open_overlay(str(upper.parent), str(base.parent), str(tmp_path / "store"))
    if believes_times:  # the control
        _believe_times(workspace)
    first = workspace.create_checkpoint()
    _put(upper, "2")
    told = {
        "commit": lambda: (workspace.commit(), base.read_text())[1],
        "diff": lambda: "2" if workspace.changes() else "1",
        "rollback": lambda: (workspace.rollback_to_checkpoint(first.checkpoint_id), upper.read_text())[1],
    }[way]()
    noticed = "1" if way == "rollback" else "2"
    assert (told == noticed) is not believes_times


def _one_file(folder: Path) -> Path:
    folder.mkdir()
    _put(folder / "file", "1")
    return folder / "file"


def _put(file: Path, text: str) -> None:
    file.write_text(text)
    os.utime(file, (1, 1))


def test_without_a_word_to_the_kernel_it_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content, "begin_write_back", lambda _: None)
    # On a busy disk the kernel may write the page back by itself in between.
    found = [_rolled_back(*_mapped(tmp_path / str(number)), believes_times=True) for number in range(10)]
    assert b"2" in found


@pytest.mark.system
@pytest.mark.skipif(sys.platform != "linux", reason="there is no tmpfs elsewhere")
@pytest.mark.parametrize("believes_times", (False, True))
@pytest.mark.parametrize("way", ("commit", "rollback"))
def test_on_tmpfs_where_no_time_tells_the_content_does(way: str, believes_times: bool, tmp_path: Path) -> None:
    def inside() -> None:
        enter("overlay")
        mount_tmpfs(tmp_path / "disk")
        for name in ("base", "upper"):
            (tmp_path / "disk" / name).mkdir()
        file = tmp_path / "disk/upper/mapped"
        file.write_bytes(bytes(4096))
        with file.open("r+b") as opened:
            shared = mmap.mmap(opened.fileno(), 4096)
        workspace = open_overlay(*(str(tmp_path / "disk" / name) for name in ("upper", "base", "store")))
        if believes_times:  # the control
            _believe_times(workspace)
        shared[:1] = b"1"
        workspace.store.tick("since")
        first = workspace.create_checkpoint()
        shared[:1] = b"2"
        if way == "commit":
            workspace.commit()
            assert (tmp_path / "disk/base/mapped").read_bytes()[:1] == (b"1" if believes_times else b"2")
        else:
            workspace.rollback_to_checkpoint(first.checkpoint_id)
            assert file.read_bytes()[:1] == (b"2" if believes_times else b"1")

    assert in_child(inside) == 0
