"""Boxes and runs over a transaction: its layers outlive them, on every level that has them."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import ringfence
from ringfence import Job, Outcome, SandboxPolicy, UsageError, run
from ringfence.checkpoint.transaction import OVERLAY, SNAPSHOT, Transaction
from ringfence.engine.run import transaction_kind
from ringfence.errors import BusyError, ConflictError

pytestmark = [pytest.mark.system, pytest.mark.privileges]

LEVELS = ("strict", "process")
ROOT = os.geteuid() == 0
OWNERS = {"one": 1234, "two": 4321}


class Ground:
    """Two directories and a transaction over them, under a policy."""

    def __init__(self, level: str, top: Path) -> None:
        self.policy = SandboxPolicy(isolation=level, wall_time_s=30)
        self.top = top
        self.bases = tuple(top / name for name in OWNERS)
        for base in self.bases:
            base.mkdir()
            (base / "old").write_text("old\n")
            if ROOT:
                for path in (base, base / "old"):
                    os.chown(path, OWNERS[base.name], OWNERS[base.name])
        self.tx = Transaction.create(top / "tx", self.bases, kind=transaction_kind(self.policy))

    def place(self, number: int) -> str:
        return self.tx.place(str(self.bases[number]))

    def shell(self, text: str, **options: object) -> bytes:
        """One run; ``$1`` and ``$2`` are the directories as the job sees them."""
        argv = ("sh", "-ec", text, "sh", self.place(0), self.place(1))
        outcome = run(Job(argv=argv, **options), self.policy, transaction=self.tx)  # type: ignore[arg-type]
        assert outcome.ok, (outcome.reason, outcome.stderr)
        return outcome.stdout

    def told(self) -> dict[str, str]:
        return {os.path.relpath(each.path, self.top): str(each.kind) for each in self.tx.changes()}


@pytest.fixture(params=LEVELS)
def ground(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ground]:
    tmp_path.chmod(0o755)
    made = Ground(request.param, tmp_path)
    yield made
    made.tx.close()


@pytest.fixture
def strict(tmp_path: Path) -> Iterator[Ground]:
    tmp_path.chmod(0o755)
    made = Ground("strict", tmp_path)
    yield made
    made.tx.close()


CHANGE = "echo more >> $1/old; mkdir $2/d; echo new > $2/d/new; rm $2/old"


def test_state_lives_between_runs_and_boxes(ground: Ground) -> None:
    ground.shell(CHANGE)
    assert ground.shell("cat $1/old $2/d/new; ls $2") == b"old\nmore\nnew\nd\n"
    with ringfence.open(ground.policy, transaction=ground.tx) as box:
        assert box.get("old") == b"old\nmore\n"
        box.put("put", b"in")
        assert box.run(["sh", "-c", "echo again >> old; cat old put"]).stdout == b"old\nmore\nagain\nin"
        assert len(box.changes()) == 5
    assert ground.shell("cat old", cwd=str(ground.bases[0])) == b"old\nmore\nagain\n"
    assert [(base / "old").read_text() for base in ground.bases] == ["old\n"] * 2, "the bases were not written"
    assert ground.told() == {
        "one/old": "modified", "one/put": "added", "two/d": "added", "two/d/new": "added", "two/old": "deleted",
    }  # fmt: skip


LATER = r"""
import sys
from ringfence import SandboxPolicy, run
from ringfence.checkpoint.transaction import Transaction
with Transaction.open(sys.argv[1]) as tx:
    text = "cat d/new; echo 2 >> d/new; chmod 700 d; mv d e; ln e/new hard; rmdir empty; stat -c %u e hard"
    done = run(["sh", "-ec", text], SandboxPolicy(isolation="strict"), transaction=tx)
    print(done.stdout.decode() + done.stderr.decode(), end="")
