"""The loop around one visit: it ends in bounded time whatever the job does to its leader or its output."""

from __future__ import annotations

import os
import sys
import threading
import time

import pytest
from tests.private_folders import left_in

from ringfence.backends.facts import Report, Traits
from ringfence.engine import supervision
from ringfence.engine.run import run
from ringfence.errors import SupervisionError
from ringfence.model.events import EventKind
from ringfence.model.job import Job
from ringfence.model.limits import TEN_YEARS_S
from ringfence.model.outcome import Outcome, Status
from ringfence.model.policy import SandboxPolicy

pytestmark = [pytest.mark.system, pytest.mark.privileges]

QUICK = SandboxPolicy(wall_time_s=0.3, output_bytes=4096)
# Long enough for a job to come to its deed on a busy machine.
ENOUGH = SandboxPolicy(wall_time_s=3, output_bytes=4096)


@pytest.fixture
def short_net(monkeypatch):
    monkeypatch.setattr(supervision, "_NET_S", 0.3)
    monkeypatch.setattr(supervision, "_KILLED_S", 0.3)


def test_a_deadline_of_years_is_a_deadline() -> None:
    assert run(["true"], SandboxPolicy(wall_time_s=TEN_YEARS_S, cpu_time_s=TEN_YEARS_S)).ok


@pytest.mark.parametrize("then", ("sleep 30", "yes", "yes >&2"))
def test_a_job_that_stops_its_leader_ends_all_the_same(short_net, then: str) -> None:
    """Printing all the while must not keep the caller from looking at the clock."""
    start = time.monotonic()
    outcome = run(["sh", "-c", f"kill -STOP $PPID; {then}"], ENOUGH)
    assert outcome.status is Status.TIMEOUT and "supervising process did not answer" in outcome.reason
    assert time.monotonic() - start < 20


def test_a_job_that_kills_its_leader_ends_with_a_value(short_net) -> None:
    outcome = run(["sh", "-c", "kill -KILL $PPID; sleep 30"], SandboxPolicy())
    assert outcome.status is Status.KILLED_KILL


@pytest.mark.parametrize("attempt", range(3))
def test_the_status_of_a_job_that_printed_too_much_does_not_depend_on_who_was_first(attempt: int) -> None:
    policy = SandboxPolicy(output_bytes=10, on_output_limit="kill")  # type: ignore[arg-type]
    outcome = run(["echo", "x" * 1000], policy)
    assert outcome.status is Status.OUTPUT_LIMIT and outcome.rc != 0
    assert outcome.stdout == b"x" * 10 + b"\n[TRUNCATED] 991 bytes dropped\n"
    assert run(["echo", "x" * 1000], SandboxPolicy(output_bytes=10)).status is Status.OK


class Puppet:
    """A visit that does as the test says, and the box that it is in."""

    enforced: dict[str, object] = {}  # noqa: RUF012
    traits = Traits()

    begun = True

    def __init__(self, *, ready: bool, report: Report | None = None, prints: bytes = b"") -> None:
        self.reader, self.writer = os.pipe()
        if ready:
            os.write(self.writer, b"x")
        self.report, self.prints, self.abandoned = report, prints, 0

    def start(self, job: Job, streams: tuple[int, ...]) -> Puppet:
        os.write(streams[1], self.prints)
        return self

    def filenos(self) -> tuple[int, ...]:
        return (self.reader,)

    def receive(self) -> Report | None:
        return self.report

    def take_notes(self) -> list[dict[str, object]]:
        return []

    def signal(self, number: int) -> None:
        pass

    def is_stopped(self) -> bool:
        return False

    def abandon(self) -> None:
        self.abandoned += 1

    def close(self) -> None:
        os.close(self.reader)
        os.close(self.writer)

    def run(self, policy: SandboxPolicy) -> Outcome:
        listeners = supervision.Listeners()
        job = Job(argv=("x",))
        return supervision.supervise(self, job, policy, partial=False, listeners=listeners)  # type: ignore[arg-type]


@pytest.mark.parametrize("ready", (False, True))
def test_a_visit_that_never_ends_is_an_error_in_bounded_time(short_net, ready: bool) -> None:
    """Also when there is always something to read, so that the loop never has nothing to do."""
    puppet = Puppet(ready=ready)
    with pytest.raises(SupervisionError):
        puppet.run(QUICK)
    assert puppet.abandoned == 1


