"""Modes that keep even the owner out: a program sets them, and who is not root must see behind them all the same."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from undo_arena import as_ordinary_user

from ringfence.checkpoint.scan import MAX_PATH_CHARS
from ringfence.checkpoint.workspace import Workspace, open_overlay, open_snapshot
from ringfence.errors import CheckpointError

pytestmark = [pytest.mark.system, pytest.mark.privileges]


def _over(place: Path) -> Workspace:
    for name in ("base", "upper"):
        (place / name).mkdir(exist_ok=True)
    return open_overlay(str(place / "upper"), str(place / "base"), str(place / "store"))


def _cleared(place: Path, mode: int) -> Workspace:
    """A directory that a program has removed and made anew, as overlayfs keeps it."""
    (place / "base/folder").mkdir(parents=True)
    (place / "base/folder/old").write_text("old")
    workspace = _over(place)
    made = place / "upper/folder"
    made.mkdir()
    (made / "new").write_text("new")
    os.setxattr(made, "user.overlay.opaque", b"y")
    made.chmod(mode)
    return workspace


@pytest.mark.parametrize("mode", (0o700, 0o300, 0))
def test_what_a_closed_folder_hides_is_told_and_removed(mode: int, tmp_path: Path) -> None:
    def work(place: Path) -> None:
        workspace = _cleared(place, mode)
        told = {each.path: str(each.kind) for each in workspace.changes()}
        assert told["folder/old"] == "deleted" and told["folder/new"] == "added"
        workspace.commit()
        assert (place / "base/folder").stat().st_mode & 0o777 == mode
        (place / "base/folder").chmod(0o700)
        assert os.listdir(place / "base/folder") == ["new"]

    assert as_ordinary_user(tmp_path, work) == 0


def test_attributes_of_closed_folders_and_files_come_back(tmp_path: Path) -> None:
    def work(place: Path) -> None:
        workspace = _cleared(place, 0)
        file = place / "upper/file"
        file.write_text("x")
        os.setxattr(file, "user.note", b"1")
        file.chmod(0)
        made = workspace.create_checkpoint().checkpoint_id
        (place / "upper/folder").chmod(0o700)
        os.removexattr(place / "upper/folder", "user.overlay.opaque")
        (place / "upper/folder").chmod(0)
        file.unlink()
        workspace.rollback_to_checkpoint(made)
        assert (place / "upper/folder").stat().st_mode & 0o777 == 0
        for each, name, value in ((place / "upper/folder", "user.overlay.opaque", b"y"), (file, "user.note", b"1")):
            each.chmod(0o700)
            assert os.getxattr(each, name) == value

    assert as_ordinary_user(tmp_path, work) == 0


def test_one_closed_file_does_not_hide_the_diff_of_the_others(tmp_path: Path) -> None:
    def work(place: Path) -> None:
        (place / "base").mkdir()
        for name in ("edited", "closed", "theirs"):
            (place / "base" / name).write_text("old\n")
        workspace = _over(place)
        for name in ("edited", "closed", "theirs"):
            (place / "upper" / name).write_text("new\n")
        (place / "upper/closed").chmod(0)
        (place / "base/theirs").chmod(0)
        diff = workspace.diff()
        assert diff.count("-old\n+new\n") == 2
        assert "theirs: modified, mode 0000 -> 0644, not readable by this user\n" in diff
        assert (place / "upper/closed").stat().st_mode & 0o777 == 0

    assert as_ordinary_user(tmp_path, work) == 0


def test_what_was_opened_for_a_look_is_closed_again_when_that_fails(tmp_path: Path) -> None:
    def work(place: Path) -> None:
        workspace = _over(place)
        (place / "upper/closed").mkdir(mode=0)
        (place / "upper/file").write_text("x")

        def fail(_: int) -> str:
            raise OSError(errno.ENOSPC, "full")

        workspace._keep.take = fail
        with pytest.raises(CheckpointError, match="full") as caught:
            workspace.create_checkpoint()
        assert caught.tb and (place / "upper/closed").stat().st_mode & 0o777 == 0, "while the error is still held"

    assert as_ordinary_user(tmp_path, work) == 0


def test_a_deep_tree_of_closed_folders_can_be_undone(tmp_path: Path) -> None:
    def work(place: Path) -> None:
        workspace = _over(place)
        opened = [os.open(place / "upper", os.O_RDONLY)]
        for _ in range(2 + MAX_PATH_CHARS // 200):  # the last of them are too deep to be shown
            os.mkdir("x" * 200, dir_fd=opened[-1])
            opened.append(os.open("x" * 200, os.O_RDONLY, dir_fd=opened[-1]))
        for folder in reversed(opened[1:]):
            os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=folder))
            os.fchmod(folder, 0)
        for folder in opened:
            os.close(folder)
        assert workspace.changes()
        workspace.discard()
        assert not list((place / "upper").iterdir())

    assert as_ordinary_user(tmp_path, work) == 0


@pytest.mark.parametrize("mode", (0o755, 0))
def test_what_changed_far_behind_a_closed_folder_is_undone(mode: int, tmp_path: Path) -> None:
    def work(place: Path) -> None:
        workspace = _over(place)
        closed, file = place / "upper/closed", place / "upper/closed/between/file"
        file.parent.mkdir(parents=True)
        file.write_text("1")
        closed.chmod(mode)
        made = workspace.create_checkpoint().checkpoint_id
        closed.chmod(0o755)
        file.write_text("2")
        closed.chmod(mode)
        workspace.rollback_to_checkpoint(made)
        assert closed.stat().st_mode & 0o777 == mode
        closed.chmod(0o755)
        assert file.read_text() == "1"

    assert as_ordinary_user(tmp_path, work) == 0


def _opened(kind: str, place: Path) -> tuple[Workspace, Path]:
    """A workspace, and where its program works."""
    if kind == "overlay":
        return _over(place), place / "upper"
    (place / "base").mkdir(exist_ok=True)
    return open_snapshot(str(place / "base"), str(place / "store")), place / "store/work"


@pytest.mark.parametrize("killed", (False, True))
@pytest.mark.parametrize("kind", ("overlay", "snapshot"))
def test_a_commit_of_closed_folders_is_finished(kind: str, killed: bool, tmp_path: Path) -> None:
    def work(place: Path) -> None:
        workspace, seen = _opened(kind, place)
        (seen / "closed/inner").mkdir(parents=True)
        (seen / "closed/inner/file").write_text("new")
        (seen / "other").write_text("new")
        for name in ("closed/inner", "closed"):
            (seen / name).chmod(0)
        if killed:
            workspace.layer.settle = _stop  # type: ignore[method-assign]
            with pytest.raises(CheckpointError, match="stopped"):
                workspace.commit()
            workspace, seen = _opened(kind, place)
        else:
            workspace.commit(("closed",))
            workspace.commit()
        # Of what is behind a closed directory nobody can tell whether it is the same.
        assert {each.path for each in workspace.changes()} <= {"closed/inner/file"}
        assert (place / "base/closed").stat().st_mode & 0o777 == 0
        (place / "base/closed").chmod(0o700)
        assert (place / "base/closed/inner").stat().st_mode & 0o777 == 0
        (place / "base/closed/inner").chmod(0o700)
        assert (place / "base/closed/inner/file").read_text() == (place / "base/other").read_text() == "new"

    assert as_ordinary_user(tmp_path, work) == 0


def _stop(*_: object, **__: object) -> None:
    raise OSError(errno.EIO, "stopped")


def test_what_is_behind_a_closed_folder_of_the_base_does_not_hide_the_other_changes(tmp_path: Path) -> None:
    def work(place: Path) -> None:
        (place / "base/closed").mkdir(parents=True)
        (place / "base/closed/file").write_text("old")
        workspace = _over(place)
        (place / "upper/closed").mkdir()
        for name in ("closed/file", "other"):
            (place / "upper" / name).write_text("new")
        (place / "base/closed").chmod(0)
        assert {each.path for each in workspace.changes()} >= {"closed/file", "other"}

    assert as_ordinary_user(tmp_path, work) == 0
