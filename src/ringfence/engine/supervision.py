"""One visit from start to outcome: one loop over the job's streams, its end and the deadline.

The limits are held by the leader, close to the job. This loop only reads, feeds and waits; its own
deadline is the net for a leader that was stopped or lost.
"""

from __future__ import annotations

import os
import select
import sys
import time
from _collections_abc import Callable, Mapping

from ringfence.backends.facts import Report
from ringfence.engine.streams import Streams
from ringfence.engine.verdict import Verdict, judge, near
from ringfence.errors import SupervisionError
from ringfence.model.events import Event, EventKind, OnEvent, OnOutput
from ringfence.model.job import Job
from ringfence.model.limits import OutputOverflow
from ringfence.model.outcome import PARTIAL_ENFORCEMENT, Enforcement, Mechanism, Outcome, Status, Usage
from ringfence.model.policy import SandboxPolicy
from ringfence.model.record import record, replace
from ringfence.transport import wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol, TypeAlias

    from ringfence.backends.contract import Startable, Visit

    class Poller(Protocol):
        """What ``select.poll`` is, and its like on Windows."""

        def register(self, fd: int, eventmask: int = ..., /) -> None: ...

        def unregister(self, fd: int, /) -> None: ...

        def poll(self, timeout: float | None = ..., /) -> list[tuple[int, int]]: ...

METRICS = "RINGFENCE_METRICS"
"""If it is set, or the recorder is loaded, runs are counted; otherwise nothing of that is loaded."""
_NET_S = 5.0
_KILLED_S = 60.0
"""A killed process does end, but on an overloaded machine it may wait long for its turn."""
_LOOK_S = 1.0
_LATE_S = 0.1
"""This long after its deadline a job should have ended; if not, we check whether its leader is at work."""
_LONGEST_WAIT_S = 3600.0  # the kernel takes no more than 24 days, a policy may allow years
_NEVER = float("inf")
_READABLE, _WRITABLE = 1, 4  # POLLIN, POLLOUT, which Windows has no names for
_SIGKILL = 9


TellAttempt: TypeAlias = "Callable[[Mapping[str, object]], None]"
Attach: TypeAlias = "Callable[[Visit, Streams], None]"


@record
class Listeners:
    """Who is told what while a job runs."""

    on_event: OnEvent | None = None
    on_output: OnOutput | None = None
    on_all: OnOutput | None = None
    """Told of all output, also of what is over ``output_bytes``."""
    attach: Attach | None = None
    """Told once of the running visit, to pass signals on to it."""


def new_run_id() -> str:
    """A name for one run: sortable by time, unique."""
    return f"{int(time.time() * 1000):012x}{os.urandom(6).hex()}"


class _Log:
    """The events of one run."""

    def __init__(self, on_event: OnEvent | None) -> None:
        self.run_id = new_run_id()
        self.events: list[Event] = []
        self._on_event = on_event

    def tell(self, kind: EventKind, **details: object) -> None:
        self._tell(kind, time.time(), details)

    def _tell(self, kind: EventKind, time_s: float, details: Mapping[str, object]) -> None:
        event = Event(kind=kind, run_id=self.run_id, time_s=time_s, details=details)
        self.events.append(event)
        if self._on_event:
            self._on_event(event)

    def tell_attempt(self, attempt: Mapping[str, object]) -> None:
        """Something that the recorder saw, whether refused or allowed but telling; or a decision of the gateway."""
        kind = EventKind.VIOLATION if attempt.get("errno") else EventKind.EGRESS
        self._tell(kind, _seen_s(attempt), {str(name): value for name, value in attempt.items() if name != "time_s"})

    def sort(self) -> None:
        """Sorted by time: the gateway reports a connection when it has ended, the recorder a call when it is made."""
        self.events[1:] = sorted(self.events[1:], key=lambda event: event.time_s)


def _seen_s(attempt: Mapping[str, object]) -> float:
    """When it happened, according to whatever saw it."""
    seen = attempt.get("time_s")
    if isinstance(seen, int | float):
        return float(seen)
    told_s = wire.wall_s(attempt.get("wall_ns"))
    return time.time() if told_s is None else told_s


def supervise(
    box: Startable,
    job: Job,
    policy: SandboxPolicy,
    *,
    partial: bool,
    listeners: Listeners,
    deadline_s: float | None = None,
) -> Outcome:
    """Run one job in the box. ``deadline_s``: less time than the policy gives it, held by this process."""
    if not os.environ.get(METRICS) and "ringfence.metrics.recorder" not in sys.modules:
        return _supervised(box, job, policy, partial, listeners, deadline_s)
    from ringfence.metrics.runs import begin

    outcome = None
    ended = begin(str(policy.isolation))
    try:
        outcome = _supervised(box, job, policy, partial, listeners, deadline_s)
    finally:
        ended(outcome)
    return outcome


