"""Whoever may rename in the base puts something else in the place of a directory while a commit is applied: that keeps
its mode, owner, attributes and time."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from undo_arena import ORDINARY_ID

from ringfence.checkpoint.apply import Writer
from ringfence.checkpoint.layer import Planned
from ringfence.checkpoint.workspace import Workspace, open_overlay
from ringfence.errors import ConflictError

pytestmark = pytest.mark.system
Step = Callable[[Workspace, Callable[[], None], pytest.MonkeyPatch], None]


def _while_staged(workspace: Workspace, act: Callable[[], None], patch: pytest.MonkeyPatch) -> None:
    stage = workspace.stage

    def staged(planned: Planned) -> None:
        stage(planned)
        act()

    patch.setattr(workspace, "stage", staged)


def _while_applied(_: Workspace, act: Callable[[], None], patch: pytest.MonkeyPatch) -> None:
    """When all is in its place, and only modes and times are left to do."""
    before = Writer._as_written

    def written(*arguments: object) -> object:
        patch.setattr(Writer, "_as_written", before)
        act()
        return before(*arguments)  # type: ignore[arg-type]

    patch.setattr(Writer, "_as_written", written)


def _never(_: Workspace, __: Callable[[], None], ___: pytest.MonkeyPatch) -> None:
    """The control."""


def _private(path: Path) -> Path:
    path.mkdir(mode=0o700)
    (path / "key").write_text("secret")
    os.utime(path, ns=(1, 1))
    return path


def _key(path: Path) -> Path:
    path.touch(0o600)
    os.utime(path, ns=(1, 1))
    return path


def _swap(theirs: Path, place: Path) -> None:
    if place.exists():
        place.rename(place.with_name("aside"))
    theirs.rename(place)


def _over(top: Path) -> Workspace:
    for name in ("base", "upper"):
        (top / name).mkdir(exist_ok=True)
    return open_overlay(*(str(top / name) for name in ("upper", "base", "store")))


def _is_untouched(place: Path, theirs: os.stat_result) -> None:
    now = place.stat()
    assert now.st_ino == theirs.st_ino, "it was swapped"
    assert (now.st_mode, now.st_uid, now.st_mtime_ns) == (theirs.st_mode, theirs.st_uid, 1)
    assert "user.note" not in os.listxattr(place)


@pytest.mark.parametrize(("step", "make"), [
    (_while_staged, _private), (_while_applied, _private), (_while_applied, _key), (_never, _private),
])  # fmt: skip
def test_what_is_put_in_place_of_a_folder_keeps_its_mode(
    step: Step, make: Callable[[Path], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "base/d").mkdir(parents=True)
    workspace = _over(tmp_path)
    (tmp_path / "upper/d").mkdir()
    (tmp_path / "upper/d").chmod(0o755)
    os.setxattr(tmp_path / "upper/d", "user.note", b"guest")
    theirs = make(tmp_path / "base/theirs")
    before = theirs.stat()
    step(workspace, lambda: _swap(theirs, tmp_path / "base/d"), monkeypatch)
    if step is _while_staged:  # there is a last look after that, which sees another mode
        with pytest.raises(ConflictError):
            workspace.commit()
    else:
        workspace.commit()
    if step is not _never:
        return _is_untouched(tmp_path / "base/d", before)
    assert (tmp_path / "base/d").stat().st_mode & 0o777 == 0o755
    assert os.getxattr(tmp_path / "base/d", "user.note") == b"guest"
    return None


@pytest.mark.parametrize("make", (_private, _key))
@pytest.mark.parametrize("step", (_while_applied, _never))
def test_what_is_put_in_place_of_a_new_folder_keeps_its_mode(
    step: Step, make: Callable[[Path], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = _over(tmp_path)
    (tmp_path / "upper/d").mkdir()
    (tmp_path / "upper/d").chmod(0o755)
    theirs = make(tmp_path / "base/theirs")
    before = theirs.stat()
    step(workspace, lambda: _swap(theirs, tmp_path / "base/d"), monkeypatch)
    workspace.commit()
    if step is not _never:
        return _is_untouched(tmp_path / "base/d", before)
    assert (tmp_path / "base/d").stat().st_mode & 0o777 == 0o755
    return None


@pytest.mark.root  # only root gives a directory to somebody else
@pytest.mark.parametrize("swaps", (True, False))
def test_what_is_put_in_place_of_a_new_folder_is_given_to_nobody(
    swaps: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = _over(tmp_path)
    os.chown(tmp_path / "base", ORDINARY_ID, ORDINARY_ID)
    (tmp_path / "upper/d").mkdir()
    theirs = _private(tmp_path / "base/theirs")
    before, mkdir = theirs.stat(), os.mkdir

    def made(name: str, *rest: int, **where: int) -> None:
        mkdir(name, *rest, **where)
        if name == "d" and swaps:
            _swap(theirs, tmp_path / "base/d")

    monkeypatch.setattr(os, "mkdir", made)
    workspace.commit()
    place = tmp_path / "base/d"
    if swaps:
        _is_untouched(place, before)
    else:
        assert place.stat().st_uid == ORDINARY_ID


@pytest.mark.root
@pytest.mark.parametrize("swaps", (True, False))
def test_what_is_put_in_place_of_a_new_link_is_given_to_nobody(
    swaps: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = _over(tmp_path)
    os.chown(tmp_path / "base", ORDINARY_ID, ORDINARY_ID)
    (tmp_path / "upper/link").symlink_to("anywhere")
    theirs = _key(tmp_path / "base/theirs")
    before, symlink = theirs.stat(), os.symlink

    def made(target: str, name: str, **where: int) -> None:
        symlink(target, name, **where)  # type: ignore[arg-type]
        if swaps:
            os.replace(theirs, name, dst_dir_fd=where["dir_fd"])

    monkeypatch.setattr(os, "symlink", made)
    workspace.commit()
    place = (tmp_path / "base/link").lstat()
    if swaps:
        assert (place.st_ino, place.st_uid) == (before.st_ino, before.st_uid)
    else:
        assert place.st_uid == ORDINARY_ID and stat.S_ISLNK(place.st_mode)
