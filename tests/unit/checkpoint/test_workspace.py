"""What a workspace promises, one sentence a test, on every kind of it."""

from __future__ import annotations

import os
import shutil
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from undo_arena import Arena, enter, in_child, look

from ringfence.checkpoint import content, entry
from ringfence.checkpoint.scan import MAX_DEPTH, MAX_PATH_CHARS
from ringfence.checkpoint.tree import Tree
from ringfence.checkpoint.workspace import Workspace, open_overlay
from ringfence.errors import CheckpointError, ConflictError, UsageError
from ringfence.model.record import replace

pytestmark = [pytest.mark.system, pytest.mark.privileges]

COPIES = ("overlay", "snapshot")
GIB = 1 << 30


def on(kind: str, folder: Path, test: Callable[[Arena], None]) -> None:
    """Run a test where overlays can be mounted; its errors are printed there."""

    def inside() -> None:
        enter(kind)
        test(Arena(kind, folder))

    assert in_child(inside) == 0


def edit(arena: Arena, change: Callable[[Path], object]) -> None:
    arena.mount()
    try:
        change(arena.seen)
    finally:
        arena.unmount()


def view(arena: Arena) -> dict[str, tuple[object, ...]]:
    arena.mount()
    try:
        return look(arena.seen)[0]
    finally:
        arena.unmount()


def told(workspace: Workspace) -> dict[str, str]:
    return {change.path: str(change.kind) for change in workspace.changes()}


def everything(top: Path) -> None:
    """All that a tree can hold."""
    (top / "folder/empty").mkdir(parents=True)
    (top / "new\nline").write_bytes(b"")
    (top / os.fsdecode(b"\xff\xfe")).write_text("no text for a name")
    (top / "plain").write_text("plain")
    os.link(top / "plain", top / "folder/second")
    (top / "link").symlink_to("/etc/passwd")
    (top / "broken").symlink_to("nowhere")
    os.mkfifo(top / "fifo")
    with socket.socket(socket.AF_UNIX) as server:
        here = os.open(top, os.O_RDONLY)
        server.bind(f"/proc/self/fd/{here}/socket")
        os.close(here)
    with (top / "large").open("wb") as file:
        file.seek(2 * GIB - 1)
        file.write(b"x")
    os.setxattr(top / "plain", "user.note", b"\0\xff")
    os.setxattr(top / "folder", "user.note", b"of a directory")
    (top / "plain").chmod(0o640)
    (top / "locked").mkdir()
    (top / "locked/inside").write_text("x")
    (top / "locked/inside").chmod(0)
    (top / "locked").chmod(0)
    for number, name in enumerate(("plain", "folder", "link", "fifo", "locked")):
        os.utime(top / name, ns=(1, 1_600_000_000_000_000_001 + number), follow_symlinks=False)


def facts(top: Path) -> dict[str, tuple[object, ...]]:
    found = {}
    for name in ("folder", "folder/empty", "new\nline", "\udcff\udcfe", "plain", "folder/second", "link", "broken",
                 "fifo", "socket", "large", "locked"):  # fmt: skip
        status = os.lstat(top / name)
        shape = stat.S_IFMT(status.st_mode)
        size = status.st_size if shape in (stat.S_IFREG, stat.S_IFLNK) else 0
        mode = 0 if shape == stat.S_IFLNK else status.st_mode
        times = status.st_mtime_ns if name in ("plain", "folder", "link", "fifo", "locked") else 0
        names = os.listxattr(top / name, follow_symlinks=False) if shape in (stat.S_IFREG, stat.S_IFDIR) else ()
        marks = [(each, os.getxattr(top / name, each)) for each in names if name != "locked"]
        found[name] = (mode, size, times, marks, os.readlink(top / name) if shape == stat.S_IFLNK else "")
    found["same file"] = ((top / "plain").stat().st_nlink,)
    return found


