"""What a fork shares with its parent and may write to is found, and nothing else is."""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ringfence.kernel.proc import shared_memory
from ringfence.kernel.proc.shared_memory import written_by_forks

pytestmark = [pytest.mark.system, pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc elsewhere")]
PAGE = mmap.PAGESIZE


def _of_file(path: Path, how: int, protection: int) -> mmap.mmap:
    path.write_bytes(b"x" * PAGE)
    file = os.open(path, how)
    try:
        return mmap.mmap(file, PAGE, mmap.MAP_SHARED, protection)
    finally:
        os.close(file)


def _not_in_forks(_: Path) -> mmap.mmap:
    made = mmap.mmap(-1, PAGE)
    made.madvise(mmap.MADV_DONTFORK)
    return made


@pytest.mark.parametrize("make", [
    lambda _: mmap.mmap(-1, PAGE),
    lambda path: _of_file(path, os.O_RDWR, mmap.PROT_READ | mmap.PROT_WRITE),
    lambda path: _of_file(path, os.O_RDWR, mmap.PROT_READ),
], ids=["without a file", "of a file", "that mprotect can make writable"])  # fmt: skip
def test_shared_memory_that_a_fork_can_write_is_found(make: Callable[[Path], mmap.mmap], tmp_path: Path) -> None:
    before = written_by_forks()
    with make(tmp_path / "a b"):
        (found,) = written_by_forks() - before
        assert found.split()[1].endswith("s")
    assert not written_by_forks() - before


@pytest.mark.parametrize("make", [
    lambda _: mmap.mmap(-1, PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS),
    lambda path: _of_file(path, os.O_RDONLY, mmap.PROT_READ),
    _not_in_forks,
], ids=["private", "of a file opened for reading", "that no fork has"])  # fmt: skip
def test_other_memory_is_not(make: Callable[[Path], mmap.mmap], tmp_path: Path) -> None:
    before = written_by_forks()
    with make(tmp_path / "file"):
        assert not written_by_forks() - before


def test_where_the_kernel_shows_no_flags_all_shared_memory_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_memory, "_flags", dict)
    before = written_by_forks()
    with _of_file(tmp_path / "file", os.O_RDONLY, mmap.PROT_READ):
        assert len(written_by_forks() - before) == 1
