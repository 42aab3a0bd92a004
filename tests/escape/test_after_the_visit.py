"""What a visit leaves running is heard as long as it runs: what it tries is in the next result, or no commit goes past
it."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import ringfence
from ringfence import FileError, LateAttemptError, Outcome, SandboxPolicy, Transaction
from ringfence.backends.living.visit import VisitToBox
from ringfence.egress.told import MOST_REFUSED
from ringfence.engine.box import Box
from ringfence.integrations.living.place import Place
from ringfence.integrations.living.python import LivingPython
from ringfence.kernel.proc import procfs
from ringfence.sandbox import host
from tests.patience import eventually

pytestmark = [pytest.mark.privileges, pytest.mark.unmeasured]

RECORDERS = ("tripwires", "open notification")
# It ends well, and leaves a child that waits for a word, does something, and says that it has.
_LEAVE = """
import ctypes, os, time
libc = ctypes.CDLL(None)
if os.fork(): os._exit(0)
os.setsid(); null = os.open('/dev/null', os.O_RDWR); [os.dup2(null, number) for number in (0, 1, 2)]
while not os.path.exists('go'): time.sleep(0.005)
open('made', 'w').write('x')
def ask(path):
    try: open(path)
    except OSError: pass
{what}
os.rename('made', 'done')
{then}
"""
_ASK = "ask(SECRET)"
_STAYS, _ENDS = "time.sleep(600)", ""
TRICKS = {
    "plainly": (_ASK, _STAYS),
    "and ends": (_ASK, _ENDS),
    "as a grandchild": ("if os.fork() == 0: ask(SECRET), os._exit(0)\nos.wait()", _STAYS),
    "as a daemon": ("if os.fork() == 0:\n  if os.fork(): os._exit(0)\n  os.setsid(); ask(SECRET); os._exit(0)\n"
                    "os.wait(); time.sleep(0.05)", _STAYS),
    "in a thread": ("import threading\nt = threading.Thread(target=ask, args=[SECRET]); t.start(); t.join()", _STAYS),
    "under a reaper's name": ("libc.prctl(15, b'visit 2', 0, 0, 0); ask(SECRET)", _STAYS),
    "after noise": ("for i in range(700): libc.sethostname(b'x', 1)\nask(SECRET)", _STAYS),
}  # fmt: skip
_IN_THE_GATE = ("plainly", "as a daemon", "under a reaper's name")


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="after-", dir="/var/tmp") as name:
        place = Path(os.path.realpath(name))
        place.chmod(0o755)
        for part in ("work", "shown"):
            (place / part).mkdir()
        (place / "work" / "plain").write_text("text\n")
        for name in ("key", "other"):
            (place / "shown" / name).write_text("text\n")
        yield place


@pytest.fixture(params=RECORDERS)
def recorder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param != "tripwires":
        monkeypatch.setattr(host, "has_fuse", lambda: False)
    return str(request.param)


def _policy(folder: Path) -> SandboxPolicy:
    return SandboxPolicy(isolation="strict", readable_paths=(str(folder / "shown"),), wall_time_s=60,
                         hidden_paths=(str(folder / "shown" / "key"),))  # fmt: skip


def _leave(folder: Path, what: str, then: str = _STAYS) -> list[str]:
    source = _LEAVE.format(what=what, then=then)
    return [sys.executable, "-I", "-c", f"SECRET = {str(folder / 'shown' / 'key')!r}\n{source}"]


def _stay(folder: Path, what: str, then: str = _STAYS) -> list[str]:
    """The same in a visit that does not end before its child does."""
    *words, source = _leave(folder, what, then)
    return [*words, source.replace("if os.fork(): os._exit(0)", "if os.fork(): os._exit(os.wait()[1])")]


def _is_there(box: Box, name: str) -> bool:
    try:
        box.get(name)
    except FileError:
        return False
    return True


def _let_go(box: Box) -> None:
    """What was left does what it was left for."""
    box.put("go", b"")
    eventually(lambda: _is_there(box, "done"))


def _tried(outcome: Outcome) -> list[tuple[str, object]]:
    return [(str(event.details["path"]), event.details.get("late")) for event in outcome.events
            if event.details.get("aim") == "hidden"]  # fmt: skip


@pytest.mark.parametrize("trick", [each if each in _IN_THE_GATE else pytest.param(each, marks=pytest.mark.long)
                                   for each in TRICKS])  # fmt: skip
def test_an_attempt_between_two_visits_is_in_the_next_result(trick: str, recorder: str, folder: Path) -> None:
    what, then = TRICKS[trick]
    with ringfence.open(_policy(folder)) as box:
        assert recorder in box.enforced["hidden_paths"].details
        left = box.run(_leave(folder, what, then))
        assert left.ok and not _tried(left), left.stderr
        _let_go(box)
        told, after = box.run(["true"]), box.run(["true"])
    assert _tried(told) == [(str(folder / "shown" / "key"), True)], told.recorder
    assert told.recorder["complete"] is True and told.recorder["late_since"] == [""]
    assert told.recorder["kept"] == sum("aim" in event.details for event in told.events)
    assert not _tried(after) and "late_since" not in after.recorder, "it is told once"


def test_what_is_left_running_and_tries_nothing_is_in_no_result(recorder: str, folder: Path) -> None:
    with ringfence.open(_policy(folder)) as box:
        box.run(_leave(folder, "ask(SECRET + 'hole')"))
        _let_go(box)
        told = box.run(["true"])
    assert not _tried(told) and "late_since" not in told.recorder and told.recorder["complete"] is True


def test_more_than_can_be_named_is_said_to_be_missing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "has_fuse", lambda: False)  # a tripwire sees the hidden path only, and none below it
    with ringfence.open(_policy(folder)) as box:
        box.run(_leave(folder, "for i in range(700): os.access(f'{SECRET}/{i}', 0)"))
        _let_go(box)
        told = box.run(["true"])
    assert told.unrecorded == 200 and told.recorder["complete"] is False, told.recorder


def test_a_visit_that_runs_meanwhile_has_its_own_attempts_and_no_others(recorder: str, folder: Path) -> None:
    with ringfence.open(_policy(folder)) as box:
        handle = box.start(_stay(folder, _ASK, _ENDS))
        _let_go(box)
        beside = box.run(["true"])
        own = handle.wait(30)
    assert not _tried(beside), "the other visit has not ended"
    assert _tried(own) == [(str(folder / "shown" / "key"), None)], own.recorder


@pytest.mark.parametrize("name", ["", "visit 2"])
def test_what_has_lost_its_reaper_is_heard_too(name: str, recorder: str, folder: Path) -> None:
    """Where Landlock scopes no signals a guest can kill it; the name is that which the next visit's reaper has."""
    with ringfence.open(_policy(folder)) as box:
        box.run(_leave(folder, f"libc.prctl(15, {name!r}.encode(), 0, 0, 0)\n{_ASK}"))
        (first,) = procfs.children(box.watchable.leaders()[0])
        (reaper,) = procfs.children(first)
        (child,) = procfs.children(reaper)
        os.kill(reaper, signal.SIGKILL)
        eventually(lambda: procfs.children(first) == [child])
        _let_go(box)
        told = box.run(["true"])
    assert _tried(told) == [(str(folder / "shown" / "key"), True)], told.recorder
    assert told.recorder["complete"] is True


