"""One process leads all sandboxes of a pool. Whatever is done to it, no job lives on and the pool goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator

import pytest
from tests.patience import eventually
from tests.unit.engine.pooled import lives, policy_of

from ringfence import Outcome, Pool, Status

if sys.platform != "linux":
    pytest.skip("a warden needs Linux", allow_module_level=True)

from ringfence.kernel.proc import processes, procfs
from ringfence.roles import zygote_client
from ringfence.roles.leader import RUNS_JOB, STARTS
from ringfence.roles.loop import Loop
from ringfence.roles.sandbox_leader import SandboxTree
from ringfence.roles.warden.visit import LateOutbox, WardedVisit
from ringfence.roles.warden.warden import Warden
from ringfence.sandbox import host
from ringfence.transport import passing

pytestmark = [pytest.mark.system, pytest.mark.privileges, pytest.mark.unmeasured]

MAKER, SANDBOX = processes.FORKER, "a sandbox"
SLEEP = "import time; print(1, flush=True); time.sleep(600)"


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pool]:
    """Its processes may be hurt: the next test gets new ones. What other tests mount meanwhile makes no new warden."""
    zygote_client.close_all()
    table = host.mount_table()
    monkeypatch.setattr(host, "mount_table", lambda: table)
    with Pool(policy_of("strict", wall_time_s=3), warm=2, at_once=8) as made:
        assert made.run_source("print(1)").ok
        yield made
    zygote_client.close_all()


def _wardens() -> set[int]:
    """One, or more where many sandboxes were asked for."""
    return {zygote.pid for zygote in list(zygote_client._standing.values())}


def _children(of: set[int]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {MAKER: [], SANDBOX: []}
    for pid in [child for warden in of for child in procfs.children(warden)]:
        found[MAKER if _name(pid) == MAKER else SANDBOX].append(pid)
    return found


def _makers(of: set[int]) -> list[int]:
    """Once two stand beside the job that runs: one that is being made has the name of who makes it."""
    eventually(lambda: len(_children(of)[SANDBOX]) == 3)
    return _children(of)[MAKER]


def _name(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm") as file:
            return file.read().strip()
    except OSError:
        return ""


def _running(pool: Pool) -> tuple[threading.Thread, list[Outcome], set[int]]:
    """A job that sleeps, and all processes of sandboxes."""
    outcomes: list[Outcome] = []
    begun = threading.Event()
    job = threading.Thread(
        target=lambda: outcomes.append(pool.run_source(SLEEP, on_output=lambda *_: begun.set()))
    )
    job.start()
    assert begun.wait(60)
    tops = _children(_wardens())[SANDBOX]
    return job, outcomes, {*tops, *(row.pid for top in tops for row in procfs.descendants(top))}


def _signal_all(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        os.kill(pid, number)


def test_one_process_leads_all_sandboxes_of_a_pool(pool: Pool) -> None:
    eventually(lambda: len(_children(_wardens())[SANDBOX]) == 2)
    assert {_name(warden) for warden in _wardens()} == {processes.WARDEN}
    below = [_name(row.pid) for row in procfs.descendants(os.getpid())]
    assert processes.LEADER not in below
    assert len(_children(_wardens())[MAKER]) >= 2


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGKILL, Status.KILLED_KILL), (signal.SIGSTOP, Status.TIMEOUT)],
    ids=["killed", "stopped"],
)  # fmt: skip
def test_no_job_lives_on_without_its_warden(pool: Pool, number: int, status: Status) -> None:
    job, outcomes, sandboxed = _running(pool)
    assert len(sandboxed) >= 2
    _signal_all(_wardens(), number)
    job.join()
    assert [outcome.status for outcome in outcomes] == [status], outcomes[0].reason
    eventually(lambda: not any(map(lives, sandboxed)))
    eventually(lambda: pool.run_source("print(1)").ok)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_warden_without_its_zygotes_leads_what_it_has_to_the_end(pool: Pool, number: int) -> None:
    job, outcomes, _ = _running(pool)
    wardens = _wardens()
    _signal_all(_makers(wardens), number)
    assert [pool.run_source("print(1)").stdout for _ in range(4)] == [b"1\n"] * 4
    assert not wardens & _wardens()
    job.join()
    assert [(outcome.status, outcome.stdout) for outcome in outcomes] == [(Status.TIMEOUT, b"1\n")]
    eventually(lambda: not any(map(lives, wardens)))


def _orders_at_a_dead_zygote(pool: Pool) -> tuple[float, list[Outcome], list[Outcome]]:
    """How long the warden was stopped, and how a job that ran and six new ones ended."""
    job, ran, _ = _running(pool)
    wardens, new = _wardens(), list[Outcome]()
    makers = _makers(wardens)
    callers = [threading.Thread(target=lambda: new.append(pool.run_source("print(1)"))) for _ in range(6)]
    _signal_all(wardens, signal.SIGSTOP)
    stopped = time.monotonic()
    for caller in callers:
        caller.start()
    time.sleep(0.3)  # their orders come first then; the test passes all the same where they do not
    _signal_all(makers, signal.SIGKILL)
    _signal_all(wardens, signal.SIGCONT)
    stopped_s = time.monotonic() - stopped
    for caller in (*callers, job):
        caller.join()
    return stopped_s, ran, new


def test_an_order_that_no_zygote_takes_any_more_ends_nobody_else(pool: Pool) -> None:
    """The warden reads it before it sees that its zygotes are gone."""
    stopped_s, ran, new = _orders_at_a_dead_zygote(pool)
    while stopped_s > 0.9:  # on a busy machine; a warden that is stopped for a second is ended, as it should be
        stopped_s, ran, new = _orders_at_a_dead_zygote(pool)
    assert [outcome.stdout for outcome in new] == [b"1\n"] * 6, [outcome.reason for outcome in new]
    assert [(outcome.status, outcome.stdout) for outcome in ran] == [(Status.TIMEOUT, b"1\n")]


class _Visit(WardedVisit):
    """One that was made by zygote 7: its phase, and whether it stands."""

    def __init__(self, ticket: int, phase: int, *, stands: bool = False, maker: int = 7) -> None:
        self.ticket, self.phase, self.maker = ticket, phase, maker
        self.tree = SandboxTree()
        self.tree.stood_by = 1 if stands else 0
        self.failures: list[str] = []

    def note_failed(self, step: str, number: int, problem: str) -> None:
        self.failures.append(problem)


def test_what_a_lost_zygote_had_made_but_not_let_go_is_not_waited_for() -> None:
    """It was killed in between: such a sandbox would wait for ever, and its caller for a minute."""
    ended = os.fork()
    if ended == 0:
        os._exit(0)
    ours, theirs = passing.channel()
    rows = (_Visit(1, STARTS, maker=ours), _Visit(2, STARTS, maker=ours, stands=True), _Visit(3, STARTS, maker=-1),
            _Visit(4, RUNS_JOB, maker=ours), _Visit(5, STARTS, maker=theirs))  # fmt: skip
    led = Warden.__new__(Warden)
    led.loop, led._door, led.visits = Loop(many=True), -1, {visit.ticket: visit for visit in rows}
    led.loop.add(ours, led._hear_zygote)
    led._ordered, led._pids, led._waiting = {ours: {3}}, {ours: ended}, []
    assert [led._depends(ours, visit.ticket) for visit in rows] == [True, False, True, False, False]
    os.close(theirs)
    led.hear_makers()
    assert [bool(visit.failures) for visit in rows] == [True, False, True, False, False]


STOPPED = """
import os, signal
from ringfence import Pool, SandboxPolicy
from ringfence.kernel.proc import procfs
from ringfence.roles import zygote_client
def name(pid):
    try:
        return open(f"/proc/{pid}/comm").read().strip()
    except OSError:
        return ""  # it has just ended