class Starved(Puppet):
    """Does not answer until it is given up, as a leader beside a fork bomb."""

    def abandon(self) -> None:
        super().abandon()
        self.report = Report(leader_lost=True, signal=9)
        os.write(self.writer, b"x")


def test_a_leader_that_does_not_answer_when_the_time_is_over_makes_it_no_other_status(short_net) -> None:
    starved = Starved(ready=False)
    outcome = starved.run(QUICK)
    assert (outcome.status, outcome.rc, starved.abandoned) == (Status.TIMEOUT, 124, 1)


class Slow(Puppet):
    """Begins only when it was looked at three times, and ends when it had its time."""

    looks = 0

    def __init__(self, *, hopeful: bool) -> None:
        super().__init__(ready=False)
        self.begun, self.hopeful = False, hopeful

    def may_begin(self) -> bool:
        self.looks += 1
        if self.looks == 3:
            self.begun = True
            threading.Timer(0.1, self._end).start()
        return self.hopeful

    def _end(self) -> None:
        self.report = Report(exit_code=0)
        os.write(self.writer, b"x")


def test_a_start_that_only_takes_long_is_waited_for_and_the_job_has_its_whole_time(short_net, monkeypatch) -> None:
    monkeypatch.setattr(supervision, "_LOOK_S", 0.01)
    slow = Slow(hopeful=True)
    assert slow.run(QUICK).ok and slow.abandoned == 0 and slow.looks == 3


def test_a_start_without_hope_is_given_up(short_net) -> None:
    slow = Slow(hopeful=False)
    with pytest.raises(SupervisionError):
        slow.run(QUICK)
    assert slow.abandoned == 1 and slow.looks == 1


def test_too_much_output_is_found_also_after_the_end() -> None:
    policy = SandboxPolicy(output_bytes=10, on_output_limit="kill")  # type: ignore[arg-type]
    outcome = Puppet(ready=True, report=Report(exit_code=0), prints=b"x" * 100).run(policy)
    assert outcome.status is Status.OUTPUT_LIMIT and outcome.rc != 0
    assert Puppet(ready=True, report=Report(exit_code=0), prints=b"x").run(policy).status is Status.OK


def test_work_spread_over_short_lived_children_is_processor_time_of_the_job() -> None:
    """No single process comes near its RLIMIT_CPU; together they pass the limit."""
    burn = "import time\nwhile time.process_time() < 0.4: pass"
    code = f"import subprocess, sys\nfor _ in range(40): subprocess.run([sys.executable, '-S', '-c', {burn!r}])"
    outcome = run([sys.executable, "-S", "-c", code], SandboxPolicy(cpu_time_s=0.5, wall_time_s=15))
    assert outcome.status is Status.CPU_LIMIT and "watchdog" in outcome.reason


def test_the_dead_that_a_job_never_waits_for_count_as_its_processes() -> None:
    code = "import os, time\nfor _ in range(100):\n    if os.fork() == 0: os._exit(0)\ntime.sleep(10)"
    assert run([sys.executable, "-S", "-c", code], SandboxPolicy(pids_max=50)).status is Status.PIDS_LIMIT
    assert run([sys.executable, "-S", "-c", code.replace("10)", "0.2)")], SandboxPolicy(pids_max=200)).ok


def test_a_listener_that_fails_ends_the_job_before_its_folder_is_removed(tmp_path, monkeypatch) -> None:
    """Removing under a job that still writes would race with it; its tree is gone first."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    seen: list[int] = []

    def fail(_: str, piece: bytes) -> None:
        seen.append(int(piece))
        raise RuntimeError("listener")

    busy = "echo $$; i=0; while :; do i=$((i+1)); mkdir -p d$i; : > d$i/f; done"
    with pytest.raises(RuntimeError, match="listener"):
        run(["sh", "-c", busy], on_output=fail)
    assert left_in(tmp_path) == []
    with pytest.raises(ProcessLookupError):
        os.kill(seen[0], 0)


def test_what_happened_is_told_in_order() -> None:
    told = []
    outcome = run(["echo", "x" * 100], SandboxPolicy(output_bytes=10), on_event=told.append)
    assert [event.kind for event in told] == [EventKind.START, EventKind.LIMIT, EventKind.EXIT]
    assert outcome.events == tuple(told) and {event.run_id for event in told} == {outcome.run_id}
