"""Somebody else changed what a commit would change: which of these are conflicts, and who wins."""

from __future__ import annotations

import os
import shutil
import stat
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from test_workspace import COPIES, edit, on
from tests.private_folders import left_in
from undo_arena import Arena, in_child

from ringfence.checkpoint.commit import three_way
from ringfence.checkpoint.commit.conflicts import OnConflict, Settled, Settling
from ringfence.checkpoint.layer import Committed
from ringfence.checkpoint.overlay import OverlayLayer
from ringfence.checkpoint.transaction import SNAPSHOT, Transaction
from ringfence.checkpoint.workspace import Workspace
from ringfence.errors import ConflictError, UsageError

pytestmark = [pytest.mark.system, pytest.mark.privileges, pytest.mark.unmeasured]

LINES = "".join(f"line {number}\n" for number in range(20))
MINE, THEIRS = LINES.replace("line 2\n", "mine\n"), LINES.replace("line 17\n", "theirs\n")
BOTH = MINE.replace("line 17\n", "theirs\n")


def told(workspace: Workspace) -> dict[str, str]:
    return {change.path: str(change.kind) for change in workspace.changes(noting=True)}


def commit(workspace: Workspace, how: str, paths: tuple[str, ...] | None = None) -> Committed:
    with workspace.base.locked():
        planned = workspace.plan_commit(paths, on_conflict=OnConflict(how))
        workspace.stage(planned)
        workspace.check_again(planned)
        return workspace.carry_out(planned)


def both_change(arena: Arena, mine: str = MINE, theirs: str = THEIRS) -> Workspace:
    """A file that the program and somebody else have changed, and another one that only the program has."""
    (arena.base / "text").write_text(LINES)
    (arena.base / "other").write_text("old\n")
    workspace = arena.open()
    edit(arena, lambda top: ((top / "text").write_text(mine), (top / "other").write_text("new\n")))
    assert told(workspace) == {"text": "modified", "other": "modified"}
    time.sleep(0.01)
    (arena.base / "text").write_text(theirs)
    return workspace


WINNERS = {"mine": MINE, "theirs": THEIRS, "merge": BOTH}


@pytest.mark.parametrize("kind", COPIES)
@pytest.mark.parametrize("how", WINNERS)
def test_who_wins_is_the_callers_word(kind: str, how: str, tmp_path: Path) -> None:
    def test(arena: Arena) -> None:
        workspace = both_change(arena)
        with pytest.raises(ConflictError) as caught:
            workspace.commit()
        assert caught.value.paths == ("text",) and "on_conflict" in caught.value.hint
        assert (arena.base / "other").read_text() == "old\n", "nothing is done"
        done = commit(workspace, how)
        assert (arena.base / "text").read_text() == WINNERS[how] and (arena.base / "other").read_text() == "new\n"
        assert getattr(done, "merged" if how == "merge" else how) == ("text",)
        assert told(workspace) == {}
        edit(arena, lambda top: seen.append((top / "text").read_text()))
        assert seen == [WINNERS[how]], "the program goes on with what is there now"
        edit(arena, lambda top: (top / "text").write_text("last\n"))
        workspace.commit()
        assert (arena.base / "text").read_text() == "last\n", "and has no conflict any more"

    seen: list[str] = []
    on(kind, tmp_path, test)


@pytest.mark.parametrize("kind", COPIES)
def test_one_path_is_decided_and_the_others_wait(kind: str, tmp_path: Path) -> None:
    def test(arena: Arena) -> None:
        workspace = both_change(arena)
        (arena.base / "other").write_text("hers\n")
        commit(workspace, "theirs", ("text",))
        assert (arena.base / "text").read_text() == THEIRS and told(workspace) == {"other": "modified"}
        with pytest.raises(ConflictError):
            workspace.commit()
        edit(arena, lambda top: (top / "text").write_text(THEIRS + "more\n"))
        commit(workspace, "refuse", ("text",))
        assert (arena.base / "text").read_text() == THEIRS + "more\n"
        commit(workspace, "mine", ("other",))
        assert (arena.base / "other").read_text() == "new\n" and told(workspace) == {}

    on(kind, tmp_path, test)


