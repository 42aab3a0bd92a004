"""What a transaction over several directories promises, one sentence a test, on both kinds of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from undo_arena import enter, in_child, look

from ringfence.checkpoint.layer import Committed, Planned
from ringfence.checkpoint.transaction import OVERLAY, SNAPSHOT, Transaction
from ringfence.checkpoint.workspace import Workspace
from ringfence.errors import BusyError, CheckpointError, ConflictError, UsageError
from ringfence.kernel import syscalls

pytestmark = [pytest.mark.system, pytest.mark.privileges, pytest.mark.unmeasured]

KINDS = (OVERLAY, SNAPSHOT)
ODD = "new\nline", os.fsdecode(b"\xff\xfe"), "a b'\"$(x)"


class Ground:
    """Bases, a transaction over them, and a program's view of each base."""

    def __init__(self, kind: str, top: Path, names: tuple[str, ...] = ("one", "two", "three")) -> None:
        self.kind, self.top, self.names = kind, top, names
        self.bases = [top / name for name in names]
        for base in self.bases:
            base.mkdir(exist_ok=True)
            (base / "old").write_text("old\n")
            (base / "gone").write_text("gone\n")
        self.tx = Transaction.create(top / "tx", self.bases, kind=kind)

    @classmethod
    def over(cls, kind: str, base: Path, folder: Path, hidden: Iterable[str] = ()) -> Ground:
        """One base that is there already, and a transaction of its own."""
        ground = cls.__new__(cls)
        ground.kind, ground.top, ground.bases = kind, base.parent, [base]
        ground.tx = Transaction.create(folder, [base], kind=kind, hidden=list(hidden))
        return ground

    def reopen(self) -> Transaction:
        self.tx.close()
        self.tx = Transaction.open(self.top / "tx")
        return self.tx

    def edit(self, change: Callable[[Path], object], *numbers: int) -> None:
        """As a program does it, in all bases or some."""
        for number in numbers or range(len(self.bases)):
            self.within(number, change)

    def within(self, number: int, change: Callable[[Path], object]) -> None:
        base, layer = self.tx.layers[number]
        if self.kind == SNAPSHOT:
            change(Path(self.tx.place(base)))
            return
        seen = self.top / "seen"
        seen.mkdir(exist_ok=True)
        (self.top / "low").symlink_to(base)  # a name without colons and commas
        options = f"lowerdir={self.top}/low,upperdir={layer}/upper,workdir={layer}/work,userxattr"
        syscalls.call("mount", b"overlay", os.fsencode(seen), b"overlay", 0, os.fsencode(options))
        (self.top / "low").unlink()
        try:
            change(seen)
        finally:
            syscalls.call("umount2", os.fsencode(seen), 0)

    def views(self) -> list[dict[str, bytes]]:
        found: list[dict[str, bytes]] = []
        self.edit(lambda top: found.append(texts(top)))
        return found


def texts(top: Path) -> dict[str, bytes]:
    return {path: row[3] for path, row in look(top)[0].items() if row[0] == "file"}


def on(kind: str, top: Path, test: Callable[[Ground], None], names: tuple[str, ...] = ("one", "two", "three")) -> None:
    def inside() -> None:
        enter(kind)
        test(Ground(kind, top, names))

    assert in_child(inside) == 0


def change(text: str) -> Callable[[Path], object]:
    def work(top: Path) -> None:
        (top / "old").write_text(text)
        (top / "new").write_text(text)
        (top / "gone").unlink(missing_ok=True)

    return work


@pytest.mark.parametrize("kind", KINDS)
def test_state_lives_on_disk_and_one_commit_carries_all_of_it(kind: str, tmp_path: Path) -> None:
    def test(ground: Ground) -> None:
        ground.edit(change("ours\n"))
        before = ground.views()
        tx = ground.reopen()
        assert ground.views() == before
        told = {each.path: str(each.kind) for each in tx.changes()}
        kinds = {"old": "modified", "new": "added", "gone": "deleted"}
        assert told == {f"{base}/{name}": kind for base in ground.bases for name, kind in kinds.items()}
        assert all((base / "old").read_text() == "old\n" for base in ground.bases), "nothing is written before"
        done = tx.commit()
        assert set(done.paths) == set(told) and not done.left
        assert [texts(base) for base in ground.bases] == before
        assert ground.reopen().changes() == ()

    on(kind, tmp_path, test)


