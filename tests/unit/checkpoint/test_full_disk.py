"""A disk that is full, and other things that can't be written: nothing is half done, and there is a way out."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from test_transaction import texts
from undo_arena import Arena, as_ordinary_user, enter, in_child, mount_tmpfs

from ringfence.checkpoint.lock import hold
from ringfence.checkpoint.transaction import OVERLAY, SNAPSHOT, Transaction
from ringfence.checkpoint.tree import Tree
from ringfence.checkpoint.workspace import open_overlay
from ringfence.errors import BusyError, CheckpointError

pytestmark = [pytest.mark.system, pytest.mark.privileges]

KIB = 1024
SETFLAGS, IMMUTABLE = 0x40086602, (0x10).to_bytes(8, sys.byteorder)


def on_small_disk(folder: Path, test: Callable[[Path], None], kib: int = 1024) -> None:
    """Run a test on a disk of its own, which is soon full."""

    def inside() -> None:
        enter("overlay")
        mount_tmpfs(folder / "disk", f"size={kib}k")
        test(folder / "disk")

    assert in_child(inside) == 0


def _upper(tx: Transaction) -> Path:
    return Path(tx.layers[0][1]) / "upper"


def _free_bytes(disk: Path) -> int:
    status = os.statvfs(disk)
    return status.f_bavail * status.f_bsize


def _fill(file: Path) -> None:
    with pytest.raises(OSError, match="No space"), file.open("ab", buffering=0) as opened:
        while opened.write(bytes(4 * KIB)):
            pass


def test_a_checkpoint_that_does_not_fit_leaves_the_room_that_there_was(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()

    def test(disk: Path) -> None:
        tx = Transaction.create(disk / "tx", [tmp_path / "base"], kind=OVERLAY)
        for name in ("one", "two"):
            (_upper(tx) / name).write_bytes(os.urandom(300 * KIB))
        tx.changes()
        free = _free_bytes(disk)
        with pytest.raises(CheckpointError, match=f"{disk}.*No space"):
            tx.create_checkpoint()
        assert _free_bytes(disk) == free and not tx.checkpoints()
        with pytest.raises(CheckpointError, match=f"{disk}.*No space"):
            tx.commit()
        assert _free_bytes(disk) == free and not list((tmp_path / "base").iterdir())

    on_small_disk(tmp_path, test)


@pytest.mark.parametrize("way", ("discard", "rollback"))
def test_what_filled_the_disk_can_be_undone(way: str, tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()

    def test(disk: Path) -> None:
        tx = Transaction.create(disk / "tx", [tmp_path / "base"], kind=OVERLAY)
        (_upper(tx) / "kept").write_text("kept")
        made = tx.create_checkpoint()
        _fill(_upper(tx) / "flood")
        (_upper(tx) / "kept").unlink()
        _fill(_upper(tx) / "flood")
        tx.close()
        tx = Transaction.open(disk / "tx")
        assert {Path(each.path).name for each in tx.changes()} == {"flood"}
        if way == "discard":
            tx.discard()
            assert not tx.changes()
        else:
            tx.rollback(made.checkpoint_id)
            assert texts(_upper(tx)) == {"kept": b"kept"}
        assert _free_bytes(disk) > 500 * KIB
        assert Path(tx.layers[0][1]).parent.parent.joinpath("checkpoints/0/spare").exists(), "for the next time"

    on_small_disk(tmp_path, test)


def test_the_control_without_the_room_that_is_kept_it_can_not(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()

    def test(disk: Path) -> None:
        tx = Transaction.create(disk / "tx", [tmp_path / "base"], kind=OVERLAY)
        (disk / "tx/checkpoints/0/spare").unlink()
        _fill(_upper(tx) / "flood")
        with pytest.raises(CheckpointError, match="No space"):
            tx.discard()

    on_small_disk(tmp_path, test)


def test_a_full_disk_keeps_nobody_from_taking_and_giving_back_the_lock(tmp_path: Path) -> None:
    def test(disk: Path) -> None:
        _fill(disk / "flood")
        lock = hold(Tree(str(disk)))
        with pytest.raises(BusyError):
            hold(Tree(str(disk)))
        with pytest.raises(CheckpointError, match="No space"):
            lock.note(b"/somewhere")
        lock.release()
        hold(Tree(str(disk))).release()

    on_small_disk(tmp_path, test)


def test_a_lock_that_can_not_be_made_is_an_error_of_ours(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    tree = Tree(str(tmp_path / "there"))
    (tmp_path / "there").rmdir()
    with pytest.raises(CheckpointError, match="No such file"):
        hold(tree)


def test_a_checkpoint_that_fits_only_in_part_is_none(tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()

    def test(disk: Path) -> None:
        tx = Transaction.create(disk / "tx", [tmp_path / "first", tmp_path / "second"], kind=OVERLAY)
        uppers = [Path(layer) / "upper" for _, layer in tx.layers]
        (uppers[0] / "large").write_bytes(os.urandom(400 * KIB))
        (uppers[1] / "small").write_bytes(os.urandom(100 * KIB))
        tx.changes()
        free = _free_bytes(disk)
        with pytest.raises(CheckpointError, match="No space"):
            tx.create_checkpoint()
        assert not tx.checkpoints() and _free_bytes(disk) >= free - 8 * KIB

    on_small_disk(tmp_path, test, kib=900)


# ---- commits that can't be carried out


def _change(top: Path) -> None:
    (top / "edited").write_text("guest")
    (top / "gone").rename(top / "moved")
    (top / "added").write_text("guest")


def _refused(arena: Arena, spoil: Callable[[], None], match: str) -> None:
    """A commit that is refused changes nothing, leaves nothing, and can be made good for."""
    for name in ("edited", "gone"):
        (arena.base / name).write_text("old")
    workspace = arena.open()
    arena.mount()
    _change(arena.seen)
    spoil()
    arena.unmount()
    with pytest.raises(CheckpointError, match=match):
        workspace.commit()
    assert texts(arena.base) == {"edited": b"old", "gone": b"old"}
    assert sorted(path.name for path in arena.base.iterdir()) == ["edited", "gone"]
    workspace.close()
    workspace = arena.open()
    workspace.commit(("edited", "gone", "moved"))
    assert texts(arena.base) == {"edited": b"guest", "moved": b"old"}


def test_a_commit_that_does_not_fit_changes_nothing(tmp_path: Path) -> None:
    def inside() -> None:
        enter("overlay")
        (tmp_path / "base").mkdir()
        mount_tmpfs(tmp_path / "base", "size=1024k")
        arena = Arena("overlay", tmp_path)
        _refused(arena, lambda: (arena.seen / "large").write_bytes(os.urandom(2048 * KIB)), "base/large: No space")

    assert in_child(inside) == 0


def _many_folders(top: Path) -> None:
    for number in range(30):
        (top / f"folder{number}/inner").mkdir(parents=True)


@pytest.mark.parametrize("change", (_many_folders, lambda top: (top / "only").mkdir()))
def test_a_commit_changes_nothing_if_there_is_no_room_for_its_folders(
    change: Callable[[Path], None], tmp_path: Path
) -> None:
    def inside() -> None:
        enter("overlay")
        (tmp_path / "base").mkdir()
        mount_tmpfs(tmp_path / "base", "size=1024k,nr_inodes=20")
        arena = Arena("overlay", tmp_path)
        if change is _many_folders:
            return _refused(arena, lambda: change(arena.seen), "base/folder.*: No space")
        workspace = arena.open()  # the control: for one there is
        change(tmp_path / "upper")
        workspace.commit()
        assert (arena.base / "only").is_dir()
        return None

    assert in_child(inside) == 0


def test_a_program_can_not_make_a_commit_that_never_ends(tmp_path: Path) -> None:
    """Attributes as its own layer's file system takes them, and the base's does not."""

    def inside() -> None:
        enter("overlay")
        mount_tmpfs(tmp_path / "layer")
        for name in ("upper", "work"):
            (tmp_path / "layer" / name).mkdir()
            (tmp_path / name).symlink_to(tmp_path / "layer" / name)
        arena = Arena("overlay", tmp_path)

        def spoil() -> None:
            (arena.seen / "spoiled").mkdir()
            os.setxattr(arena.seen / "spoiled", "user.much", bytes(60 * KIB))

        _refused(arena, spoil, "base/spoiled: ")

    (tmp_path / "probe").mkdir()
    try:
        os.setxattr(tmp_path / "probe", "user.much", bytes(60 * KIB))
    except OSError:
        assert in_child(inside) == 0
    else:
        pytest.skip("this file system takes as much")


def test_a_base_that_became_read_only_is_named_and_nothing_is_begun(tmp_path: Path) -> None:
    def inside() -> None:
        enter("overlay")
        mount_tmpfs(tmp_path / "base")
        arena = Arena("overlay", tmp_path)
        (arena.base / "edited").write_text("old")
        workspace = arena.open()
        arena.mount()
        (arena.seen / "edited").write_text("guest")
        arena.unmount()
        _remount(arena.base, read_only=True)
        with pytest.raises(CheckpointError, match=f"^{arena.base}: Read-only"):
            workspace.commit()
        workspace.close()
        _remount(arena.base, read_only=False)
        workspace = arena.open()
        assert texts(arena.base) == {"edited": b"old"}, "the commit was refused, and is not made up for later"
        workspace.commit()
        assert texts(arena.base) == {"edited": b"guest"}

    assert in_child(inside) == 0


def _remount(place: Path, *, read_only: bool) -> None:
    from ringfence.kernel import syscalls

    syscalls.call("mount", b"none", os.fsencode(place), 0, 0x20 | (1 if read_only else 0), 0)


@pytest.mark.root  # only root can make a file immutable
def test_a_file_that_nobody_can_replace_ends_a_commit_before_it_begins(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    for name in ("a", "fixed", "z"):
        (tmp_path / "base" / name).write_text("old")
    with (tmp_path / "base/fixed").open() as fixed:
        try:
            fcntl.ioctl(fixed, SETFLAGS, IMMUTABLE)
        except OSError as error:
            pytest.skip(f"not here: {error}")
        try:
            tx = Transaction.create(tmp_path / "tx", [tmp_path / "base"], kind=OVERLAY)
            for name in ("a", "fixed", "z"):
                (_upper(tx) / name).write_text("guest")
            with pytest.raises(CheckpointError, match=r"base/fixed: .*immutable"):
                tx.commit()
            assert texts(tmp_path / "base") == {"a": b"old", "fixed": b"old", "z": b"old"}
            tx.commit([tmp_path / "base/a"])
            assert texts(tmp_path / "base") == {"a": b"guest", "fixed": b"old", "z": b"old"}
        finally:
            fcntl.ioctl(fixed, SETFLAGS, bytes(8))


@pytest.mark.root  # only root can put somebody else's file there
@pytest.mark.parametrize(("mode", "told"), ((0o1777, "theirs/file: Operation"), (0o755, "theirs: Permission")))
def test_a_folder_that_is_not_ours_to_write_ends_a_commit_before_it_begins(
    mode: int, told: str, tmp_path: Path
) -> None:
    (tmp_path / "base/theirs").mkdir(parents=True)
    for name in ("a", "theirs/file"):
        (tmp_path / "base" / name).write_text("old")

    def work(place: Path) -> None:
        tx = Transaction.create(place / "tx", [place / "base"], kind=SNAPSHOT)
        for name in ("a", "theirs/file"):
            (Path(tx.place(place / "base")) / name).write_text("guest")
        with pytest.raises(CheckpointError, match=told):
            tx.commit()
        assert set(texts(place / "base").values()) == {b"old"}

    def give_back() -> None:
        for name in ("theirs", "theirs/file"):
            os.chown(tmp_path / "base" / name, 0, 0)
        (tmp_path / "base/theirs").chmod(mode)

    assert as_ordinary_user(tmp_path, work, give_back) == 0


def test_rubbish_is_removed_before_a_checkpoint_is(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    (tmp_path / "base/x").write_text("old")
    tx = Transaction.create(tmp_path / "tx", [tmp_path / "base"], kind=OVERLAY)
    made = [tx.create_checkpoint().checkpoint_id for _ in range(2)]
    (_upper(tx) / "x").write_bytes(os.urandom(400 * KIB))
    (tmp_path / "base/x").write_text("theirs")
    with pytest.raises(CheckpointError, match="changed by somebody else"):
        tx.commit()
    assert tx.used_bytes() > 400 * KIB, "the commit kept what it was to write"
    assert tx.collect(200 * KIB) == []
    assert [each.checkpoint_id for each in tx.checkpoints()] == made and tx.used_bytes() < 200 * KIB
    shutil.rmtree(tmp_path / "base")


def test_where_a_file_has_only_one_name_its_second_becomes_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in bases on file systems without hard links."""
    for name in ("base", "upper"):
        (tmp_path / name).mkdir()
    workspace = open_overlay(*(str(tmp_path / name) for name in ("upper", "base", "store")))
    (tmp_path / "upper/first").write_text("same")
    os.link(tmp_path / "upper/first", tmp_path / "upper/second")

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, "not here")

    monkeypatch.setattr(os, "link", refuse)
    workspace.commit()
    assert [(tmp_path / "base" / name).read_text() for name in ("first", "second")] == ["same", "same"]
    assert (tmp_path / "base/first").stat().st_nlink == 1