@pytest.mark.parametrize("kind", COPIES)
def test_the_same_content_on_both_sides_is_no_conflict(kind: str, tmp_path: Path) -> None:
    def test(arena: Arena) -> None:
        workspace = both_change(arena, MINE, MINE)
        before = os.stat(arena.base / "text")
        workspace.commit()
        after = os.stat(arena.base / "text")
        assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns), "theirs stays as it is"
        assert (arena.base / "other").read_text() == "new\n" and told(workspace) == {}

    on(kind, tmp_path, test)


@pytest.mark.parametrize("kind", COPIES)
def test_the_same_content_with_another_mode_is_one(kind: str, tmp_path: Path) -> None:
    def test(arena: Arena) -> None:
        workspace = both_change(arena, MINE, MINE)
        (arena.base / "text").chmod(0o600)
        with pytest.raises(ConflictError):
            workspace.commit()

    on(kind, tmp_path, test)


@pytest.mark.parametrize("kind", COPIES)
@pytest.mark.parametrize("change", (lambda path: path.write_text(MINE), Path.unlink), ids=("edit", "delete"))
def test_what_was_changed_and_changed_back_is_no_conflict(
    kind: str, change: Callable[[Path], object], tmp_path: Path
) -> None:
    def test(arena: Arena) -> None:
        (arena.base / "text").write_text(LINES)
        workspace = arena.open()
        edit(arena, lambda top: change(top / "text"))
        assert told(workspace).keys() == {"text"}
        (arena.base / "text").write_text("for a moment\n")
        with pytest.raises(ConflictError):
            workspace.commit()
        (arena.base / "text").write_text(LINES)
        workspace.commit()
        path = arena.base / "text"
        assert (path.read_text() if path.exists() else None) in (MINE, None) and told(workspace) == {}

    on(kind, tmp_path, test)


@pytest.mark.parametrize("kind", COPIES)
def test_what_was_kept_of_the_base_is_never_what_somebody_else_wrote(kind: str, tmp_path: Path) -> None:
    """Nobody looked before it was changed: then there is nothing to merge with."""

    def test(arena: Arena) -> None:
        (arena.base / "text").write_text(LINES)
        workspace = arena.open()
        edit(arena, lambda top: (top / "text").write_text(MINE))
        time.sleep(0.01)
        (arena.base / "text").write_text(THEIRS)
        assert told(workspace) == {"text": "modified"}
        with pytest.raises(ConflictError, match="before is not known"):
            commit(workspace, "merge")
        assert (arena.base / "text").read_text() == THEIRS

    on(kind, tmp_path, test)


@pytest.mark.parametrize(
    ("mine", "theirs", "why"),
    (
        (LINES.replace("line 5", "mine"), LINES.replace("line 5", "theirs"), three_way.SAME_LINES),
        (MINE + "\0", THEIRS, three_way.NO_TEXT),
        (MINE, THEIRS + "x" * (1 << 20), "more than 1 MiB"),
    ),
    ids=("same lines", "no text", "too large"),
)
@pytest.mark.parametrize("kind", COPIES)
def test_what_can_not_be_merged_is_named_with_the_reason(
    kind: str, mine: str, theirs: str, why: str, tmp_path: Path
) -> None:
    def test(arena: Arena) -> None:
        workspace = both_change(arena, mine, theirs)
        with pytest.raises(ConflictError, match=why) as caught:
            commit(workspace, "merge")
        assert caught.value.paths == ("text",)
        assert (arena.base / "text").read_text() == theirs and (arena.base / "other").read_text() == "old\n"

    on(kind, tmp_path, test)


def test_a_merge_keeps_the_mode_of_who_changed_it(tmp_path: Path) -> None:
    def test(arena: Arena) -> None:
        workspace = both_change(arena)
        (arena.base / "text").chmod(0o600)
        commit(workspace, "merge")
        assert (arena.base / "text").read_text() == BOTH and os.stat(arena.base / "text").st_mode & 0o777 == 0o600

    on("overlay", tmp_path, test)