@pytest.mark.parametrize("kind", KINDS)
def test_one_id_names_a_checkpoint_in_all_bases(kind: str, tmp_path: Path) -> None:
    def test(ground: Ground) -> None:
        empty = ground.tx.create_checkpoint("empty", {"step": 0})
        ground.edit(change("1"))
        first = ground.tx.create_checkpoint("first", {"step": 1})
        assert {*first.layer} == {f"{base}/{name}" for base in ground.bases for name in ("old", "new", "gone")}
        ground.edit(change("2"), 0, 2)
        tx = ground.reopen()
        assert tx.current == first.checkpoint_id
        back = tx.rollback(first.checkpoint_id)
        assert (back.files_restored, back.state_data, back.partial) == (4, {"step": 1}, False)
        assert [view["old"] for view in ground.views()] == [b"1"] * 3
        assert tx.rollback(empty.checkpoint_id).state_data == {"step": 0} and tx.changes() == ()
        tx.rollback(first.checkpoint_id)  # forward again
        assert [view["old"] for view in ground.views()] == [b"1"] * 3
        assert [each.name for each in tx.checkpoints()] == ["empty", "first"]
        tx.delete_checkpoint(empty.checkpoint_id)
        with pytest.raises(CheckpointError, match="no checkpoint"):
            tx.rollback(empty.checkpoint_id)
        assert tx.discard() == 9 and tx.changes() == () and tx.current == first.checkpoint_id
        assert tx.collect(0) == [], "the current one stays"
        tx.create_checkpoint("last")
        for wrong in (-1, float("nan"), 1.5, "9", None, True):
            with pytest.raises(UsageError, match="max_bytes"):
                tx.collect(wrong)  # type: ignore[arg-type]
        assert [each.name for each in tx.checkpoints()] == ["first", "last"]

    on(kind, tmp_path, test)


@pytest.mark.parametrize("kind", KINDS)
def test_checkpoints_are_collected_oldest_first_until_the_rest_fits(kind: str, tmp_path: Path) -> None:
    def test(ground: Ground) -> None:
        tx, made = ground.tx, []
        for _ in range(5):
            ground.edit(lambda top: (top / "own").write_bytes(os.urandom(100_000)), 0, 1)
            made.append(tx.create_checkpoint().checkpoint_id)
        tx.rollback(made[0])
        assert tx.collect(750_000) == made[1:3], "the current one stays though it is the oldest"
        assert tx.used_bytes() <= 750_000
        assert tx.collect(1_300_000, lambda: 750_000) == made[3:4], "what else goes with them counts"
        assert tx.collect(0) == made[4:] and [each.checkpoint_id for each in tx.checkpoints()] == made[:1]

    on(kind, tmp_path, test)


@pytest.mark.parametrize("kind", KINDS)
def test_chosen_paths_of_several_bases_are_carried_over_or_undone(kind: str, tmp_path: Path) -> None:
    def test(ground: Ground) -> None:
        one, two, three = ground.bases
        made = ground.tx.create_checkpoint()
        ground.edit(change("ours"))
        link = ground.top / "link"
        link.symlink_to(two)
        back = ground.tx.rollback(made.checkpoint_id, [f"{one}/new", f"{link}/gone"])
        assert back.partial and back.state_data is None and back.files_restored == 2
        left = {each.path for each in ground.tx.changes()}
        assert left == {f"{b}/{n}" for b in ground.bases for n in ("old", "new", "gone")} - {
            f"{one}/new", f"{two}/gone"}  # fmt: skip
        done = ground.tx.commit([str(three), f"{one}/old"])
        assert set(done.paths) == {f"{one}/old", *(f"{three}/{name}" for name in ("old", "new", "gone"))}
        assert texts(three) == {"old": b"ours", "new": b"ours"}
        assert texts(one) == {"old": b"ours", "gone": b"gone\n"} and texts(two) == {"old": b"old\n", "gone": b"gone\n"}
        assert ground.tx.checkpoints() == [] and ground.tx.current == "", "a commit ends the history, in all bases"
        assert {each.path for each in ground.tx.changes()} == {f"{one}/gone", f"{two}/old", f"{two}/new"}
        assert ground.tx.commit([]).paths == ()

    on(kind, tmp_path, test)


@pytest.mark.parametrize("kind", KINDS)
def test_a_conflict_in_the_last_base_leaves_the_first_as_it_was(kind: str, tmp_path: Path) -> None:
    def test(ground: Ground) -> None:
        ground.edit(change("ours"))
        (ground.bases[1] / "new").write_text("hers")
        (ground.bases[2] / "old").write_text("hers")
        before = [texts(base) for base in ground.bases]
        with pytest.raises(ConflictError) as caught:
            ground.tx.commit()
        assert set(caught.value.paths) == {f"{ground.bases[1]}/new", f"{ground.bases[2]}/old"}
        assert [texts(base) for base in ground.bases] == before
        ground.tx.commit([ground.bases[0]])  # a Path does, too
        assert (ground.bases[0] / "old").read_text() == "ours"

    on(kind, tmp_path, test)