@pytest.mark.parametrize("kind", COPIES)
def test_everything_that_a_tree_can_hold_comes_back(kind: str, tmp_path: Path) -> None:
    def test(arena: Arena) -> None:
        workspace = arena.open()
        edit(arena, everything)
        before: dict[str, object] = {}
        edit(arena, lambda top: before.update(facts(top)))
        made = workspace.create_checkpoint()
        large = made.layer["large"]
        assert workspace.store.used_bytes() < 1 << 20 < large.size  # holes stay holes

        def wreck(top: Path) -> None:
            for name in ("fifo", "socket", "plain", "large"):
                (top / name).unlink()
            (top / "locked").chmod(0o755)
            (top / "locked/inside").unlink()
            (top / "folder/second").unlink()
            (top / "folder/empty").rmdir()
            (top / "folder").rmdir()
            (top / "folder").write_text("now a file")

        edit(arena, wreck)
        workspace.rollback_to_checkpoint(made.checkpoint_id)
        after: dict[str, object] = {}
        edit(arena, lambda top: after.update(facts(top)))
        assert after == before
        edit(arena, lambda top: _check_inside(top))

    def _check_inside(top: Path) -> None:
        assert (top / "large").stat().st_blocks * 512 < 1 << 20
        with (top / "large").open("rb") as file:
            file.seek(2 * GIB - 2)
            assert file.read() == b"\0x"
        (top / "locked").chmod(0o700)
        assert stat.S_IMODE((top / "locked/inside").lstat().st_mode) == 0

    on(kind, tmp_path, test)


@pytest.mark.parametrize("kind", COPIES)
def test_the_base_is_not_written_before_a_commit(kind: str, tmp_path: Path) -> None:
    def test(arena: Arena) -> None:
        (arena.base / "file").write_text("old")
        before = [(path, path.lstat()) for path in (arena.base, arena.base / "file")]
        workspace = arena.open()
        edit(arena, lambda top: (top / "file").write_text("new"))
        made = workspace.create_checkpoint()
        edit(arena, lambda top: (top / "file").unlink())
        workspace.rollback_to_checkpoint(made.checkpoint_id)
        workspace.discard()
        after = [(path, path.lstat()) for path in (arena.base, arena.base / "file")]
        assert [tuple(each)[:7] for _, each in after] == [tuple(each)[:7] for _, each in before]
        assert [each.st_ctime_ns for _, each in after] == [each.st_ctime_ns for _, each in before]

    on(kind, tmp_path, test)


@pytest.mark.parametrize("kind", COPIES)
def test_one_can_go_forward_again_with_the_state_of_then(kind: str, tmp_path: Path) -> None:
    def test(arena: Arena) -> None:
        workspace = arena.open()
        edit(arena, lambda top: (top / "a").write_text("1"))
        first = workspace.create_checkpoint("first", {"step": 1})
        edit(arena, lambda top: (top / "a").write_text("2"))
        second = workspace.create_checkpoint("second", {"step": 2})
        for made, text in ((first, b"1"), (second, b"2"), (first, b"1")):
            done = workspace.rollback_to_checkpoint(made.checkpoint_id)
            assert done.state_data == made.state_data
            assert done.files_restored == 1 and not done.partial
            assert view(arena)["a"][3] == text
            assert workspace.current == made.checkpoint_id
        assert [each.name for each in workspace.checkpoints()] == ["first", "second"]

    on(kind, tmp_path, test)


@pytest.mark.parametrize("kind", COPIES)
def test_checkpoints_share_content_which_goes_with_the_last_of_them(kind: str, tmp_path: Path) -> None:
    def test(arena: Arena) -> None:
        workspace = arena.open()
        edit(arena, lambda top: (top / "shared").write_bytes(os.urandom(300_000)))
        made = []
        for number in range(3):
            edit(arena, lambda top: (top / "own").write_bytes(os.urandom(100_000)))
            made.append(workspace.create_checkpoint(str(number)).checkpoint_id)
        assert 600_000 <= workspace.store.used_bytes() < 700_000
        workspace.delete_checkpoint(made[1])
        assert [each.checkpoint_id for each in workspace.checkpoints()] == [made[0], made[2]]
        assert 500_000 <= workspace.store.used_bytes() < 600_000
        workspace.rollback_to_checkpoint(made[0])
        with pytest.raises(CheckpointError, match="no checkpoint"):
            workspace.rollback_to_checkpoint(made[1])
        assert view(arena)["own"][0] == "file"

    on(kind, tmp_path, test)