# ---- directories

TREE = ("d/a", "d/b", "d/sub/c", "d/sub/e")


def _fill(top: Path) -> None:
    (top / "d/sub").mkdir(parents=True)
    for name in TREE:
        (top / name).write_text("old\n")


def _remove(top: Path) -> None:
    shutil.rmtree(top / "d")


def _replace(top: Path) -> None:
    _remove(top)
    (top / "d/sub").mkdir(parents=True)
    (top / "d/mine").write_text("mine\n")
    (top / "d/sub/mine").write_text("mine\n")


def _make_file(top: Path) -> None:
    _remove(top)
    (top / "d").write_text("mine\n")


@pytest.mark.parametrize("kind", COPIES)
@pytest.mark.parametrize(
    ("change", "theirs", "mine"),
    (
        (_remove, {"d/sub/c"}, set()),
        (_replace, {"d/sub/c", "d/mine", "d/sub/mine"}, {"d/mine", "d/sub/mine"}),
        (_make_file, set(TREE), {"d"}),
    ),
    ids=("removed", "made anew", "a file in its place"),
)
def test_in_a_folder_that_is_to_go_their_file_alone_stays(
    kind: str, change: Callable[[Path], None], theirs: set[str], mine: set[str], tmp_path: Path
) -> None:
    def files(arena: Arena) -> set[str]:
        return {str(path.relative_to(arena.base)) for path in arena.base.rglob("*") if path.is_file()}

    def test(how: str, expected: set[str]) -> Callable[[Arena], None]:
        def inside(arena: Arena) -> None:
            _fill(arena.base)
            workspace = arena.open()
            edit(arena, change)
            workspace.changes(noting=True)
            time.sleep(0.01)
            (arena.base / "d/sub/c").write_text("hers\n")
            with pytest.raises(ConflictError):
                workspace.commit()
            commit(workspace, how)
            assert files(arena) == expected
            assert how == "mine" or (arena.base / "d/sub/c").read_text() == "hers\n"
            assert told(workspace) == {}

        return inside

    for how, expected in (("theirs", theirs), ("mine", mine)):
        (tmp_path / how).mkdir()
        on(kind, tmp_path / how, test(how, expected))


@pytest.mark.parametrize("kind", COPIES)
@pytest.mark.parametrize(("how", "expected"), (("theirs", {"d": "hers\n"}), ("mine", {"d/x": "", "d/y": ""})))
def test_a_file_of_theirs_where_a_folder_of_mine_is(
    kind: str, how: str, expected: dict[str, str], tmp_path: Path
) -> None:
    def test(arena: Arena) -> None:
        workspace = arena.open()
        edit(arena, lambda top: ((top / "d").mkdir(), [(top / "d" / name).touch() for name in "xy"]))
        workspace.changes(noting=True)
        time.sleep(0.01)
        (arena.base / "d").write_text("hers\n")
        with pytest.raises(ConflictError):
            workspace.commit()
        commit(workspace, how)
        files = [path for path in arena.base.rglob("*") if path.is_file()]
        assert {str(path.relative_to(arena.base)): path.read_text() for path in files} == expected

    on(kind, tmp_path, test)


@pytest.mark.parametrize("kind", COPIES)
def test_names_of_one_file_stay_one_file_when_the_first_is_given_up(kind: str, tmp_path: Path) -> None:
    def test(arena: Arena) -> None:
        (arena.base / "a").write_text("old\n")
        workspace = arena.open()

        def link(top: Path) -> None:
            (top / "a").write_text("mine\n")
            for name in "bc":
                os.link(top / "a", top / name)

        edit(arena, link)
        workspace.changes(noting=True)
        time.sleep(0.01)
        (arena.base / "a").write_text("hers\n")
        commit(workspace, "theirs")
        assert (arena.base / "a").read_text() == "hers\n" and (arena.base / "b").read_text() == "mine\n"
        assert (arena.base / "b").samefile(arena.base / "c")

    on(kind, tmp_path, test)


