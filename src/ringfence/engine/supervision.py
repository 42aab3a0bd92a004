"""One visit from start to outcome: one loop over the job's streams, its end and the deadline.

The limits are held by the leader, close to the job. This loop only reads, feeds and waits; its own
deadline is the net for a leader that was stopped or lost.
"""

from __future__ import annotations

import os
import select
import time
from _collections_abc import Callable, Mapping

from ringfence.backends.facts import Report
from ringfence.engine.streams import Streams
from ringfence.engine.verdict import Verdict, judge
from ringfence.errors import SupervisionError
from ringfence.model.events import Event, EventKind, OnEvent, OnOutput
from ringfence.model.job import Job
from ringfence.model.limits import IsolationLevel, OutputOverflow
from ringfence.model.outcome import PARTIAL_ENFORCEMENT, Outcome, Status, Usage
from ringfence.model.policy import SandboxPolicy
from ringfence.model.record import record, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeAlias

    from ringfence.backends.contract import Box, Visit

_NET_S = 5.0
_LOOK_S = 1.0
_LONGEST_WAIT_S = 3600.0  # the kernel takes no more than 24 days, a policy may allow years
_SIGKILL = 9


TellAttempt: TypeAlias = "Callable[[Mapping[str, object]], None]"
Attach: TypeAlias = "Callable[[Visit, Streams], None]"


@record
class Listeners:
    """Who is told what while a job runs."""

    on_event: OnEvent | None = None
    on_output: OnOutput | None = None
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
        event = Event(kind=kind, run_id=self.run_id, time_s=time.time(), details=details)
        self.events.append(event)
        if self._on_event:
            self._on_event(event)

    def tell_attempt(self, attempt: Mapping[str, object]) -> None:
        """Something that the recorder saw: refused, or allowed and telling."""
        kind = EventKind.VIOLATION if attempt.get("errno") else EventKind.EGRESS
        self.tell(kind, **{str(name): value for name, value in attempt.items()})


def supervise(box: Box, job: Job, policy: SandboxPolicy, *, partial: bool, listeners: Listeners) -> Outcome:
    """Run one job in the box."""
    log = _Log(listeners.on_event)
    apart = policy.isolation is IsolationLevel.STRICT  # elsewhere the job has the caller's files anyway
    streams = Streams(job, policy.output_bytes, listeners.on_output, files_apart=apart)
    try:
        log.tell(EventKind.START, argv=list(job.argv))
        report = _visit(box, job, policy, streams, listeners.attach, log)
        applied = frozenset(name for name, entry in box.enforced.items() if entry.applied)
        verdict = judge(report, policy, applied, streams.stderr.tail)
        # Some of it is known only once the job's folder is, when the refusal is over.
        partial = partial or len(applied) < len(box.enforced)
        outcome = _outcome(job, box, streams, report, verdict, partial)
    finally:
        streams.close()
    for name in outcome.limits_hit:
        log.tell(EventKind.LIMIT, capability=name, reason=outcome.reason)
    log.tell(EventKind.EXIT, status=str(outcome.status), rc=outcome.rc)
    return replace(outcome, run_id=log.run_id, events=tuple(log.events))


def _visit(
    box: Box, job: Job, policy: SandboxPolicy, streams: Streams, attach: Attach | None, log: _Log
) -> Report:
    visit = box.start(job, streams.theirs)
    try:
        streams.release_theirs()
        if attach:
            attach(visit, streams)
        return _Loop(visit, streams, policy, log.tell_attempt).run()
    finally:
        visit.close()


class _Loop:
    """Waits for whatever comes first, until the end has come."""

    def __init__(self, visit: Visit, streams: Streams, policy: SandboxPolicy, tell_attempt: TellAttempt) -> None:
        self.tell_attempt = tell_attempt
        self.visit = visit
        self.streams = streams
        self.policy = policy
        self.killed_for_output = False
        self.poller = select.poll()

    def run(self) -> Report:
        self._register()
        report = self._wait()
        self.streams.drain()
        if report.survivors:
            raise SupervisionError(f"{report.survivors} processes of the job could not be killed")
        # Judged by what was printed, not by whether the kill or the job's own end came first.
        ended_for_output = self._over_output() and report.cause in ("", "asked")
        return replace(report, cause="output") if ended_for_output else report

    def _register(self) -> None:
        for descriptor in (*self.visit.filenos(), *self.streams.readers):
            self.poller.register(descriptor, select.POLLIN)
        if self.streams.writer >= 0:
            self.poller.register(self.streams.writer, select.POLLOUT)
        if self.streams.keyboard >= 0:
            self.poller.register(self.streams.keyboard, select.POLLIN)

    def _wait(self) -> Report:
        net = time.monotonic() + self.policy.wall_time_s + _NET_S
        abandoned, begun = False, self.visit.begun
        while True:
            wait_s = min(max(0.0, net - time.monotonic()), _LONGEST_WAIT_S)
            for descriptor, _ in self.poller.poll(wait_s * 1000):
                report = self._handle(descriptor)
                if report is not None:
                    return report
            if not abandoned and begun is not self.visit.begun:
                begun, net = True, time.monotonic() + self.policy.wall_time_s + _NET_S
            # Also while output arrives: a job may have stopped its leader and go on printing.
            if time.monotonic() >= net and not begun and not abandoned and self.visit.may_begin():
                net += _LOOK_S
            elif time.monotonic() >= net:
                if abandoned:
                    raise SupervisionError("the supervising process did not end when it was killed")
                self.visit.abandon()
                abandoned, net = True, time.monotonic() + _NET_S

    def _handle(self, descriptor: int) -> Report | None:
        if descriptor in self.visit.filenos():
            report = self.visit.receive()
            for attempt in self.visit.take_notes():
                self.tell_attempt(attempt)
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
        dropped = self.streams.stdout.dropped or self.streams.stderr.dropped
        return bool(dropped) and self.policy.on_output_limit is OutputOverflow.KILL


def _outcome(
    job: Job, box: Box, streams: Streams, report: Report, verdict: Verdict, partial: bool
) -> Outcome:
    hit = dict.fromkeys(verdict.limits_hit)
    dropped = streams.stdout.dropped or streams.stderr.dropped
    if dropped:
        hit["output"] = None
    return Outcome(
        status=verdict.status,
        rc=verdict.rc,
        reason=_reason(verdict, streams, partial),
        stdout=streams.stdout.result(),
        stderr=streams.stderr.result(),
        stdout_dropped=streams.stdout.dropped,
        stderr_dropped=streams.stderr.dropped,
        duration_ms=report.wall_ns // 1_000_000,
        argv=job.argv,
        enforced=box.enforced,
        usage=_usage(report),
        limits_hit=tuple(hit),
        partial=partial,
        recorder=report.recorder,
        message=streams.message(),
    )


def _reason(verdict: Verdict, streams: Streams, partial: bool) -> str:
    reason = verdict.reason
    if partial:
        plain = verdict.status in (Status.OK, Status.FAILED)
        reason = PARTIAL_ENFORCEMENT if plain else f"{PARTIAL_ENFORCEMENT}: {reason}"
    cut = [capture for capture in (streams.stdout, streams.stderr) if capture.dropped]
    notes = (f"{capture.name} was cut, {capture.dropped} bytes dropped" for capture in cut)
    return "; ".join((reason, *notes))


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
    )