"""


def test_what_an_earlier_process_left_is_the_next_ones_own(strict: Ground) -> None:
    """As root every caller's sandboxes have another id on the host."""
    strict.shell("cd $1; mkdir d empty; echo 1 > d/new; id -u")
    strict.tx.close()
    later = subprocess.run([sys.executable, "-c", LATER, strict.tx.folder], capture_output=True, text=True)
    job = 1000 if ROOT else os.getuid()
    assert later.stdout == f"1\n{job}\n{job}\n", later.stderr
    strict.tx = Transaction.open(strict.top / "tx")
    assert strict.shell("cat $1/e/new $1/hard") == b"1\n2\n1\n2\n"
    if ROOT:
        owners = {path.lstat().st_uid for path in Path(strict.tx.layers[0][1], "upper").rglob("*")}
        assert len(owners) == 1 and owners.isdisjoint({0, *OWNERS.values()}), "one id on disk, and nobody's"


def test_rollback_restores_and_discard_drops(ground: Ground) -> None:
    ground.shell("echo 1 > $1/file; echo 1 > $2/file")
    made = ground.tx.create_checkpoint("first", {"step": 1})
    ground.shell("echo 2 > $1/file; rm -r $2/file; rm $1/old; mkdir $1/old; echo 2 > $1/old/in")
    assert ground.tx.rollback(made.checkpoint_id).state_data == {"step": 1}
    assert ground.shell("cat $1/file $2/file $1/old") == b"1\n1\nold\n"
    ground.shell("echo 3 >> $1/file; echo 3 > $2/more; chmod 600 $1/old")  # what was restored is the job's own
    assert ground.tx.discard() == 4
    assert ground.shell("cat $1/*; ls $2") == b"old\nold\n"


def test_a_commit_carries_over_with_each_bases_owner(ground: Ground) -> None:
    ground.shell(CHANGE)
    ground.tx.commit()
    one, two = ground.bases
    assert (one / "old").read_text() == "old\nmore\n" and (two / "d/new").read_text() == "new\n"
    assert not (two / "old").exists()
    for path in (one / "old", two / "d", two / "d/new"):
        owner = OWNERS["one" if one in path.parents else "two"] if ROOT else os.getuid()
        assert path.stat().st_uid == owner, path
    assert ground.shell("cat $1/old $2/d/new") == b"old\nmore\nnew\n" and ground.told() == {}


def test_a_box_commits_through_its_transaction_and_goes_on(ground: Ground) -> None:
    with ringfence.open(ground.policy, str(ground.bases[1]), transaction=ground.tx) as box:
        box.run(["sh", "-c", "echo 1 > file"])
        box.commit()
        assert (ground.bases[1] / "file").read_text() == "1\n"
        assert box.changes() == ()
        box.run(["sh", "-c", "echo 2 >> file"])
        assert [each.path for each in box.changes()] == [str(ground.bases[1] / "file")]
    assert (ground.bases[1] / "file").read_text() == "1\n"
    assert run(["true"], ground.policy, transaction=ground.tx, commit=True).committed
    assert (ground.bases[1] / "file").read_text() == "1\n2\n"


@pytest.mark.parametrize("what", ["commit", "discard", "rollback"])
def test_layers_are_not_emptied_under_an_open_box(strict: Ground, what: str) -> None:
    """What its processes wrote after that was lost without a word."""
    tx = strict.tx
    at = tx.create_checkpoint().checkpoint_id
    change = {"commit": tx.commit, "discard": tx.discard, "rollback": lambda: tx.rollback(at)}[what]
    with ringfence.open(strict.policy, transaction=strict.tx) as box:
        box.run(["sh", "-c", "echo 1 > file"])
        with pytest.raises(BusyError, match="a box is open") as caught:
            change()
        assert "close it first" in caught.value.hint
        assert strict.told() == {"one/file": "added"}
        tx.seal()
        tx.unseal()
        tx.create_checkpoint()
    change()
    assert strict.told() == {} and (strict.bases[0] / "file").exists() is (what == "commit")


def test_what_somebody_else_changed_is_a_conflict_and_nothing_is_written(ground: Ground) -> None:
    ground.shell(CHANGE)
    (ground.bases[0] / "old").write_text("hers\n")
    with pytest.raises(ConflictError) as caught:
        ground.tx.commit()
    assert caught.value.paths == (str(ground.bases[0] / "old"),)
    assert not (ground.bases[1] / "d").exists()
    ground.tx.commit([str(ground.bases[1])])
    assert (ground.bases[1] / "d/new").exists()