def test_a_recorder_that_was_killed_is_said_to_be_missing(folder: Path) -> None:
    with ringfence.open(_policy(folder)) as box:
        supervisor = Path(f"/proc/{box.watchable.leaders()[0]}/stat").read_text()
        zygote = int(supervisor.rpartition(")")[2].split()[1])
        before = set(procfs.children(zygote))
        box.run(_leave(folder, _ASK))
        (leader,) = set(procfs.children(zygote)) - before
        os.kill(leader, signal.SIGKILL)
        eventually(lambda: leader not in procfs.children(zygote))
        told, after = box.run(["true"]), box.run(["true"])
    assert told.unrecorded == 1 and told.recorder["complete"] is False and told.recorder["problems"], told.recorder
    assert after.unrecorded == 0


def test_what_was_to_be_told_by_a_result_that_there_is_none_of_is_told_by_the_next(folder: Path) -> None:
    def fail(_: str, __: bytes) -> None:
        raise ZeroDivisionError

    with ringfence.open(_policy(folder)) as box:
        box.run(_leave(folder, _ASK))
        _let_go(box)
        with pytest.raises(ZeroDivisionError):
            box.run(["sh", "-c", "echo; sleep 60"], on_output=fail)
        assert _tried(box.run(["true"]))


def test_what_the_caller_asks_for_is_nobodys_attempt(recorder: str, folder: Path) -> None:
    with ringfence.open(_policy(folder)) as box:
        assert not _is_there(box, str(folder / "shown" / "key"))
        assert not _tried(box.run(["true"]))