STEPS = ("rename", "replace", "unlink", "rmdir", "mkdir", "link", "symlink", "mknod", "utime", "chown", "setxattr")


def _kill_at(count: int) -> Callable[[], int]:
    """From now on the ``count``-th call that changes something ends this process, before it is done."""
    done = 0

    def guard(call: Callable[..., object]) -> Callable[..., object]:
        def work(*args: object, **kwargs: object) -> object:
            nonlocal done
            done += 1
            if done == count:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*args, **kwargs)

        return work

    for name in STEPS:
        setattr(os, name, guard(getattr(os, name)))
    return lambda: done


def _operate(top: Path, operation: str, count: int) -> int:
    """Do it in another process that is killed at a step; how many steps it did, or 0 where it was killed."""
    read, write = os.pipe()

    def work() -> None:
        tx = Transaction.open(top / "tx")
        argument = (tx.checkpoints()[0].checkpoint_id,) if operation == "rollback" else ()
        steps = _kill_at(count)
        getattr(tx, operation)(*argument)
        os.write(write, b"%d" % steps())

    status = in_child(work)
    os.close(write)
    told = os.read(read, 20)
    os.close(read)
    assert status in (0, signal.SIGKILL)
    return int(told or b"0")


def _states(ground: Ground) -> list[list[dict[str, bytes]]]:
    return [[texts(base) for base in ground.bases], ground.views()]


@pytest.mark.parametrize("operation", ("commit", "rollback", "discard"))
@pytest.mark.parametrize("kind", KINDS)
def test_a_kill_at_any_step_leaves_the_old_or_the_new_state_in_all_bases(
    kind: str, operation: str, tmp_path: Path
) -> None:
    every = 1 if os.environ.get("RINGFENCE_LONG") else 7

    def test_one(top: Path, count: int) -> Callable[[Ground], None]:
        def test(ground: Ground) -> None:
            ground.edit(change("1"), 0)
            ground.tx.create_checkpoint()
            ground.edit(change("2"))
            old = _states(ground)
            ground.tx.close()
            steps = _operate(top, operation, count)
            ground.tx = Transaction.open(top / "tx")
            now = _states(ground)
            new = _expected(operation, old)
            assert now in (old, new), count
            assert not (top / "tx/journal.json").exists()
            assert not [p for b in ground.bases for p in b.iterdir() if p.name.startswith(".ringfence")]
            if steps:
                assert now == new
                (top / "finished").write_text(str(steps))

        return test

    count = 1
    while not list(tmp_path.glob("*/finished")):
        top = tmp_path / str(count)
        top.mkdir()
        on(kind, top, test_one(top, count))
        count += every
    assert count > 10, "there were steps to be killed at"


def _expected(operation: str, old: list[list[dict[str, bytes]]]) -> list[list[dict[str, bytes]]]:
    bases, views = old
    plain = {"old": b"old\n", "gone": b"gone\n"}
    if operation == "commit":
        return [views, views]
    if operation == "discard":
        return [bases, [plain] * 3]
    return [bases, [{"old": b"1", "new": b"1"}, plain, plain]]


def test_after_a_crash_what_somebody_else_changed_is_theirs_and_named_once(tmp_path: Path) -> None:
    def test(ground: Ground) -> None:
        ground.edit(change("ours"))
        ground.tx.close()
        assert in_child(lambda: _commit_and_die_after_one(ground.top)) == signal.SIGKILL
        assert [(base / "old").read_text() for base in ground.bases] == ["ours", "old\n", "old\n"]
        (ground.bases[2] / "old").write_text("hers")
        with pytest.raises(ConflictError) as caught:
            Transaction.open(ground.top / "tx")
        assert caught.value.paths == (f"{ground.bases[2]}/old",)
        ground.tx = Transaction.open(ground.top / "tx")
        assert (ground.bases[2] / "old").read_text() == "hers"
        assert (ground.bases[1] / "old").read_text() == "ours"
        assert f"{ground.bases[2]}/old" in {each.path for each in ground.tx.changes()}, "ours is not lost"

    on(SNAPSHOT, tmp_path, test)


def _commit_and_die_after_one(top: Path) -> None:
    carry_out = Workspace.carry_out

    def once(self: Workspace, planned: Planned) -> Committed:
        if not self.base.path.endswith("one"):
            os.kill(os.getpid(), signal.SIGKILL)
        return carry_out(self, planned)

    Workspace.carry_out = once  # type: ignore[method-assign]
    Transaction.open(top / "tx").commit()


