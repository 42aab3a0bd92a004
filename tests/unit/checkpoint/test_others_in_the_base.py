"""The base is the user's, who works on in it: what a commit must not do to what it finds there."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from test_workspace import COPIES, edit, on
from undo_arena import ORDINARY_ID, Arena, as_ordinary_user, enter, in_child, mount_tmpfs

from ringfence.checkpoint import lock
from ringfence.checkpoint.layer import Planned
from ringfence.checkpoint.transaction import SNAPSHOT, Transaction
from ringfence.checkpoint.workspace import Workspace, open_overlay
from ringfence.errors import BusyError, CheckpointError, ConflictError

pytestmark = [pytest.mark.system, pytest.mark.privileges]

# ---- what is mounted there, and can't be seen through an overlay


def _remove(top: Path) -> None:
    shutil.rmtree(top / "mnt")


def _write_over(top: Path) -> None:
    (top / "mnt").mkdir(exist_ok=True)
    (top / "mnt/precious").write_text("guest")


@pytest.mark.parametrize("change", (_remove, _write_over))
def test_what_is_mounted_in_the_base_is_out_of_a_commits_reach(change: Callable[[Path], None], tmp_path: Path) -> None:
    def test(arena: Arena) -> None:
        mount_tmpfs(arena.base / "mnt")
        (arena.base / "mnt/precious").write_text("theirs")
        (arena.base / "other").write_text("old")
        workspace = arena.open()
        edit(arena, change)
        edit(arena, lambda top: (top / "other").write_text("new"))
        with pytest.raises(CheckpointError, match="mounted there: mnt"):
            workspace.commit()
        assert (arena.base / "mnt/precious").read_text() == "theirs"
        assert (arena.base / "other").read_text() == "old"
        workspace.commit(("other",))
        assert (arena.base / "other").read_text() == "new"

    on("overlay", tmp_path, test)


def test_the_control_what_is_not_mounted_is_removed_and_overwritten(tmp_path: Path) -> None:
    def test(arena: Arena) -> None:
        (arena.base / "mnt").mkdir()
        (arena.base / "mnt/precious").write_text("theirs")
        workspace = arena.open()
        edit(arena, _write_over)
        workspace.commit()
        assert (arena.base / "mnt/precious").read_text() == "guest"
        edit(arena, _remove)
        workspace.commit()
        assert not (arena.base / "mnt").exists()

    on("overlay", tmp_path, test)


def test_what_is_mounted_does_not_come_into_the_layer_by_a_rollback(tmp_path: Path) -> None:
    def test(arena: Arena) -> None:
        (arena.base / "above/mnt").mkdir(parents=True)
        (arena.base / "above/file").write_text("old")
        mount_tmpfs(arena.base / "above/mnt")
        (arena.base / "above/mnt/secret").write_text("theirs")
        workspace = arena.open()
        made = workspace.create_checkpoint().checkpoint_id
        edit(arena, lambda top: (shutil.rmtree(top / "above"), (top / "above").mkdir()))
        assert {each.path for each in workspace.changes()} >= {"above/file", "above/mnt"}
        workspace.rollback_to_checkpoint(made, ("above/mnt", "above/file"))
        arena.mount()
        assert os.listdir(arena.seen / "above/mnt") == [] and (arena.seen / "above/file").read_text() == "old"
        arena.unmount()

    on("overlay", tmp_path, test)


def test_a_copy_shows_what_is_mounted_and_only_the_mount_point_must_stay(tmp_path: Path) -> None:
    def test(arena: Arena) -> None:
        mount_tmpfs(arena.base / "a b")
        (arena.base / "a b/precious").write_text("theirs")
        workspace = arena.open()
        (arena.seen / "a b/precious").write_text("guest")
        workspace.commit()
        assert (arena.base / "a b/precious").read_text() == "guest"
        shutil.rmtree(arena.seen / "a b")
        with pytest.raises(CheckpointError, match="mounted there: a b"):
            workspace.commit()
        assert (arena.base / "a b/precious").exists()

    def inside() -> None:
        enter("overlay")  # a place to mount something in
        test(Arena("snapshot", tmp_path))

    assert in_child(inside) == 0


# ---- directories that were swapped: the files in them are old, and nobody has seen them there


def _make_folder(top: Path) -> None:
    (top / "lib").mkdir()
    (top / "lib/x").write_text("guest")


def _edit_in_folder(top: Path) -> None:
    (top / "lib/x").write_text("guest")


def _delete_folder(top: Path) -> None:
    shutil.rmtree(top / "lib")


@pytest.mark.parametrize("kind", COPIES)
@pytest.mark.parametrize("change", (_make_folder, _edit_in_folder, _delete_folder))
def test_a_folder_that_was_moved_into_the_base_is_not_overwritten(
    change: Callable[[Path], None], kind: str, tmp_path: Path
) -> None:
    def test(arena: Arena) -> None:
        theirs = arena.folder / "theirs"
        theirs.mkdir()
        (theirs / "x").write_text("precious")
        if change is not _make_folder:
            (arena.base / "lib").mkdir()
            (arena.base / "lib/x").write_text("old")
        workspace = arena.open()
        edit(arena, change)
        workspace.changes()
        workspace.close()
        if change is not _make_folder:
            (arena.base / "lib").rename(arena.folder / "away")
        theirs.rename(arena.base / "lib")
        with pytest.raises(ConflictError) as caught:
            arena.open().commit()
        assert caught.value.paths[0].startswith("lib")
        assert (arena.base / "lib/x").read_text() == "precious"

    on(kind, tmp_path, test)


@pytest.mark.parametrize("kind", COPIES)
def test_another_folder_in_the_bases_place_gets_nothing(kind: str, tmp_path: Path) -> None:
    def test(arena: Arena) -> None:
        (arena.base / "x").write_text("old")
        workspace = arena.open()
        edit(arena, lambda top: (top / "x").write_text("guest"))
        arena.base.rename(arena.folder / "away")
        arena.base.mkdir()
        with pytest.raises(CheckpointError, match="was replaced"):
            workspace.commit()
        assert (arena.folder / "away/x").read_text() == "old" and not list(arena.base.iterdir())

    on(kind, tmp_path, test)


# ---- bits and owners


@pytest.mark.parametrize("kind", COPIES)
def test_a_folder_keeps_its_bits_and_gets_none_but_set_group_id(kind: str, tmp_path: Path) -> None:
    def test(arena: Arena) -> None:
        for name, mode in (("shared", 0o2775), ("sticky", 0o1777), ("plain", 0o755)):
            (arena.base / name).mkdir()
            (arena.base / name).chmod(mode)
        workspace = arena.open()

        def change(top: Path) -> None:
            for name in ("shared", "sticky", "plain"):
                (top / name / "file").write_text("x")
            (top / "plain").chmod(0o3755)

        edit(arena, change)
        workspace.commit()
        modes = [(arena.base / name).stat().st_mode & 0o7777 for name in ("shared", "sticky", "plain")]
        assert modes == [0o2775, 0o1777, 0o2755]

    on(kind, tmp_path, test)


@pytest.mark.root  # only root can give a directory to somebody else
def test_in_a_folder_that_another_user_shares_a_commit_is_finished(tmp_path: Path) -> None:
    shared = tmp_path / "base/theirs"
    shared.mkdir(parents=True)
    (shared / "file").write_text("old")

    def work(place: Path) -> None:
        with pytest.raises(PermissionError):
            os.utime(place / "base/theirs", ns=(1, 1))
        tx = Transaction.create(place / "tx", [place / "base"], kind=SNAPSHOT)
        (Path(tx.place(place / "base")) / "theirs/file").write_text("guest")
        tx.commit()
        assert (place / "base/theirs/file").read_text() == "guest"

    def give_back() -> None:
        os.chown(shared, 0, ORDINARY_ID)
        shared.chmod(0o2775)

    assert as_ordinary_user(tmp_path, work, give_back) == 0
    assert (shared.stat().st_uid, shared.stat().st_mode & 0o7777) == (0, 0o2775)


def test_folders_on_the_way_to_a_base_need_not_be_readable(tmp_path: Path) -> None:
    (tmp_path / "way/base").mkdir(parents=True)

    def work(place: Path) -> None:
        (place / "way").chmod(0o311)
        with pytest.raises(PermissionError):
            os.listdir(place / "way")
        Transaction.create(place / "tx", [place / "way/base"], kind=SNAPSHOT).close()
        (place / "way").chmod(0o755)

    assert as_ordinary_user(tmp_path, work) == 0


# ---- two commits, and the clock


def test_two_commits_into_one_base_do_not_mix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "base").mkdir()
    (tmp_path / "base/x").write_text("old")
    first, second = (Transaction.create(tmp_path / name, [tmp_path / "base"], kind=SNAPSHOT) for name in ("1", "2"))
    for number, tx in enumerate((first, second)):
        (Path(tx.place(tmp_path / "base")) / "x").write_text(f"guest {number}")
    monkeypatch.setattr(lock, "_TURN_S", 0.05)
    stage, told = Workspace.stage, []

    def meanwhile(self: Workspace, planned: Planned) -> None:
        monkeypatch.setattr(Workspace, "stage", stage)
        with pytest.raises(BusyError, match="somebody else commits"):
            second.commit()
        told.append("busy")
        stage(self, planned)

    monkeypatch.setattr(Workspace, "stage", meanwhile)
    first.commit()
    assert told == ["busy"] and (tmp_path / "base/x").read_text() == "guest 0"
    with pytest.raises(ConflictError):
        second.commit()
    assert (tmp_path / "base/x").read_text() == "guest 0"


@pytest.mark.parametrize("set_back_s", (0, 3600))
def test_a_clock_that_was_set_back_hides_no_conflict(
    set_back_s: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("base", "upper"):
        (tmp_path / name).mkdir()
    (tmp_path / "base/x").write_text("old, or written in the hour that there was twice")
    workspace = open_overlay(*(str(tmp_path / name) for name in ("upper", "base", "store")))
    (tmp_path / "upper/x").write_text("guest")
    real = time.clock_gettime_ns
    monkeypatch.setattr(time, "clock_gettime_ns", lambda clock: real(clock) + set_back_s * 10**9)
    if not set_back_s:
        workspace.commit()
        return
    with pytest.raises(ConflictError):
        workspace.commit()


def _broken_off(top: Path) -> None:
    """A commit that was killed when all had been written down, and nothing done."""
    (top / "base/folder").mkdir(parents=True)
    for name in ("x", "folder/y", "folder/z"):
        (top / "base" / name).write_text("old")

    def commit_and_die() -> None:
        workspace = _over(top)
        (top / "upper/folder").mkdir()
        for name in ("x", "folder/y"):
            (top / "upper" / name).write_text("guest")
        os.mknod(top / "upper/folder/z", stat.S_IFCHR, 0)
        workspace._finish_commit = lambda _: os._exit(0)  # type: ignore[method-assign]
        workspace.commit()

    assert in_child(commit_and_die) == 0


def test_a_change_after_a_crash_that_hides_behind_an_old_time_is_theirs(tmp_path: Path) -> None:
    _broken_off(tmp_path)
    theirs = tmp_path / "base/x"
    before = theirs.stat()
    theirs.write_text("new")
    os.utime(theirs, ns=(before.st_mtime_ns, before.st_mtime_ns))
    with pytest.raises(ConflictError, match="kept the directory's version: x"):
        _over(tmp_path)
    assert theirs.read_text() == "new"


def test_what_is_left_to_somebody_else_after_a_crash_is_not_lost(tmp_path: Path) -> None:
    _broken_off(tmp_path)
    for name in ("folder/y", "folder/z"):
        (tmp_path / "base" / name).write_text("hers")
    with pytest.raises(ConflictError):
        _over(tmp_path)
    workspace = _over(tmp_path)
    assert (tmp_path / "base/x").read_text() == "guest", "the rest was carried over"
    assert {each.path: str(each.kind) for each in workspace.changes()} == {
        "folder/y": "modified", "folder/z": "deleted"}  # fmt: skip
    assert "+guest\n" in workspace.diff("folder/y").replace("\n\\ No newline at end of file", "")
    with pytest.raises(ConflictError) as caught:
        workspace.commit()
    assert caught.value.paths == ("folder/y", "folder/z"), "and is a conflict as before"
    assert (tmp_path / "base/folder/y").read_text() == "hers"


@pytest.mark.parametrize("kind", COPIES)
def test_what_changes_while_new_files_are_made_is_a_conflict_too(kind: str, tmp_path: Path) -> None:
    def test(arena: Arena) -> None:
        (arena.base / "x").write_text("old")
        workspace = arena.open()
        edit(arena, lambda top: ((top / "x").write_text("guest"), (top / "new").write_text("guest")))
        stage = workspace.stage

        def meanwhile(planned: Planned) -> None:
            stage(planned)
            (arena.base / "x").write_text("hers")
            (arena.base / "new").write_text("hers")

        workspace.stage = meanwhile  # type: ignore[method-assign]
        with pytest.raises(ConflictError) as caught:
            workspace.commit()
        assert caught.value.paths == ("new", "x")
        assert sorted(path.name for path in arena.base.iterdir()) == ["new", "x"], "nothing is left of what was made"
        assert (arena.base / "x").read_text() == (arena.base / "new").read_text() == "hers"

    on(kind, tmp_path, test)


@pytest.mark.parametrize("becomes", ("nothing", "a file"))
@pytest.mark.parametrize("theirs", ("", "folder/new", "folder/deeper/new", "folder/deeper/old"))
def test_what_is_put_into_a_doomed_folder_after_a_crash_stays(theirs: str, becomes: str, tmp_path: Path) -> None:
    (tmp_path / "base/folder/deeper").mkdir(parents=True)
    (tmp_path / "base/folder/deeper/old").write_text("old")
    (tmp_path / "base/x").write_text("old")
    time.sleep(0.02)

    def commit_and_die() -> None:
        workspace = _over(tmp_path)
        (tmp_path / "upper/x").write_text("guest")
        if becomes == "nothing":
            os.mknod(tmp_path / "upper/folder", stat.S_IFCHR, 0)
        else:
            (tmp_path / "upper/folder").write_text("guest")
        workspace._finish_commit = lambda _: os._exit(0)  # type: ignore[method-assign]
        workspace.commit()

    assert in_child(commit_and_die) == 0
    if not theirs:  # the control
        _over(tmp_path)
        assert not (tmp_path / "base/folder").is_dir()
        return
    (tmp_path / "base" / theirs).write_text("hers")
    with pytest.raises(ConflictError, match="kept the directory's version: folder"):
        _over(tmp_path)
    assert (tmp_path / "base" / theirs).read_text() == "hers"
    assert (tmp_path / "base/x").read_text() == "guest", "the rest was carried over"
    workspace = _over(tmp_path)
    assert {each.path for each in workspace.changes()} == {"folder"}
    with pytest.raises(ConflictError):
        workspace.commit()
    assert (tmp_path / "base" / theirs).read_text() == "hers"


@pytest.mark.parametrize("step", ("stage", "check_again"))
@pytest.mark.parametrize("kind", COPIES)
def test_what_is_put_into_a_doomed_folder_during_a_commit_stays(kind: str, step: str, tmp_path: Path) -> None:
    def test(arena: Arena) -> None:
        (arena.base / "folder").mkdir()
        (arena.base / "folder/old").write_text("old")
        workspace = arena.open()
        edit(arena, lambda top: shutil.rmtree(top / "folder"))
        done = getattr(workspace, step)

        def meanwhile(planned: Planned) -> None:
            done(planned)
            (arena.base / "folder/new").write_text("hers")

        setattr(workspace, step, meanwhile)
        with pytest.raises(CheckpointError):
            workspace.commit()
        with contextlib.suppress(ConflictError):
            arena.open()
        assert (arena.base / "folder/new").read_text() == "hers"

    on(kind, tmp_path, test)


def _over(top: Path) -> Workspace:
    (top / "upper").mkdir(exist_ok=True)
    return open_overlay(str(top / "upper"), str(top / "base"), str(top / "store"))


@pytest.mark.parametrize("gone", ("removed", "moved"))
@pytest.mark.parametrize("job", ("writes", "removes"))
@pytest.mark.parametrize("kind", COPIES)
def test_a_folder_that_somebody_else_took_away_does_not_come_back(
    kind: str, job: str, gone: str, tmp_path: Path
) -> None:
    def test(arena: Arena) -> None:
        (arena.base / "d").mkdir()
        for name in ("c", "e"):
            (arena.base / "d" / name).write_text("old")
        workspace = arena.open()
        edit(arena, lambda top: (top / "d/c").write_text("job") if job == "writes" else (top / "d/c").unlink())
        if gone == "removed":
            shutil.rmtree(arena.base / "d")
        else:
            (arena.base / "d").rename(arena.base / "elsewhere")
        with pytest.raises(ConflictError) as conflict:
            workspace.commit()
        assert conflict.value.paths[0].split("/")[0] == "d" and not (arena.base / "d").exists()

    on(kind, tmp_path, test)


@pytest.mark.parametrize("folder", ("", "d/"))
@pytest.mark.parametrize("kind", COPIES)
def test_a_part_that_is_committed_hides_no_conflict_of_another(kind: str, folder: str, tmp_path: Path) -> None:
    def test(arena: Arena) -> None:
        (arena.base / "d").mkdir()
        for name in ("a", "b"):
            (arena.base / folder / name).write_text("old")
        workspace = arena.open()
        edit(arena, lambda top: [(top / folder / name).write_text("job") for name in ("a", "b")])
        (arena.base / folder / "b").unlink()
        workspace.commit((f"{folder}a",))
        with pytest.raises(ConflictError):
            workspace.commit()
        assert (arena.base / folder / "a").read_text() == "job" and not (arena.base / folder / "b").exists()

    on(kind, tmp_path, test)


@pytest.mark.parametrize("kind", COPIES)
def test_a_commit_tells_the_paths_that_changed_and_no_folder_above_them(kind: str, tmp_path: Path) -> None:
    def test(arena: Arena) -> None:
        for name in ("d", "e"):
            (arena.base / name).mkdir()
        workspace = arena.open()

        def change(top: Path) -> None:
            (top / "d/c").write_text("job")
            (top / "e").chmod(0o700)

        edit(arena, change)
        told = tuple(change.path for change in workspace.changes())
        assert workspace.commit().paths == told == ("d/c", "e")

    on(kind, tmp_path, test)