@pytest.mark.parametrize("later", (False, True))
def test_a_commit_does_not_reach_what_was_hidden_from_any_run(strict: Ground, later: bool) -> None:
    key = strict.bases[0] / "d/key"
    key.parent.mkdir()
    key.write_text("secret")
    for path in (key, key.parent):
        os.chown(path, *(os.stat(strict.bases[0])[4:6]))
    plain, hiding = strict.policy, SandboxPolicy(isolation="strict", hidden_paths=(str(key),))
    strict.policy = plain if later else hiding
    assert (b"secret" in strict.shell("cat $1/d/* || true")) is later
    strict.policy = hiding if later else plain  # once hidden it stays hidden
    assert strict.shell("ls $1/d") == b""
    strict.shell("echo planted > $1/d/key; echo plain > $1/d/plain; rm -rf $1/d; mkdir $1/d; echo 2 > $1/d/plain")
    assert "one/d/key" not in strict.told()
    strict.tx.commit()
    assert key.read_text() == "secret" and (key.parent / "plain").read_text() == "2\n"


def test_what_is_hidden_later_is_not_in_the_layer_and_does_not_come_back(strict: Ground) -> None:
    key = strict.bases[0] / "key"
    key.write_text("secret")
    os.chown(key, *(os.stat(strict.bases[0])[4:6]))
    copied = "chmod 600 $1/key; ln $1/key $1/second; mkdir $1/d; mv $1/second $1/d/other; ls $1"
    assert strict.shell(copied) == b"d\nkey\nold\n", "the layer has a copy now"
    made = strict.tx.create_checkpoint()
    strict.policy = SandboxPolicy(isolation="strict", hidden_paths=(str(key), str(strict.bases[0] / "d")))
    assert strict.shell("ls $1") == b"old\n"
    strict.tx.rollback(made.checkpoint_id)
    assert strict.shell("ls $1") == b"old\n"
    strict.tx.commit()
    assert sorted(os.listdir(strict.bases[0])) == ["key", "old"] and key.read_text() == "secret"


def test_the_control_what_is_not_hidden_is_overwritten(strict: Ground) -> None:
    strict.shell("echo planted > $1/old")
    strict.tx.commit()
    assert (strict.bases[0] / "old").read_text() == "planted\n"


def test_other_folders_can_not_be_written(strict: Ground) -> None:
    beside = strict.top / "beside"
    beside.mkdir()
    beside.chmod(0o777)
    said = strict.shell(f"touch {beside}/x 2>&1 || true; touch {strict.tx.folder}/x 2>&1 || true; touch $2/x; ls $2")
    assert said.count(b"touch:") == 2 and b"\nx\n" in said, "the control: in a base it can"
    assert not list(beside.iterdir()) and not (strict.top / "tx/x").exists()


def test_the_transaction_itself_is_absent_where_it_lies_in_its_base(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "repo/sandboxes").mkdir(parents=True)
    (tmp_path / "repo/sandboxes/other").touch()
    with Transaction.create(tmp_path / "repo/sandboxes/a", [tmp_path / "repo"]) as tx:
        policy = SandboxPolicy(isolation="strict")
        said = run(["sh", "-c", "ls sandboxes; ls sandboxes/a; echo x > sandboxes/a; echo y > new"], policy,
                   transaction=tx)  # fmt: skip
        assert said.stdout == b"other\n" and b"No such file" in said.stderr
        assert [each.path for each in tx.changes()] == [f"{tmp_path}/repo/new"]
        tx.commit()
    assert (tmp_path / "repo/sandboxes/a/transaction.json").exists()