HOLD = """
import sys, time
from ringfence.checkpoint.transaction import Transaction
tx = Transaction.open(sys.argv[1])
print("held", flush=True)
time.sleep(60)
"""


def test_one_process_at_a_time_and_the_error_names_the_other(tmp_path: Path) -> None:
    Transaction.create(tmp_path / "tx", [], kind=SNAPSHOT).close()
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path / "tx")], stdout=subprocess.PIPE)
    try:
        assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
        with pytest.raises(BusyError, match=str(holder.pid)) as caught:
            Transaction.open(tmp_path / "tx")
        assert caught.value.pid == holder.pid
    finally:
        holder.kill()
        holder.communicate()
    with Transaction.open(tmp_path / "tx"), pytest.raises(BusyError, match=str(os.getpid())):
        Transaction.open(tmp_path / "tx")


def test_a_forked_child_does_not_keep_the_lock(tmp_path: Path) -> None:
    tx = Transaction.create(tmp_path / "tx", [], kind=SNAPSHOT)
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    try:
        tx.close()
        Transaction.open(tmp_path / "tx").close()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_who_opens_it_waits_for_what_a_killed_holder_had_running(tmp_path: Path) -> None:
    tx = Transaction.create(tmp_path / "tx", kind=SNAPSHOT)
    private = tmp_path / "0123456789abcdef"
    private.mkdir()

    def hold() -> None:
        Transaction.open(tmp_path / "tx").note_box(str(private))
        os.kill(os.getpid(), signal.SIGKILL)

    tx.close()
    assert in_child(hold) == signal.SIGKILL
    ending = threading.Timer(0.3, private.rmdir)
    ending.start()
    Transaction.open(tmp_path / "tx").close()
    assert not private.exists(), "it was there until a moment ago"
    ending.join()
    (tmp_path / "private").mkdir()
    Transaction.open(tmp_path / "tx").close()  # once, and not for ever


@pytest.mark.parametrize("kind", KINDS)
def test_folders_with_odd_names_do(kind: str, tmp_path: Path) -> None:
    def test(ground: Ground) -> None:
        ground.edit(change("ours\n"))
        tx = ground.reopen()
        tx.create_checkpoint()
        assert "+ours" in tx.diff(f"{ground.bases[0]}/old")
        assert tx.diff().count("+ours") == 2 * len(ground.bases)
        tx.commit([f"{ground.bases[1]}/old"])
        assert (ground.bases[1] / "old").read_text() == "ours\n"

    on(kind, tmp_path, test, names=ODD)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_hidden_is_reached_by_no_commit(kind: str, tmp_path: Path) -> None:
    def inside() -> None:
        enter(kind)
        base = tmp_path / "one"
        (base / "d").mkdir(parents=True)
        (base / "d/key").write_text("secret")
        ground = Ground.over(kind, base, tmp_path / "tx", hidden=[str(base / "d/key")])
        assert kind == OVERLAY or not (Path(ground.tx.place(str(base))) / "d/key").exists()

        def attack(top: Path) -> None:
            (top / "d").mkdir(exist_ok=True)
            (top / "d/key").unlink(missing_ok=True)
            (top / "d/key").write_text("planted")
            (top / "d/plain").write_text("ours")

        ground.edit(attack)
        assert {each.path for each in ground.tx.changes()} == {f"{base}/d/plain"}
        ground.reopen().commit()
        assert texts(base) == {"d/key": b"secret", "d/plain": b"ours"}

    assert in_child(inside) == 0


def test_the_control_of_hidden_paths_one_that_is_not_hidden_is_overwritten(tmp_path: Path) -> None:
    base = tmp_path / "one"
    base.mkdir()
    (base / "key").write_text("secret")
    with Transaction.create(tmp_path / "tx", [base], kind=SNAPSHOT) as tx:
        (Path(tx.place(str(base))) / "key").write_text("planted")
        tx.commit()
    assert (base / "key").read_text() == "planted"


@pytest.mark.parametrize("kind", KINDS)
def test_a_transaction_may_lie_in_its_own_base_and_is_no_part_of_it(kind: str, tmp_path: Path) -> None:
    def inside() -> None:
        enter(kind)
        base = tmp_path / "repo"
        (base / "sandboxes").mkdir(parents=True)
        (base / "file").write_text("old")
        ground = Ground.over(kind, base, base / "sandboxes/tx")
        ground.edit(lambda top: (top / "file").write_text("new"))
        ground.tx.create_checkpoint()
        assert [each.path for each in ground.tx.changes()] == [f"{base}/file"]
        assert not list((base / "sandboxes/tx/checkpoints").rglob("transaction.json")), "it did not copy itself"
        ground.tx.commit()
        assert (base / "file").read_text() == "new"

    assert in_child(inside) == 0