def _supervised(
    box: Startable, job: Job, policy: SandboxPolicy, partial: bool, listeners: Listeners, deadline_s: float | None
) -> Outcome:
    if deadline_s is not None:
        policy = replace(policy, wall_time_s=deadline_s)
    log = _Log(listeners.on_event)
    heard = (listeners.on_output, listeners.on_all)
    streams = _streams()(job, policy.output_bytes, *heard, files_apart=box.traits.files_apart)
    try:
        log.tell(EventKind.START, argv=list(job.argv))
        report = _visit(box, job, policy, streams, listeners.attach, log, own_deadline=deadline_s is not None)
    finally:
        streams.close()
    enforced = box.enforced if deadline_s is None else _with_own_deadline(box.enforced, deadline_s)
    applied = {name: entry.by for name, entry in box.enforced.items() if entry.applied}
    # Part of it is known only with the job's directory, after the check that refuses.
    partial = partial or len(applied) < len(box.enforced)
    verdict = judge(report, policy, applied, streams.stderr.tail)
    return _outcome(job, enforced, streams, report, verdict, partial, near(report, policy, applied), log)


def _streams() -> type[Streams]:
    if os.name != "nt":
        return Streams
    from ringfence.engine.windows_streams import WindowsStreams

    return WindowsStreams


def _poller() -> Poller:
    if os.name != "nt":
        return select.poll()
    from ringfence.windows.waiting import Poller

    return Poller()


def _with_own_deadline(enforced: Mapping[str, Enforcement], deadline_s: float) -> Mapping[str, Enforcement]:
    entry = Enforcement(requested=deadline_s, applied=True, mechanism="deadline", details="by the caller's own clock",
                        by=(Mechanism.DEADLINE,))  # fmt: skip
    return {**enforced, "wall_time": entry}


def _visit(
    box: Startable,
    job: Job,
    policy: SandboxPolicy,
    streams: Streams,
    attach: Attach | None,
    log: _Log,
    *,
    own_deadline: bool,
) -> Report:
    visit = box.start(job, streams.theirs)
    try:
        streams.release_theirs()
        if attach:
            attach(visit, streams)
        return _Loop(visit, streams, policy, log.tell_attempt, own_deadline).run()
    finally:
        visit.close()


class _Loop:
    """Handles whatever comes first, until the end has come."""

    def __init__(
        self,
        visit: Visit,
        streams: Streams,
        policy: SandboxPolicy,
        tell_attempt: TellAttempt,
        own_deadline: bool = False,
    ) -> None:
        """``own_deadline``: the leader holds a longer wall time than this policy's."""
        self.own_deadline = own_deadline
        self.until = _NEVER
        self.killed_for_time = False
        self.tell_attempt = tell_attempt
        self.visit = visit
        self.streams = streams
        self.policy = policy
        self.killed_for_output = False
        self.poller = _poller()
        self.told_by: set[int] = set()

    def run(self) -> Report:
        self._register()
        report = self._wait()
        self.streams.drain()
        if report.survivors:
            raise SupervisionError(f"{report.survivors} processes of the job could not be killed")
        # Decided by what was printed, not by whether the kill or the job's own end came first.
        if self.killed_for_time and (report.cause == "asked" or report.leader_lost):
            return replace(report, cause="wall_time")
        ended_for_output = self._over_output() and report.cause in ("", "asked")
        return replace(report, cause="output") if ended_for_output else report

    def _register(self) -> None:
        self.told_by = set(self.visit.filenos())
        for descriptor in (*self.told_by, *self.streams.readers):
            self.poller.register(descriptor, _READABLE)
        if self.streams.writer >= 0:
            self.poller.register(self.streams.writer, _WRITABLE)
        if self.streams.keyboard >= 0:
            self.poller.register(self.streams.keyboard, _READABLE)

    def _wait(self) -> Report:
        net = time.monotonic() + self.policy.wall_time_s + _NET_S
        late = net - _NET_S + _LATE_S
        abandoned, begun = False, self.visit.begun
        while True:
            self._end_at_deadline()
            wait_s = min(max(0.0, min(net, late, self.until) - time.monotonic()), _LONGEST_WAIT_S)
            for descriptor, _ in self.poller.poll(wait_s * 1000):
                report = self._handle(descriptor)
                if report is not None:
                    return report
            if not abandoned and begun is not self.visit.begun:
                begun, net = True, time.monotonic() + self.policy.wall_time_s + _NET_S
                late = net - _NET_S + _LATE_S
            if time.monotonic() >= late:
                late = _NEVER
                net = time.monotonic() if begun and self.visit.is_stopped() else net
            # Also while output arrives: a job may have stopped its leader and go on printing.
            if time.monotonic() >= net and not begun and not abandoned and self.visit.may_begin():
                net += _LOOK_S
            elif time.monotonic() >= net:
                if abandoned:
                    raise SupervisionError("the supervising process did not end when it was killed")
                self.visit.abandon()
                abandoned, net = True, time.monotonic() + _KILLED_S
                self.killed_for_time = begun

    def _end_at_deadline(self) -> None:
        """Also while output arrives."""
        now = time.monotonic()
        if self.own_deadline and self.visit.begun:
            self.own_deadline, self.until = False, now + self.policy.wall_time_s
        if now >= self.until:
            self.until, self.killed_for_time = _NEVER, True
            self.visit.signal(_SIGKILL)

    def _handle(self, descriptor: int) -> Report | None:
        if descriptor in self.told_by:
            report = self.visit.receive()
            for attempt in self.visit.take_notes():
                self.tell_attempt(attempt)
            if report is None and descriptor not in self.visit.filenos():  # one of several has ended
                self.poller.unregister(descriptor)
                self.told_by.discard(descriptor)
            return report
        if descriptor == self.streams.keyboard:
            if not self.streams.relay_keyboard():
                self.poller.unregister(descriptor)
        elif descriptor == self.streams.writer:
            if not self.streams.write():
                self.poller.unregister(descriptor)
                self.streams.stop_writing()
        elif not self.streams.read(descriptor):
            self.poller.unregister(descriptor)
            self.streams.stop_reading(descriptor)
        self._end_at_output_limit()
        return None

    def _end_at_output_limit(self) -> None:
        if self._over_output() and not self.killed_for_output:
            self.killed_for_output = True
            self.visit.signal(_SIGKILL)

    def _over_output(self) -> bool:
        if self.streams.is_flooded():
            return True
        dropped = self.streams.stdout.dropped or self.streams.stderr.dropped
        return bool(dropped) and self.policy.on_output_limit is OutputOverflow.KILL


