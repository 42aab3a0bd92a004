"""Files that a program has mapped: it changes them without a call, and a checkpoint must notice all the same."""

from __future__ import annotations

import mmap
import sys
from pathlib import Path

import pytest
from undo_arena import enter, in_child, mount_tmpfs

from ringfence.checkpoint import content
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


def _rolled_back(workspace: Workspace, shared: mmap.mmap, file: Path) -> bytes:
    shared[:1] = b"1"
    workspace.store.tick("since")  # else it is looked at again, for it changed just now
    first = workspace.create_checkpoint()
    shared[:1] = b"2"
    workspace.rollback_to_checkpoint(first.checkpoint_id)
    return file.read_bytes()[:1]


@pytest.mark.skipif(sys.platform != "linux", reason="there is no such call elsewhere")
def test_a_write_into_a_page_that_was_dirty_already_is_noticed(tmp_path: Path) -> None:
    assert _rolled_back(*_mapped(tmp_path)) == b"1"


def test_without_a_word_to_the_kernel_it_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content, "begin_write_back", lambda _: None)
    # On a busy disk the kernel may write the page back by itself in between.
    assert b"2" in [_rolled_back(*_mapped(tmp_path / str(number))) for number in range(10)]


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
            workspace.layer.scan._telling = workspace.layer._everything._telling = True
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