def test_without_bases_it_lies_over_a_private_folder(tmp_path: Path) -> None:
    with Transaction.create(tmp_path / "tx", kind=SNAPSHOT) as tx:
        assert tx.bases == (str(tmp_path / "tx/workspace"),)
        (Path(tx.place(tx.bases[0])) / "a").write_text("x")
        assert [each.path for each in tx.changes()] == [f"{tmp_path}/tx/workspace/a"]
        tx.commit(["a"])
        assert (tmp_path / "tx/workspace/a").read_text() == "x"


@pytest.mark.parametrize("names", (("a", "a"), ("a", "a/b"), ("a/b", "a"), ("a", "link"), ("a", "tx/x"), ("none",)))
def test_bases_that_lie_in_one_another_are_refused(names: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "tx/x").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "a/b")
    with pytest.raises(UsageError):
        Transaction.create(tmp_path / "tx", [tmp_path / name for name in names])
    Transaction.create(tmp_path / "tx2", [tmp_path / "a"]).close()  # the control


def test_a_link_in_place_of_the_folder_is_refused_and_a_link_above_it_is_not(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "above").symlink_to(tmp_path / "real")
    Transaction.create(tmp_path / "above/tx", kind=SNAPSHOT).close()
    (tmp_path / "other").symlink_to(tmp_path / "real/tx")
    for reach in (Transaction.open, Transaction.create):
        with pytest.raises(UsageError, match="link"):
            reach(tmp_path / "other")
    with Transaction.open(tmp_path / "above/tx") as tx:
        assert tx.folder == str(tmp_path / "real/tx")


def test_somebody_elses_folder_is_refused(tmp_path: Path) -> None:
    Transaction.create(tmp_path / "tx", kind=SNAPSHOT).close()
    Transaction.open(tmp_path / "tx").close()  # the control
    if os.geteuid() == 0:
        os.chown(tmp_path / "tx", 12345, 12345)
    with pytest.raises(UsageError, match="another user"):
        Transaction.open(tmp_path / "tx" if os.geteuid() == 0 else "/usr")


DAMAGED = (
    "",
    "{}",
    "[]",
    '{"version": 2, "kind": "overlay", "bases": [], "hidden": []}',
    '{"version": 1, "kind": "overlay", "bases": ["relative"], "hidden": []}',
)


@pytest.mark.parametrize("text", DAMAGED)
def test_a_damaged_document_is_a_clear_error(text: str, tmp_path: Path) -> None:
    Transaction.create(tmp_path / "tx", kind=SNAPSHOT).close()
    (tmp_path / "tx/transaction.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"transaction\.json"):
        Transaction.open(tmp_path / "tx")
    with pytest.raises(CheckpointError, match="no transaction"):
        Transaction.open(tmp_path / "nothing")


@pytest.mark.parametrize("path", ("/etc/passwd", "../x", "/", "", "x"))
def test_a_path_outside_all_bases_is_refused(path: str, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    with Transaction.create(tmp_path / "tx", [tmp_path / "a", tmp_path / "b"]) as tx, pytest.raises(UsageError):
        tx.commit([path])


def test_a_base_that_was_swapped_for_another_folder_is_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    Transaction.create(tmp_path / "tx", [tmp_path / "a"]).close()
    (tmp_path / "a").rename(tmp_path / "c")
    (tmp_path / "b").rename(tmp_path / "a")
    with pytest.raises(CheckpointError, match="was replaced"):
        Transaction.open(tmp_path / "tx")
    Path(tmp_path / "a").rename(tmp_path / "b")
    Path(tmp_path / "c").rename(tmp_path / "a")
    Transaction.open(tmp_path / "tx").close()


def test_what_a_job_gave_to_the_top_itself_is_gone_after_a_rollback(tmp_path: Path) -> None:
    """Its mode and notes are part of no layer, and a later job would find them."""
    (tmp_path / "base").mkdir()
    with Transaction.create(tmp_path / "kept", [tmp_path / "base"]) as made:
        upper = Path(made.layers[0][1]) / "upper"
        before, mark = upper.stat().st_mode, made.create_checkpoint("empty")
        for undo in (lambda: made.rollback(mark.checkpoint_id), made.discard):
            upper.chmod(0o703)
            os.setxattr(upper, "user.note", b"of a run that was undone")
            undo()
            assert upper.stat().st_mode == before and "user.note" not in os.listxattr(upper)