@pytest.mark.parametrize("kind", COPIES)
@pytest.mark.parametrize("theirs", ("modified", "added", "in a directory that we deleted", "directory became a file"))
def test_what_somebody_else_changed_is_never_overwritten(kind: str, theirs: str, tmp_path: Path) -> None:
    def test(arena: Arena) -> None:
        (arena.base / "d").mkdir()
        for name in ("both", "ours", "d/x"):
            (arena.base / name).write_text("old")
        workspace = arena.open()

        def ours(top: Path) -> None:
            (top / "both").write_text("ours")
            (top / "ours").write_text("ours")
            (top / "new").write_text("ours")
            (top / "d/x").unlink()
            (top / "d/y").write_text("ours") if theirs == "directory became a file" else (top / "d").rmdir()

        edit(arena, ours)
        path = _by_somebody_else(arena.base, theirs)
        before = look(arena.base)[0]
        with pytest.raises(ConflictError) as caught:
            workspace.commit()
        assert path in caught.value.paths and "ours" not in caught.value.paths
        assert look(arena.base)[0] == before, "nothing at all was written"
        workspace.commit(paths=("ours",))
        assert (arena.base / "ours").read_text() == "ours"
        with pytest.raises(ConflictError):
            workspace.commit()

    def _by_somebody_else(base: Path, how: str) -> str:
        if how == "modified":
            (base / "both").write_text("hers")
            return "both"
        if how == "added":
            (base / "new").write_text("hers")
            return "new"
        if how == "in a directory that we deleted":
            (base / "d/hers").write_text("hers")
            return "d/hers"
        (base / "d/x").unlink()
        (base / "d").rmdir()
        (base / "d").write_text("hers")
        return "d"

    on(kind, tmp_path, test)


@pytest.mark.parametrize("kind", COPIES)
def test_what_somebody_else_deleted_is_a_conflict_where_it_was_edited(kind: str, tmp_path: Path) -> None:
    def test(arena: Arena) -> None:
        (arena.base / "a").write_text("old")
        workspace = arena.open()

        def append(top: Path) -> None:
            with (top / "a").open("a") as file:
                file.write("ours")

        edit(arena, append)
        (arena.base / "a").unlink()
        with pytest.raises(ConflictError) as caught:
            workspace.commit()
        assert caught.value.paths == ("a",)

    on(kind, tmp_path, test)


@pytest.mark.parametrize("kind", COPIES)
def test_other_files_may_change_beside_a_commit(kind: str, tmp_path: Path) -> None:
    """The control of the conflicts: somebody else at work in the same directory is none."""

    def test(arena: Arena) -> None:
        (arena.base / "a").write_text("old")
        workspace = arena.open()
        edit(arena, lambda top: (top / "a").write_text("ours"))
        (arena.base / "b").write_text("hers")
        workspace.commit()
        assert (arena.base / "a").read_text() == "ours"
        assert (arena.base / "b").read_text() == "hers"

    on(kind, tmp_path, test)


@pytest.mark.parametrize("kind", COPIES)
def test_set_user_id_is_dropped_by_a_commit_and_kept_by_a_checkpoint(kind: str, tmp_path: Path) -> None:
    def test(arena: Arena) -> None:
        workspace = arena.open()

        def plant(top: Path) -> None:
            (top / "shell").write_text("#!/bin/sh")
            (top / "shell").chmod(0o6755)

        edit(arena, plant)
        made = workspace.create_checkpoint()
        workspace.rollback_to_checkpoint(made.checkpoint_id)
        assert view(arena)["shell"][1] == 0o6755, "the control: it was really there"
        workspace.commit()
        assert stat.S_IMODE((arena.base / "shell").stat().st_mode) == 0o755

    on(kind, tmp_path, test)


@pytest.mark.parametrize("kind", COPIES)
def test_a_link_in_the_layer_is_carried_as_a_link_and_never_read_through(kind: str, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "key").write_text("the key")

    def test(arena: Arena) -> None:
        (arena.base / "d").mkdir()
        (arena.base / "d/key").write_text("harmless")
        workspace = arena.open()

        def plant(top: Path) -> None:
            (top / "d/key").unlink()
            (top / "d").rmdir()
            (top / "d").symlink_to(secret)
            (top / "direct").symlink_to(secret / "key")

        edit(arena, plant)
        edit(arena, lambda top: _control(top))
        assert "the key" not in workspace.diff("direct") + workspace.diff("d") + workspace.diff("d/key")
        made = workspace.create_checkpoint()
        assert not any(entry.digest for entry in made.layer.values()), "no content was taken"
        workspace.commit()
        assert os.readlink(arena.base / "d") == str(secret)
        assert (secret / "key").read_text() == "the key"

    def _control(top: Path) -> None:
        assert (top / "d/key").read_text() == "the key"

    (tmp_path / "arena").mkdir()
    on(kind, tmp_path / "arena", test)


