"""Files that are written together are on the disk before the last one is; one that can't be is an error."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from ringfence.errors import EvidenceError
from ringfence.evidence.bundle import settle, write_one_of_many


def test_every_file_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda file: waited.append(os.fstat(file).st_ino))
    for number in range(5):
        write_one_of_many(str(tmp_path / str(number)), b"text")
    assert not waited
    settle(str(tmp_path))
    assert sorted(waited) == sorted(path.stat().st_ino for path in tmp_path.iterdir())


def test_a_file_that_does_not_reach_the_disk_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    write_one_of_many(str(tmp_path / "one"), b"text")
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(EvidenceError, match="Input/output error"):
        settle(str(tmp_path))
