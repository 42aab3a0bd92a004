"""Directories of ours that lie elsewhere stay noted for as long as they are there, whatever lay in their place
before."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ringfence.model.own import noted_roots


@pytest.fixture
def top(tmp_path: Path) -> str:
    made = tmp_path / "state"
    made.mkdir(mode=0o700)
    return str(made)


def _made(path: Path) -> str:
    path.mkdir()
    return str(path)


def test_one_that_is_made_anew_outlasts_the_row_of_the_old_one(top: str, tmp_path: Path) -> None:
    old = _made(tmp_path / "place")
    noted_roots.note(top, old)
    kept = _made(tmp_path / "holds its inode")  # else the new one may get the same
    os.rmdir(old)
    os.rename(kept, old)
    noted_roots.note(top, old)
    noted_roots.note(top, _made(tmp_path / "another"))
    assert noted_roots.noted(top) == [old, str(tmp_path / "another")]


def test_one_in_another_takes_no_row_and_one_that_is_gone_loses_it(top: str, tmp_path: Path) -> None:
    outer = _made(tmp_path / "outer")
    noted_roots.note(top, outer)
    noted_roots.note(top, _made(tmp_path / "outer" / "inner"))
    assert noted_roots.noted(top) == [outer]
    os.rmdir(f"{outer}/inner")
    os.rmdir(outer)
    noted_roots.note(top, _made(tmp_path / "another"))
    assert noted_roots.noted(top) == [str(tmp_path / "another")], "the control"