@pytest.mark.parametrize("kind", COPIES)
def test_a_commit_does_not_go_through_a_link_that_somebody_put_into_the_base(kind: str, tmp_path: Path) -> None:
    def test(arena: Arena) -> None:
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        (arena.base / "d").mkdir()
        workspace = arena.open()
        edit(arena, lambda top: (top / "d/file").write_text("ours"))
        (arena.base / "d").rmdir()
        (arena.base / "d").symlink_to(elsewhere)
        with pytest.raises(ConflictError) as caught:
            workspace.commit()
        assert "d" in caught.value.paths
        assert not list(elsewhere.iterdir())
        (arena.base / "d/file").write_text("the control: a plain write does")
        assert list(elsewhere.iterdir())

    on(kind, tmp_path, test)


@pytest.mark.parametrize("kind", COPIES)
def test_a_base_that_was_swapped_for_another_folder_is_refused(kind: str, tmp_path: Path) -> None:
    def test(arena: Arena) -> None:
        workspace = arena.open()
        edit(arena, lambda top: (top / "file").write_text("ours"))
        workspace.create_checkpoint()
        moved = tmp_path / "moved"
        arena.base.rename(moved)
        (tmp_path / "other").mkdir()
        arena.base.symlink_to(tmp_path / "other")
        with pytest.raises(CheckpointError, match="was replaced"):
            arena.open()
        with pytest.raises(CheckpointError, match="base: Not a directory"):
            workspace.commit()  # nor does the one that was open write where nobody would look for it
        assert not list((tmp_path / "other").iterdir()) and not list(moved.iterdir())
        arena.base.unlink()
        moved.rename(arena.base)
        workspace.commit()
        assert (arena.base / "file").read_text() == "ours"

    on(kind, tmp_path, test)


@pytest.mark.parametrize("kind", COPIES)
def test_a_tree_that_is_too_deep_is_not_kept_but_can_be_undone(kind: str, tmp_path: Path) -> None:
    def dig(top: Path) -> None:
        here = os.getcwd()
        os.chdir(top)
        for _ in range(MAX_DEPTH + 200):
            os.mkdir("a" * 50)
            os.chdir("a" * 50)
        Path("bottom").write_text("x")
        os.chdir(here)

    def test(arena: Arena) -> None:
        workspace = arena.open()
        made = workspace.create_checkpoint()
        edit(arena, dig)
        assert told(workspace)["a" * 50] == "added"
        with pytest.raises(CheckpointError, match="deep"):
            workspace.create_checkpoint()
        workspace.rollback_to_checkpoint(made.checkpoint_id)
        assert view(arena) == {}

    on(kind, tmp_path, test)


@pytest.mark.parametrize("kind", COPIES)
def test_a_change_that_hides_behind_an_old_time_is_told(kind: str, tmp_path: Path) -> None:
    def forge(top: Path) -> None:
        before = (top / "a").stat()
        (top / "a").write_text("evil")
        os.utime(top / "a", ns=(before.st_atime_ns, before.st_mtime_ns))

    def test(arena: Arena) -> None:
        (arena.base / "a").write_text("good")
        workspace = arena.open()
        assert told(workspace) == {}
        edit(arena, forge)
        assert told(workspace) == {"a": "modified"}
        assert "-good" in workspace.diff("a") and "+evil" in workspace.diff("a")

    on(kind, tmp_path, test)


@pytest.mark.parametrize("kind", COPIES)
def test_diffs_are_of_text_and_say_why_where_there_is_none(kind: str, tmp_path: Path) -> None:
    def change(top: Path) -> None:
        (top / "text").write_text("one\nthree\n")
        (top / "gone").unlink()
        (top / "binary").write_bytes(b"\0\1")
        (top / "large").write_bytes(b"a" * (2 << 20))
        os.mkfifo(top / "fifo")

    def test(arena: Arena) -> None:
        (arena.base / "text").write_text("one\ntwo\n")
        (arena.base / "gone").write_text("bye\n")
        (arena.base / "same").write_text("x")
        workspace = arena.open()
        edit(arena, change)
        assert workspace.diff("text").splitlines()[-2:] == ["-two", "+three"]
        assert workspace.diff("gone").splitlines()[-1] == "-bye"
        assert workspace.diff("binary") == "file binary: added, mode 0644, not text\n"
        assert "too large" in workspace.diff("large")
        assert workspace.diff("fifo").startswith("fifo fifo: added, mode 0644, not a file, directory or link")
        assert workspace.diff("same") == ""

    on(kind, tmp_path, test)