def test_background_processes_of_a_box_see_all_folders(strict: Ground) -> None:
    with ringfence.open(strict.policy, transaction=strict.tx) as box:
        text = f"while [ ! -e {strict.bases[1]}/go ]; do sleep 0.02; done; echo done > {strict.bases[0]}/done"
        background = box.start(["sh", "-c", text])
        box.run(["touch", f"{strict.bases[1]}/go"])
        assert background.wait(20).ok
        assert box.get("done") == b"done\n"
    assert set(strict.told()) == {"one/done", "two/go"}


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    for level, kind in (("strict", SNAPSHOT), ("process", OVERLAY)):
        policy = SandboxPolicy(isolation=level)
        with Transaction.create(tmp_path / level, [tmp_path / "base"], kind=kind) as tx:
            with pytest.raises(UsageError, match="kind"):
                run(["true"], policy, transaction=tx)
            with pytest.raises(UsageError, match="kind"):
                ringfence.open(policy, transaction=tx)
    with Transaction.create(tmp_path / "tx", [tmp_path / "base"]) as tx:
        policy = SandboxPolicy(isolation="strict")
        with pytest.raises(UsageError, match="none of"):
            run(Job(argv=("true",), cwd=str(tmp_path)), policy, transaction=tx)
        with pytest.raises(UsageError, match="files"):
            run(Job(argv=("true",), files={"a": b""}), policy, transaction=tx)