def _outcome(
    job: Job,
    enforced: Mapping[str, Enforcement],
    streams: Streams,
    report: Report,
    verdict: Verdict,
    partial: bool,
    near_limits: tuple[str, ...],
    log: _Log,
) -> Outcome:
    """Also tells the last events."""
    dropped = streams.stdout.dropped or streams.stderr.dropped
    hit = tuple(dict.fromkeys((*verdict.limits_hit, *(("output",) if dropped else ()))))
    reason = _reason(verdict, streams, partial, report.network_problem)
    log.sort()
    for name in hit:
        log.tell(EventKind.LIMIT, capability=name, reason=reason)
    log.tell(EventKind.EXIT, status=str(verdict.status), rc=verdict.rc)
    return Outcome(
        status=verdict.status,
        rc=verdict.rc,
        reason=reason,
        stdout=streams.stdout.result(),
        stderr=streams.stderr.result(),
        stdout_dropped=streams.stdout.dropped,
        stderr_dropped=streams.stderr.dropped,
        duration_ms=report.wall_ns // 1_000_000,
        argv=job.argv,
        run_id=log.run_id,
        enforced=enforced,
        usage=_usage(report),
        limits_hit=hit,
        near_limits=near_limits,
        partial=partial,
        recorder=report.recorder,
        message=streams.message(),
        events=tuple(log.events),
    )


def _reason(verdict: Verdict, streams: Streams, partial: bool, network_problem: str) -> str:
    reason = verdict.reason
    if partial:
        plain = verdict.status in (Status.OK, Status.FAILED)
        reason = PARTIAL_ENFORCEMENT if plain else f"{PARTIAL_ENFORCEMENT}: {reason}"
    cut = [capture for capture in (streams.stdout, streams.stderr) if capture.dropped]
    notes = (f"{capture.name} was cut, {capture.dropped} bytes dropped" for capture in cut)
    return "; ".join(filter(None, (reason, network_problem, *notes)))


def _usage(report: Report) -> Usage:
    return Usage(
        wall_s=report.wall_ns / 1e9,
        cpu_user_s=report.cpu_user_us / 1e6,
        cpu_system_s=report.cpu_system_us / 1e6,
        peak_memory_bytes=report.peak_memory_bytes,
        processes=report.processes,
        written_bytes=report.written_bytes,
        voluntary_switches=report.voluntary_switches,
        involuntary_switches=report.involuntary_switches,
        network_bytes=report.network_bytes,
    )