@pytest.mark.parametrize("kind", COPIES)
@pytest.mark.parametrize("paths", [None, ("file", "folder", "anew", "new")], ids=["all", "some"])
def test_what_makes_room_for_a_pipe_is_removed_and_named(
    kind: str, paths: tuple[str, ...] | None, tmp_path: Path
) -> None:
    def change(top: Path) -> None:
        (top / "file").unlink()
        shutil.rmtree(top / "folder")
        shutil.rmtree(top / "anew")
        (top / "anew").mkdir()
        for name in ("file", "folder", "anew/inner", "new"):
            os.mkfifo(top / name)

    def test(arena: Arena) -> None:
        for name in ("folder", "anew"):
            (arena.base / name).mkdir()
        for name in ("file", "folder/inner", "anew/inner", "stays"):
            (arena.base / name).write_text("old")
        workspace = arena.open()
        edit(arena, change)
        done = workspace.commit(paths)
        assert set(done.left) == {"file", "folder", "anew/inner", "new"}
        gone = {"file", "folder", "anew/inner"}
        assert set(done.paths) - {"anew"} == gone, "the control: `new` took nothing's place"
        assert sorted(os.listdir(arena.base)) == ["anew", "stays"] and not os.listdir(arena.base / "anew")
        assert {path for path in told(workspace) if path != "anew"} == {"file", "folder", "anew/inner", "new"}

    on(kind, tmp_path, test)


def test_a_commit_under_a_mounted_overlay_leaves_the_layer_to_who_works_on_it(tmp_path: Path) -> None:
    def test(arena: Arena) -> None:
        (arena.base / "a").write_text("old")
        workspace = arena.open()
        arena.mount()
        (arena.seen / "a").write_text("one")
        with (arena.seen / "a").open("a") as file:
            workspace.commit(mounted=True)
            assert (arena.base / "a").read_text() == "one"
            assert told(workspace) == {}
            file.write(" and two")
        assert (arena.seen / "a").read_text() == "one and two", "what was open is still the same file"
        assert told(workspace) == {"a": "modified"}
        workspace.commit(mounted=True)
        assert (arena.base / "a").read_text() == "one and two"
        (arena.base / "a").write_text("hers")
        (arena.seen / "a").write_text("three")
        with pytest.raises(ConflictError):
            workspace.commit(mounted=True)
        arena.unmount()

    on("overlay", tmp_path, test)


@pytest.mark.parametrize("path", ("", "/etc/passwd", "../x", "a/../../x", "a//b", "."))
def test_a_path_outside_the_workspace_is_refused(path: str, tmp_path: Path) -> None:
    workspace = Arena("snapshot", tmp_path).open()
    with pytest.raises(UsageError):
        workspace.commit(paths=(path,))


def test_a_checkpoint_named_like_a_path_is_not_one(tmp_path: Path) -> None:
    workspace = Arena("snapshot", tmp_path).open()
    with pytest.raises(CheckpointError):
        workspace.rollback_to_checkpoint("../state")


def test_errors_of_the_file_system_become_ours(tmp_path: Path) -> None:
    arena = Arena("snapshot", tmp_path)
    workspace = arena.open()
    (arena.seen / "a").write_text("x")
    made = workspace.create_checkpoint()
    (arena.seen / "a").unlink()
    for blob in (tmp_path / "store/blobs").iterdir():
        blob.unlink()
    with pytest.raises(CheckpointError, match="not in the store"):
        workspace.rollback_to_checkpoint(made.checkpoint_id)