@pytest.mark.parametrize("how", ("back", *WINNERS))
def test_what_somebody_writes_after_a_path_was_judged_is_not_lost(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control is ``theirs``, which overwrites nothing, so it has nothing to refuse."""

    def test(arena: Arena) -> None:
        workspace = both_change(arena, theirs=LINES if how == "back" else THEIRS)
        monkeypatch.setattr(Settling, "_next", late)
        if how == "theirs":
            assert commit(workspace, how).theirs == ("text",)
        else:
            with pytest.raises(ConflictError) as caught:
                commit(workspace, "refuse" if how == "back" else how)
            assert caught.value.paths == ("text",) and (arena.base / "other").read_text() == "old\n"
        assert (arena.base / "text").read_text().endswith("precious\n")

    def late(settling: Settling, *judged: Any) -> Settled:
        settled = plain(settling, *judged)
        with (tmp_path / "base/text").open("a") as file:
            file.write("precious\n")
        return settled

    plain = Settling._next
    on("overlay", tmp_path, test)


# ---- modes of directories


def _closed_by_somebody(arena: Arena, mode: int = 0o755, theirs: int = 0o700) -> Workspace:
    """The program makes a file in a directory, and gives that a mode; then somebody else does."""
    (arena.base / "d").mkdir()
    (arena.base / "d").chmod(0o755)
    workspace = arena.open()
    edit(arena, lambda top: ((top / "d/new").write_text("x"), (top / "d").chmod(mode)))
    told(workspace)
    (arena.base / "d").chmod(theirs)
    return workspace


def _mode_and_names(folder: Path) -> tuple[int, list[str]]:
    return stat.S_IMODE(folder.stat().st_mode), os.listdir(folder)


@pytest.mark.parametrize("kind", COPIES)
@pytest.mark.parametrize("modes", ((0o755, 0o700), (0o755, 0o755), (0o711, 0o755), (0o700, 0o700)))
def test_a_directory_has_the_mode_of_whoever_changed_it(kind: str, modes: tuple[int, int], tmp_path: Path) -> None:
    def test(arena: Arena) -> None:
        workspace = _closed_by_somebody(arena, *modes)
        assert ("d" in told(workspace)) is (modes == (0o711, 0o755)), "the diff tells what a commit does"
        commit(workspace, "refuse")
        assert _mode_and_names(arena.base / "d") == (min(modes), ["new"])

    on(kind, tmp_path, test)


@pytest.mark.parametrize("kind", COPIES)
@pytest.mark.parametrize(("how", "mode"), (("refuse", 0), ("merge", 0), ("theirs", 0o700), ("mine", 0o711)))
def test_a_directory_whose_mode_both_changed_is_a_conflict(kind: str, how: str, mode: int, tmp_path: Path) -> None:
    def test(arena: Arena) -> None:
        workspace = _closed_by_somebody(arena, 0o711)
        if mode:
            commit(workspace, how)
            assert _mode_and_names(arena.base / "d") == (mode, ["new"])
            return
        with pytest.raises(ConflictError) as caught:
            commit(workspace, how)
        assert caught.value.paths == ("d",) and _mode_and_names(arena.base / "d") == (0o700, [])

    on(kind, tmp_path, test)


@pytest.mark.parametrize("theirs", (0o755, 0o700))
def test_a_directory_that_is_closed_while_files_are_made_is_noticed(theirs: int, tmp_path: Path) -> None:
    """The control: a mode that was set and is the same is nothing."""

    def test(arena: Arena) -> None:
        workspace = _closed_by_somebody(arena, theirs=0o755)
        planned = workspace.plan_commit()
        workspace.stage(planned)
        (arena.base / "d").chmod(theirs)
        with pytest.raises(ConflictError) if theirs == 0o700 else nullcontext():
            workspace.check_again(planned)

    on("overlay", tmp_path, test)


def test_what_an_earlier_version_noted_of_directories_is_read(tmp_path: Path) -> None:
    def test(arena: Arena) -> None:
        workspace = _closed_by_somebody(arena)
        workspace.store.write("folders", {"d": (arena.base / "d").stat().st_ino})
        workspace.close()
        again = arena.open()
        assert isinstance(again.layer, OverlayLayer) and again.layer.base_mode("d") is None
        commit(again, "refuse")
        assert _mode_and_names(arena.base / "d") == (0o755, ["new"])

    on("overlay", tmp_path, test)


# ---- several bases, and crashes


def _transaction(top: Path) -> tuple[Transaction, list[Path]]:
    bases = [top / "one", top / "two"]
    for base in bases:
        base.mkdir()
        (base / "text").write_text(LINES)
    tx = Transaction.create(top / "tx", bases, kind=SNAPSHOT)
    for base in bases:
        Path(tx.place(base), "text").write_text(MINE)
    tx.changes()
    for base in bases:
        (base / "text").write_text(THEIRS)
    return tx, bases


def test_a_transaction_decides_in_all_its_folders(tmp_path: Path) -> None:
    tx, bases = _transaction(tmp_path)
    with tx, pytest.raises(ConflictError) as caught:
        tx.commit()
    assert set(caught.value.paths) == {f"{base}/text" for base in bases}
    with Transaction.open(tmp_path / "tx") as again:
        done = again.commit(on_conflict="merge")
    assert set(done.merged) == {f"{base}/text" for base in bases}
    assert [(base / "text").read_text() for base in bases] == [BOTH, BOTH], "what they were is known after a restart"


@pytest.mark.parametrize("how", WINNERS)
def test_a_decided_commit_that_was_killed_is_finished(how: str, tmp_path: Path) -> None:
    tx, bases = _transaction(tmp_path)
    tx.close()

    def killed() -> None:
        from ringfence.checkpoint.commit.originals import Originals

        Originals.drop = lambda *_: os._exit(9)  # type: ignore[method-assign,assignment]
        Transaction.open(tmp_path / "tx").commit(bases[:1], on_conflict=how)

    assert os.waitstatus_to_exitcode(in_child(killed)) == 9
    with Transaction.open(tmp_path / "tx") as again:
        assert (bases[0] / "text").read_text() == WINNERS[how]
        assert [each.path for each in again.changes()] == [f"{bases[1]}/text"]


def test_what_is_decided_while_something_works_on_it_is_refused(tmp_path: Path) -> None:
    tx, bases = _transaction(tmp_path)
    with tx:
        for wrong in ({"mounted": True}, {"sealed": tx.seal()}):
            with pytest.raises(UsageError):
                tx.commit(on_conflict="mine", **wrong)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="everybody"):
            tx.commit(on_conflict="everybody")
    assert (bases[0] / "text").read_text() == THEIRS


def test_a_decision_that_was_killed_before_anything_was_done_leaves_the_checkpoints(tmp_path: Path) -> None:
    base = tmp_path / "base"
    base.mkdir()
    (base / "text").write_text(LINES)
    transaction = Transaction.create(tmp_path / "transaction", [base], kind=SNAPSHOT)
    transaction.create_checkpoint("before")
    Path(transaction.place(base), "text").write_text(MINE)
    transaction.changes()
    time.sleep(0.01)
    (base / "text").write_text(THEIRS)
    killed = os.fork()
    if not killed:
        Workspace.carry_out = lambda *_: os._exit(9)  # type: ignore[assignment]
        try:
            transaction.commit(on_conflict="mine")
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(killed, 0)[1]) == 9
    transaction.close()
    with pytest.raises(ConflictError):
        Transaction.open(tmp_path / "transaction")
    with Transaction.open(tmp_path / "transaction") as again:
        assert (base / "text").read_text() == THEIRS
        assert [checkpoint.name for checkpoint in again.checkpoints()] == ["before"]
        again.commit(on_conflict="mine")
        assert (base / "text").read_text() == MINE and not again.checkpoints()


# ---- git


def _fake_git(folder: Path, text: str = "exit 0") -> None:
    folder.mkdir(exist_ok=True)
    (folder / "git").write_text(f"#!/bin/sh\n{text}\n")
    (folder / "git").chmod(0o755)


def test_no_git_is_taken_from_where_the_program_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _fake_git(tmp_path / "bin", "echo planted")
    real = os.environ["PATH"]
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{real}")
    texts = MINE.encode(), LINES.encode(), THEIRS.encode()
    assert three_way.merged(*texts, without=()) == b"planted\n", "the control: it is the first on the path"
    assert three_way.merged(*texts, without=(str(tmp_path),)) == BOTH.encode()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"bin::{real}")
    assert three_way.merged(*texts, without=()) == BOTH.encode(), "nor from the current directory"


def test_no_git_is_taken_from_the_other_folder_of_the_transaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a job wrote into one directory, and was committed, must not merge the texts of the other."""
    tx, (one, two) = _transaction(tmp_path)
    _fake_git(two / "bin", "echo planted")
    monkeypatch.setenv("PATH", f"{two}/bin:{os.environ['PATH']}")
    texts = MINE.encode(), LINES.encode(), THEIRS.encode()
    assert three_way.merged(*texts, without=(str(one),)) == b"planted\n", "the control: it is the first on the path"
    with tx:
        assert tx.commit([one], on_conflict="merge").merged == (f"{one}/text",)
    assert (one / "text").read_text() == BOTH


@pytest.mark.parametrize("entry", ["base/bin", "base/folder", "link", "outside"])
def test_no_link_that_the_program_writes_chooses_git(
    entry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program elsewhere that ends well and prints nothing would make an empty file of both."""
    for folder in ("base/bin", "outside", "programs"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "programs/git").symlink_to("/bin/true")
    (tmp_path / "base/bin/git").symlink_to("/bin/true")
    (tmp_path / "base/folder").symlink_to(tmp_path / "programs")
    (tmp_path / "link").symlink_to("base/bin")
    (tmp_path / "outside/git").symlink_to("../base/bin/git")
    monkeypatch.setenv("PATH", f"{tmp_path}/{entry}:{os.environ['PATH']}")
    texts = MINE.encode(), LINES.encode(), THEIRS.encode()
    assert three_way.merged(*texts, without=()) == b"", "the control: it is the first on the path"
    assert three_way.merged(*texts, without=(str(tmp_path / "base"),)) == BOTH.encode()


def test_a_link_to_itself_is_no_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "git").symlink_to("git")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert three_way.merged(b"a", b"b", b"c", without=()) == three_way.NO_GIT


def test_without_git_that_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert three_way.merged(b"a", b"b", b"c", without=()) == three_way.NO_GIT


def test_git_takes_no_setting_of_anybody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A repository around the private directory, the home and the variables could each name another way to merge."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git/HEAD").write_text("garbage")
    (tmp_path / ".git/config").write_text("[broken\n")
    for name in ("GIT_DIR", "GIT_CONFIG", "GIT_CONFIG_PARAMETERS", "GIT_EXEC_PATH"):
        monkeypatch.setenv(name, str(tmp_path / "nowhere"))
    merged = three_way.merged(MINE.encode(), LINES.encode(), THEIRS.encode(), without=())
    assert merged == BOTH.encode()
    assert [path.name for path in left_in(tmp_path)] == [".git"], "the copies are gone"


def test_a_change_in_the_second_of_the_opening_counts_where_only_seconds_are_kept(tmp_path: Path) -> None:
    """As on ext3, and on ext4 with small inodes."""

    def test(arena: Arena) -> None:
        layer, second = arena.open().layer, 10**9
        assert isinstance(layer, OverlayLayer)
        layer._since_ns = 1_000 * second + second // 2
        times = (1_000 * second, 999 * second, 1_000 * second + 1, layer._since_ns)
        assert [layer._is_younger("text", (1, 1, 1, ctime, 1, 1)) for ctime in times] == [True, False, False, True]

    on("overlay", tmp_path, test)
