"""A hidden path of a living container that comes or is exchanged: nobody is let into that container any more."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ringfence.backends.in_container import hidden_watch
from ringfence.backends.in_container.hidden_watch import HiddenWatch
from ringfence.errors import SetupError, UsageError

pytestmark = pytest.mark.privileges


class Watched:
    """One hidden file that is there, one that is not, and what was ended."""

    def __init__(self, place: Path) -> None:
        self.there, self.missing = place / "folder" / "there", place / "folder" / "missing"
        self.there.parent.mkdir()
        self.there.write_text("hidden")
        self.ended: list[bool] = []
        self.watch = HiddenWatch([str(self.there), str(self.missing)], lambda: self.ended.append(True))


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    made = Watched(tmp_path)
    yield made
    made.watch.close()


def _come(watched: Watched) -> Path:
    watched.missing.write_text("hidden")
    return watched.missing


def _replace(watched: Watched) -> Path:
    new = watched.there.with_suffix(".new")
    new.write_text("hidden")
    new.replace(watched.there)
    return watched.there


def _make_again(watched: Watched) -> Path:
    watched.there.unlink()
    watched.there.write_text("hidden")
    return watched.there


def _exchange_its_folder(watched: Watched) -> Path:
    folder = watched.there.parent
    folder.rename(folder.with_suffix(".old"))
    folder.mkdir()
    watched.there.write_text("hidden")
    return watched.there


def _become_a_folder(watched: Watched) -> Path:
    watched.missing.mkdir()
    return watched.missing


@pytest.mark.parametrize("change", [_come, _replace, _make_again, _exchange_its_folder, _become_a_folder])
def test_a_hidden_path_that_comes_or_is_exchanged_ends_the_container(
    watched: Watched, change: Callable[[Watched], Path]
) -> None:
    watched.watch.refuse()
    path = change(watched)
    for _ in range(2):
        with pytest.raises(UsageError, match=f"hidden path {path} was created"):
            watched.watch.refuse()
    assert watched.ended == [True], "once"


def test_what_exposes_nothing_ends_nothing(watched: Watched) -> None:
    watched.there.write_text("other contents")
    watched.there.chmod(0o600)
    watched.missing.symlink_to(watched.there)  # what it leads to is hidden by its own name
    watched.watch.refuse()
    watched.there.unlink()
    watched.watch.refuse()
    assert not watched.ended


def test_a_number_of_an_inode_is_not_given_to_another_file_meanwhile(watched: Watched) -> None:
    for _ in range(50):
        watched.there.unlink()
        watched.there.write_text("hidden")
        assert watched.watch.exposed() == str(watched.there)


def test_what_is_held_is_given_back(watched: Watched) -> None:
    before = len(os.listdir("/proc/self/fd"))
    watched.watch.close()
    assert len(os.listdir("/proc/self/fd")) == before - 1
    assert watched.watch.exposed() == ""


def test_a_path_that_cannot_be_held_is_no_missing_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(hidden_watch.os, "open", full)
    with pytest.raises(SetupError, match="watch hidden paths: Too many open files"):
        HiddenWatch([str(tmp_path)], lambda: None)