def test_a_digest_tells_content_and_not_holes(tmp_path: Path) -> None:
    (tmp_path / "written").write_bytes(bytes(250_000) + b"x" + bytes(50_000))
    with (tmp_path / "holes").open("wb") as file:
        file.seek(250_000)
        file.write(b"x")
        file.truncate(300_001)
    digests = []
    for name in ("written", "holes"):
        reader = os.open(tmp_path / name, os.O_RDONLY)
        digests.append(content.digest(reader))
        os.close(reader)
    assert digests[0] == digests[1]
    (tmp_path / "other").write_bytes(bytes(250_001) + b"x" + bytes(49_999))
    reader = os.open(tmp_path / "other", os.O_RDONLY)
    assert content.digest(reader) != digests[0]
    os.close(reader)


def test_a_folder_that_is_swapped_for_a_link_after_the_look_leads_nowhere(tmp_path: Path) -> None:
    """Who writes into the base while a commit runs can't send it elsewhere."""
    for name in ("base", "elsewhere"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    (tmp_path / "base/d").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "base/l").symlink_to(tmp_path / "elsewhere/file")
    assert (tmp_path / "base/d/file").read_text() == "elsewhere", "the control: a plain path leads there"
    tree = Tree(str(tmp_path / "base"))
    assert tree.status("d/file") is None
    for reach in (tree.read, tree.at, lambda path: tree.allow(path, 0o777)):
        with pytest.raises(OSError):
            reach("d/file")
    with pytest.raises(OSError):
        tree.read("l")
    mode = (tmp_path / "elsewhere/file").stat().st_mode
    tree.allow("l", 0o777)
    assert (tmp_path / "elsewhere/file").stat().st_mode == mode


def test_a_part_of_the_way_to_the_base_may_not_become_a_link(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "real/base").mkdir(parents=True)
    (tmp_path / "way").symlink_to(tmp_path / "real")
    assert Tree(str(tmp_path / "way/base")).path == str(tmp_path / "real/base"), "the control: links are resolved first"
    monkeypatch.setattr("ringfence.checkpoint.tree.real", lambda path: path)  # as if it became one just after
    with pytest.raises(CheckpointError):
        Tree(str(tmp_path / "way/base"))


def test_long_names_on_the_way_count_as_depth_does(tmp_path: Path) -> None:
    """Else a few thousand files take all of the host's memory: each path is as long as the way to it."""

    def grow(top: Path) -> None:
        here = os.open(top, os.O_RDONLY)
        for _ in range(40):
            os.mkdir("x" * 255, dir_fd=here)
            below = os.open("x" * 255, os.O_RDONLY, dir_fd=here)
            os.close(here)
            here = below
        os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=here))
        os.close(here)

    def test(arena: Arena) -> None:
        workspace = arena.open()
        edit(arena, grow)
        assert max(len(each.path) for each in workspace.changes()) <= MAX_PATH_CHARS + 256
        with pytest.raises(CheckpointError, match=f"{MAX_PATH_CHARS} characters"):
            workspace.create_checkpoint()
        workspace.discard()
        assert not workspace.changes() and not view(arena)

    on("overlay", tmp_path, test)


def test_a_change_in_the_moment_of_the_look_is_noticed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a clock that stands still for some milliseconds, as that of Linux before 6.13 does."""
    for name in ("base", "upper"):
        (tmp_path / name).mkdir()
    file = tmp_path / "upper/file"
    file.write_text("1")
    workspace = open_overlay(*(str(tmp_path / name) for name in ("upper", "base", "store")))
    mark, now, put = entry.fingerprint, workspace.store.now, workspace.store.put
    monkeypatch.setattr(entry, "fingerprint", lambda status: (*mark(status)[:2], 5, 5, *mark(status)[4:]))
    monkeypatch.setattr(workspace.store, "now", lambda: replace(now(), wall_ns=5))

    def write_behind(reader: int) -> str:
        digest = put(reader)
        file.write_text("2")
        return digest

    workspace._keep.take = write_behind
    first = workspace.create_checkpoint().layer["file"].digest
    workspace._keep.take = put
    assert workspace.create_checkpoint().layer["file"].digest != first
    monkeypatch.setattr(workspace.store, "now", lambda: replace(now(), wall_ns=6))
    third = workspace.create_checkpoint().layer["file"].digest
    file.write_text("3")
    assert workspace.create_checkpoint().layer["file"].digest != third, "no content of a job is believed by times"
    workspace.layer.scan._telling = True
    fourth = workspace.create_checkpoint().layer["file"].digest
    file.write_text("4")
    assert workspace.create_checkpoint().layer["file"].digest == fourth, "the control: by times, it is believed"