with Pool(SandboxPolicy(isolation="strict"), warm=0) as pool:
    assert pool.run_source("print(1)").ok
    (warden,) = zygote_client._standing.values()
    while len(makers := [pid for pid in procfs.children(warden.pid) if name(pid) == "ringfence-fork"]) != 2:
        pass
    for maker in makers:
        os.kill(maker, signal.SIGSTOP)
    print(*makers, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_zygote_that_is_stopped_does_not_outlive_its_caller() -> None:
    """It does not hear that its warden is gone."""
    done = subprocess.run([sys.executable, "-c", STOPPED], capture_output=True, text=True, check=False)
    makers = [*map(int, done.stdout.split())]
    assert len(makers) == 2, done.stderr
    eventually(lambda: not any(map(lives, makers)))


def test_what_a_job_floods_its_warden_with_does_not_keep_another_from_its_end(pool: Pool) -> None:
    """Calls that are told, as fast as three jobs can make them."""
    flood = "from socket import *\nwhile True:\n try: socket(AF_INET, SOCK_RAW)\n except OSError: pass"
    jobs = [threading.Thread(target=pool.run_source, args=(flood,)) for _ in range(3)]
    for job in jobs:
        job.start()
    assert pool.run_source("print(1)").stdout == b"1\n"
    assert pool.run_source("while True: pass").status is Status.TIMEOUT
    for job in jobs:
        job.join()


@pytest.mark.root
def test_a_warden_keeps_nothing_of_a_job_that_has_ended(pool: Pool) -> None:
    def descriptors() -> int:
        eventually(lambda: len(_children(_wardens())[SANDBOX]) == 2)
        return max(len(os.listdir(f"/proc/{warden}/fd")) for warden in _wardens())

    sources = ("print(1)", "1/0", "import os; os.system('true')", "import os; os.kill(os.getpid(), 9)")
    for source in sources:
        pool.run_source(source)
    before = descriptors()
    for source in sources * 5:
        pool.run_source(source)
    # Those that stand may be at another step of their making than before.
    eventually(lambda: descriptors() < before + 3 * len(sources))


FULL = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (130, 130))
from ringfence import Pool, SandboxPolicy
from ringfence.roles import zygote_client
with Pool(SandboxPolicy(isolation="strict", nofile=64), warm=7) as pool:
    (first,) = zygote_client._standing.values()
    print([pool.run_source("print(1)").rc for _ in range(12)])
    assert first not in zygote_client._standing.values()
