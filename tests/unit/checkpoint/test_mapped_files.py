"""Files that a program has mapped: it changes them without a call, and a checkpoint must notice all the same."""

from __future__ import annotations

import mmap
import sys
from pathlib import Path

import pytest

from ringfence.checkpoint import content
from ringfence.checkpoint.workspace import Workspace, open_overlay


@pytest.fixture
def mapped(tmp_path: Path) -> tuple[Workspace, mmap.mmap, Path]:
    for name in ("base", "upper"):
        (tmp_path / name).mkdir()
    file = tmp_path / "upper" / "mapped"
    file.write_bytes(bytes(4096))
    with file.open("r+b") as opened:
        shared = mmap.mmap(opened.fileno(), 4096)
    return open_overlay(str(tmp_path / "upper"), str(tmp_path / "base"), str(tmp_path / "store")), shared, file


def _rolled_back(workspace: Workspace, shared: mmap.mmap, file: Path) -> bytes:
    shared[:1] = b"1"
    first = workspace.create_checkpoint()
    shared[:1] = b"2"
    workspace.rollback_to_checkpoint(first.checkpoint_id)
    return file.read_bytes()[:1]


@pytest.mark.skipif(sys.platform != "linux", reason="there is no such call elsewhere")
def test_a_write_into_a_page_that_was_dirty_already_is_noticed(mapped: tuple[Workspace, mmap.mmap, Path]) -> None:
    assert _rolled_back(*mapped) == b"1"


def test_without_a_word_to_the_kernel_it_is_not(
    mapped: tuple[Workspace, mmap.mmap, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(content, "begin_write_back", lambda _: None)
    assert _rolled_back(*mapped) == b"2"