# ---- a commit


@pytest.mark.parametrize("trick", ["plainly", "and ends"])
def test_no_commit_of_a_box_goes_past_an_attempt(trick: str, recorder: str, folder: Path) -> None:
    with ringfence.open(_policy(folder), folder / "work") as box:
        box.run(_leave(folder, *TRICKS[trick]))
        _let_go(box)
        for _ in range(2):
            with pytest.raises(LateAttemptError, match="shown/key") as caught:
                box.commit()
            assert len(caught.value.attempts) == 1 and caught.value.hint
        assert sorted(os.listdir(folder / "work")) == ["plain"]
        assert _tried(box.run(["true"])), "who runs something next is told"
        box.commit()
        assert "done" in os.listdir(folder / "work"), "and has decided by himself"


def test_a_commit_of_what_tried_nothing_goes_through(recorder: str, folder: Path) -> None:
    with ringfence.open(_policy(folder), folder / "work") as box:
        box.run(_leave(folder, "ask(SECRET + 'hole')"))
        _let_go(box)
        box.commit()
    assert sorted(os.listdir(folder / "work")) == ["done", "go", "plain"]


def test_no_commit_goes_past_what_a_visit_tried_that_still_runs(recorder: str, folder: Path) -> None:
    with ringfence.open(_policy(folder), folder / "work") as box:
        box.start(_stay(folder, _ASK))
        _let_go(box)
        assert _is_refused(box.commit)
        assert sorted(os.listdir(folder / "work")) == ["plain"]