def test_the_lowest_level_has_transactions_too(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    policy = SandboxPolicy(isolation="none", allow_partial=True)
    assert transaction_kind(policy) == SNAPSHOT
    with Transaction.create(tmp_path / "tx", [tmp_path / "base"], kind=SNAPSHOT) as tx:
        assert run(["touch", "new"], policy, transaction=tx).changes[0].path == str(tmp_path / "base/new")
        assert not (tmp_path / "base/new").exists()


BUSY = """
import sys
import ringfence
from ringfence.checkpoint.transaction import Transaction
tx = Transaction.open(sys.argv[1])
box = ringfence.open(transaction=tx)
write = "i=0; while :; do i=$((i+1)); echo $i > tick; done"
other = box.start(["setsid", "sh", "-c", "trap '' TERM INT HUP; " + write])
box.run(["sh", "-c", "until [ -s tick ]; do :; done"])
print("busy", flush=True)
other.wait()
"""


def test_what_a_killed_caller_had_running_has_ended_when_the_next_one_opens(strict: Ground) -> None:
    """Two overlays with one layer would be undefined."""
    strict.tx.close()
    caller = subprocess.Popen([sys.executable, "-c", BUSY, strict.tx.folder], stdout=subprocess.PIPE)
    assert caller.stdout is not None and caller.stdout.readline() == b"busy\n"
    caller.kill()
    caller.wait()
    strict.tx = Transaction.open(strict.top / "tx")
    seen = [Path(strict.tx.layers[0][1], "upper/tick").read_text() for _ in _pauses(20)]
    assert len(set(seen)) == 1, "nobody writes there any more"
    assert strict.shell("echo mine > $1/tick; cat $1/tick") == b"mine\n"
    caller.stdout.close()


def _pauses(count: int) -> Iterator[None]:
    for _ in range(count):
        time.sleep(0.01)
        yield


# ---- a run that keeps its layer


@pytest.mark.parametrize("other_disk", (False, True))
def test_a_run_keeps_what_it_changed(other_disk: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o755)
    base = tmp_path / "base"
    base.mkdir()
    for name in ("old", "gone", "hers"):
        (base / name).write_text("old\n")
    if other_disk:
        monkeypatch.setattr(os, "rename", _refused)
    policy = SandboxPolicy(isolation="strict")
    text = "echo new >> old; rm gone; echo ours >> hers; mkdir -m 750 d; echo x > d/x; ln d/x d/y; ln -s / l; mkfifo f"
    (tmp_path / "kept").mkdir()

    def by_somebody_else(*_: object) -> None:
        (base / "hers").write_text("hers\n")

    job = Job(argv=("sh", "-c", text + "; echo ready"), cwd=str(base))
    done = run(job, policy, keep=str(tmp_path / "kept/a"), on_output=by_somebody_else)
    monkeypatch.undo()
    assert done.ok and done.transaction == str(tmp_path / "kept/a") and not done.committed
    with Transaction.open(tmp_path / "kept/a") as tx:
        assert {each.path for each in tx.changes()} == {f"{base}/{each.path}" for each in done.changes}
        look = ["sh", "-c", "cat old d/y; ls; stat -c '%h %a' d/x d; test -p f && readlink l; echo more >> d/x"]
        seen = run(look, policy, transaction=tx).stdout
        assert seen == b"old\nnew\nx\nd\nf\nhers\nl\nold\n2 644\n2 750\n/\n"
        with pytest.raises(ConflictError) as caught:
            tx.commit()
        assert caught.value.paths == (f"{base}/hers",), "also what was changed while it ran"
        tx.commit([str(base / "d"), str(base / "old"), str(base / "gone")])
    assert (base / "d/y").read_text() == "x\nmore\n" and not (base / "gone").exists()


_rename = os.rename


def _refused(source: str, target: str, **where: int) -> None:
    if not where:
        raise OSError(errno.EXDEV, "Invalid cross-device link")
    _rename(source, target, **where)  # within one directory


def test_a_run_that_changed_nothing_or_carried_over_keeps_nothing(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    policy = SandboxPolicy(isolation="strict")
    keep = str(tmp_path / "kept")
    here = str(tmp_path / "base")
    assert run(Job(argv=("true",), cwd=here), policy, keep=keep).transaction == ""
    done = run(Job(argv=("touch", "a"), cwd=here), policy, keep=keep, commit=True)
    assert done.committed and done.transaction == ""
    process = SandboxPolicy(isolation="process")
    assert run(Job(argv=("touch", "b"), cwd=here), process, keep=keep).transaction == ""
    assert sorted(os.listdir(here)) == ["a", "b"] and not os.path.exists(keep)


@pytest.mark.parametrize("place", ("kept", ""))
def test_what_can_not_be_carried_over_is_kept_where_there_is_a_place(place: str, tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    (tmp_path / "base/old").write_text("old")
    keep = str(tmp_path / place) if place else ""

    def by_somebody_else(*_: object) -> None:
        (tmp_path / "base/old").write_text("hers")

    def work() -> Outcome:
        job = Job(argv=("sh", "-c", "echo ours > old; echo said"), cwd=str(tmp_path / "base"))
        return run(job, SandboxPolicy(isolation="strict"), commit=True, keep=keep, on_output=by_somebody_else)

    if not place:
        with pytest.raises(ConflictError):
            work()
        return
    done = work()
    assert done.stdout == b"said\n" and not done.committed and "could not be applied" in done.reason
    assert done.commit_problem and not done.keep_problem and done.commit_problem in done.reason
    with Transaction.open(done.transaction) as tx:
        assert "+ours\n" in tx.diff()
    assert (tmp_path / "base/old").read_text() == "hers"


def test_an_edit_that_the_job_has_seen_and_changed_is_a_conflict_too(tmp_path: Path) -> None:
    base = tmp_path / "base"
    base.mkdir()
    (base / "old").write_text("old\n")

    def by_somebody_else(*_: object) -> None:
        (base / "old").write_text("hers\n")

    words = "echo begun; until grep -q hers old; do sleep 0.01; done; echo ours >> old"
    job = Job(argv=("sh", "-c", words), cwd=str(base))
    keep = str(tmp_path / "kept")
    done = run(job, SandboxPolicy(isolation="strict"), commit=True, keep=keep, on_output=by_somebody_else)
    assert done.ok and "changed by somebody else" in done.commit_problem and (base / "old").read_text() == "hers\n"
    with Transaction.open(done.transaction) as tx:
        assert " hers\n+ours\n" in tx.diff()
        with pytest.raises(ConflictError) as caught:
            tx.commit()
    assert caught.value.paths == (str(base / "old"),)


def test_what_can_not_be_kept_is_said_and_the_outcome_is_not_lost(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    (tmp_path / "taken").write_text("")
    job = Job(argv=("sh", "-c", "echo said; touch a"), cwd=str(tmp_path / "base"))
    done = run(job, SandboxPolicy(isolation="strict"), keep=str(tmp_path / "taken/x"))
    assert done.stdout == b"said\n" and done.keep_problem in done.reason and done.transaction == ""
    assert "could not be kept" in done.reason and done.keep_problem and not done.commit_problem