"""


def test_when_a_warden_is_full_there_is_another_one() -> None:
    done = subprocess.run([sys.executable, "-c", FULL], capture_output=True, text=True, check=False)
    assert done.stdout == f"{[0] * 12}\n", done.stderr


def test_a_caller_that_does_not_read_is_not_waited_for() -> None:
    reader, writer = os.pipe()
    outbox = LateOutbox(writer)
    word = bytes(range(256)) * 1000
    outbox.end(word)
    assert not outbox.is_empty, "control: the pipe takes less"
    told = b""
    while not outbox.is_empty:
        told += os.read(reader, 65536)
        outbox.flush()
    os.close(writer)
    while piece := os.read(reader, 65536):
        told += piece
    os.close(reader)
    assert told == word


def test_a_zygote_keeps_of_a_draft_only_what_the_making_of_a_sandbox_takes() -> None:
    """The rest names what is hidden, and every sandbox would have to drop it."""
    from ringfence.roles import first_process

    heard = {"ids": (1000, 1000), "watched": ["/hidden/key"], "profile": "default"}
    draft = {"plan": [("landlock", "/hidden/key")], "calls": [("calls", b"table")], "limits": {"memory": 1.0},
             "prepare": [("make devices", [])], "heard": heard, "scratch": ""}  # fmt: skip
    kept = first_process.lean(draft)
    assert "/hidden/key" not in repr(kept) and "/hidden/key" in repr(draft)
    assert kept["heard"] == {"ids": (1000, 1000)} and kept["prepare"] == draft["prepare"]
    assert first_process.steps_of(kept) == draft["calls"]


def test_a_draft_without_tables_is_kept_whole() -> None:
    from ringfence.roles import first_process

    draft = {"plan": [("setsid",)], "calls": [], "limits": {}, "prepare": [], "heard": {"ids": (1, 1)}, "scratch": ""}
    assert first_process.lean(draft) is draft