def test_no_commit_goes_past_what_was_recorded_and_nobody_has_read_yet(
    recorder: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, is_slow, go_on = VisitToBox._received, threading.Event(), threading.Event()

    def read_slowly(visit: VisitToBox) -> object:
        assert not is_slow.is_set() or visit.since is None or go_on.wait(60)
        return read(visit)

    monkeypatch.setattr(VisitToBox, "_received", read_slowly)
    with ringfence.open(_policy(folder), folder / "work") as box:
        box.start(_stay(folder, _ASK))
        is_slow.set()
        _let_go(box)
        threading.Timer(0.1, go_on.set).start()
        assert _is_refused(box.commit)
        assert sorted(os.listdir(folder / "work")) == ["plain"]


def test_a_callback_of_the_visit_itself_gets_no_commit(folder: Path) -> None:
    """It is what would read; to wait for it would be for ever."""
    refused: list[bool] = []
    stays = ["sh", "-c", "echo x; until test -e go; do sleep 0.01; done"]
    with ringfence.open(_policy(folder), folder / "work") as box:

        def commit(_: str, __: bytes) -> None:
            refused.append(_is_refused(box.commit))
            box.put("go", b"")

        assert box.run(stays, on_output=commit).ok and refused == [True]
        box.run(["true"])
        box.commit()


def _is_refused(commit: Callable[[], object]) -> bool:
    try:
        commit()
    except LateAttemptError:
        return True
    return False


@pytest.fixture
def transaction(folder: Path, tmp_path: Path) -> Iterator[Transaction]:
    with Transaction.create(tmp_path / "tx", [folder / "work"]) as made:
        yield made


Commit = Callable[[Box, Transaction], object]
COMMITS: dict[str, Commit] = {
    "while the box lives": lambda box, transaction: transaction.commit(mounted=True),
    "by the box": lambda box, transaction: box.commit(),
    "when the box is closed": lambda box, transaction: (box.close(), transaction.commit()),
}


@pytest.mark.parametrize("way", COMMITS)
def test_no_commit_of_a_transaction_goes_past_an_attempt(
    way: str, recorder: str, folder: Path, transaction: Transaction
) -> None:
    with ringfence.open(_policy(folder), transaction=transaction) as box:
        box.run(_leave(folder, _ASK))
        _let_go(box)
        with pytest.raises(LateAttemptError, match="shown/key"):
            COMMITS[way](box, transaction)
    assert sorted(os.listdir(folder / "work")) == ["plain"]
    transaction.discard()
    transaction.commit()


def test_no_commit_goes_past_what_a_visit_tried_that_was_ended_with_the_box(
    recorder: str, folder: Path, transaction: Transaction
) -> None:
    """Nobody looks at its result: as it is with an interpreter that lives in a box."""
    with ringfence.open(_policy(folder), transaction=transaction) as box:
        box.start(_stay(folder, _ASK))
        _let_go(box)
    with pytest.raises(LateAttemptError, match="shown/key"):
        transaction.commit()


# ---- what the gateway refused

_EVIL = "evil.example.net:443"
_CONNECT = f"""
import socket
link = socket.create_connection(('127.64.0.2', 3128))
link.sendall(b'CONNECT {_EVIL} HTTP/1.1\\r\\nHost: {_EVIL}\\r\\n\\r\\n'); link.recv(9)
"""


def _listed(folder: Path) -> SandboxPolicy:
    return _policy(folder).with_changes(network=["api.example.com"])


def test_no_commit_of_a_box_goes_past_a_refused_connection(folder: Path) -> None:
    with ringfence.open(_listed(folder), folder / "work") as box:
        box.run(_leave(folder, _CONNECT))
        _let_go(box)
        for _ in range(2):
            with pytest.raises(LateAttemptError, match=_EVIL) as caught:
                box.commit()
            assert len(caught.value.attempts) == 1
        told = box.run(["true"])
        assert [event.details["name"] for event in told.events if event.details.get("decision") == "refused"] == [
            "evil.example.net"
        ]
        box.commit()
    assert "done" in os.listdir(folder / "work")


@pytest.mark.parametrize("way", COMMITS)
@pytest.mark.parametrize("start", ["left", "ended with the box"])
def test_no_commit_of_a_transaction_goes_past_a_refused_connection(
    start: str, way: str, folder: Path, transaction: Transaction
) -> None:
    with ringfence.open(_listed(folder), transaction=transaction) as box:
        if start == "left":
            box.run(_leave(folder, _CONNECT))
        else:
            box.start(_stay(folder, _CONNECT))
        _let_go(box)
        with pytest.raises(LateAttemptError, match=_EVIL):
            COMMITS[way](box, transaction)
    assert sorted(os.listdir(folder / "work")) == ["plain"]


def test_a_commit_goes_past_what_a_result_has_told_of_the_network(folder: Path) -> None:
    with ringfence.open(_listed(folder), folder / "work") as box:
        box.put("go", b"")
        ran = box.run(_stay(folder, _CONNECT, _ENDS))
        assert any(event.details.get("decision") == "refused" for event in ran.events), ran.stderr
        box.commit()


def test_no_commit_of_a_session_goes_past_what_its_python_tried(folder: Path, transaction: Transaction) -> None:
    with Place(_policy(folder), transaction) as place:
        python = LivingPython(place)
        python.run("open('made', 'w').close()")
        assert python.run(f"import os; os.path.exists({str(folder / 'shown' / 'key')!r})").value is False
        with pytest.raises(LateAttemptError, match="shown/key"):
            place.commit()
    assert sorted(os.listdir(folder / "work")) == ["plain"]


def test_another_process_that_opens_the_transaction_knows_of_it(folder: Path, tmp_path: Path) -> None:
    with (
        Transaction.create(tmp_path / "tx", [folder / "work"]) as first,
        ringfence.open(_policy(folder), transaction=first) as box,
    ):
        box.run(_leave(folder, _ASK))
        _let_go(box)
    with Transaction.open(tmp_path / "tx") as again:
        with pytest.raises(LateAttemptError, match="shown/key"):
            again.commit()
        told = ringfence.run(["true"], _policy(folder), transaction=again)
        assert _tried(told) and told.recorder["late_since"] == [""]
        assert "done" in again.commit().paths[0]


def test_a_run_that_nobody_was_told_the_end_of_has_told_of_nothing(folder: Path, transaction: Transaction) -> None:
    def fail(_: str, __: bytes) -> None:
        raise ZeroDivisionError

    with ringfence.open(_policy(folder), transaction=transaction) as box:
        box.run(_leave(folder, _ASK))
        _let_go(box)
    with pytest.raises(ZeroDivisionError):
        ringfence.run(["sh", "-c", "echo; sleep 60"], _policy(folder), transaction=transaction, on_output=fail)
    with pytest.raises(LateAttemptError, match="shown/key"):
        transaction.commit()
    assert _tried(ringfence.run(["true"], _policy(folder), transaction=transaction))
    transaction.commit()


def test_going_back_to_before_it_makes_it_undone(folder: Path, transaction: Transaction) -> None:
    with ringfence.open(_policy(folder), transaction=transaction) as box:
        before = transaction.create_checkpoint().checkpoint_id
        box.run(_leave(folder, _ASK))
        _let_go(box)
    after = transaction.create_checkpoint().checkpoint_id
    for checkpoint, undone in ((after, False), (before, True)):
        transaction.rollback(checkpoint)
        if not undone:
            with pytest.raises(LateAttemptError):
                transaction.commit()
    transaction.commit()
    assert sorted(os.listdir(folder / "work")) == ["plain"]


_ASK_FOR = """
import socket
def ask(name):
    link = socket.create_connection(('127.64.0.2', 3128))
    link.sendall(f'CONNECT {name}:443 HTTP/1.1\\r\\nHost: {name}:443\\r\\n\\r\\n'.encode()); link.recv(9); link.close()
"""


def _refused(outcome: Outcome) -> list[object]:
    return [event.details["name"] for event in outcome.events if event.details.get("decision") == "refused"]


@pytest.mark.long
@pytest.mark.parametrize("before", [1, MOST_REFUSED + 50])
def test_no_flood_before_it_hides_a_refused_connection(before: int, folder: Path) -> None:
    noise = f"{_ASK_FOR}for _ in range({before}): ask('noise.example.net')"
    with ringfence.open(_listed(folder), folder / "work") as box:
        first = box.run(["python3", "-c", noise])
        missed = sum(int(str(event.details.get("missed", 0))) for event in first.events)
        assert first.ok and len(_refused(first)) + missed == before and bool(missed) == (before > 1), first.stderr
        assert _refused(box.run(["python3", "-c", f"{_ASK_FOR}ask('evil.example.net')"])) == ["evil.example.net"]
        box.run(_leave(folder, _CONNECT))
        _let_go(box)
        with pytest.raises(LateAttemptError, match=_EVIL):
            box.commit()
