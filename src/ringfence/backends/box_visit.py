"""A box that lives between visits, from the caller's side: who keeps it open, and a visit to it."""

from __future__ import annotations

import os
import select
import time
from _collections_abc import Callable
from _thread import allocate_lock

from ringfence.backends.facts import Report
from ringfence.backends.groups import GroupVisit
from ringfence.backends.leader_client import LeaderClient
from ringfence.backends.leader_sources import ZygoteSource
from ringfence.errors import SetupError
from ringfence.model.record import record, replace
from ringfence.sandbox.spec import Spec
from ringfence.transport import wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.monitor.source import Source
    from ringfence.transport.request import VisitRequest

_GRACE_S, _OWN_PATIENCE_S = 1.0, 10.0
_HOLDER_GONE = "reaper_gone"


class LingeringLeaders:
    """Leaders that stay with what their visits have left running, each by a descriptor of its process."""

    def __init__(self) -> None:
        self._leaders: list[int] = []
        self._lock = allocate_lock()
        self._box_has_ended = False

    def add(self, leader: int) -> None:
        with self._lock:
            self._leaders = [each for each in (*self._leaders, leader) if not self._is_done(each)]

    def _is_done(self, leader: int) -> bool:
        """Whether it has ended, or nobody waits any more; then its descriptor is closed."""
        done = self._box_has_ended or wire.is_readable(leader)
        if done:
            os.close(leader)
        return done

    def await_end(self) -> None:
        """Of a box that has ended: they notice by themselves."""
        with self._lock:
            self._box_has_ended = True
            leaders, self._leaders = self._leaders, []
        for leader in leaders:
            wire.is_readable(leader, _GRACE_S)
            os.close(leader)

    def __del__(self) -> None:
        """Of a box that everybody has forgotten."""
        for leader in self._leaders:
            os.close(leader)


class VisitToBox(LeaderClient):
    """A visit to a living box; what the supervisor of the box reports of the whole is received too."""

    def __init__(self, request: VisitRequest, streams: tuple[int, ...], supervisor: BoxSupervisor) -> None:
        self._supervisor = supervisor.visit
        self._lingering = supervisor.lingering
        self._events_before = supervisor.visit.events()
        self._bytes_before = supervisor.visit.network()[0]
        super().__init__(request, (supervisor.visit.post, *streams), supervisor.source)

    def release(self) -> None:
        with self._open_lock:
            if self._report is not None and self._leader_pidfd >= 0:
                self._lingering.add(os.dup(self._leader_pidfd))
        super().release()

    def filenos(self) -> tuple[int, ...]:
        return (*super().filenos(), *self._supervisor.filenos())

    def receive(self) -> Report | None:
        report = self._receive_own()
        ended = self._supervisor.receive()
        if ended is None and report is not None and report.cause == _HOLDER_GONE:
            ended = _final_report(self._supervisor.filenos(), self._supervisor.receive, _GRACE_S)
        elif ended is not None and report is None:
            report = self._own_last_word()
        if ended is not None:  # the box itself is at its end: that is why the visit is
            return replace(ended, wall_ns=report.wall_ns if report else ended.wall_ns)
        return None if report is None else self._counted(report)

    def _receive_own(self) -> Report | None:
        """A box that has ended can't be entered, and what it ended by is the guest's doing: a fact, not a failure."""
        try:
            return super().receive()
        except SetupError as error:
            if error.step != wire.ENTER:
                raise
            self.entered = False
            return Report(cause=_HOLDER_GONE, signal=9)

    def _counted(self, report: Report) -> Report:
        now, before = self._supervisor.events(), self._events_before
        oom_kills, pids_hits = now[0] - before[0], now[1] - before[1]
        never_was = report.cause == _HOLDER_GONE and pids_hits > 0  # pid 1 had no room for it
        network_bytes, network_problem = self._supervisor.network(settled=True)
        return replace(report, cause="" if never_was else report.cause, box_oom_kills=max(0, oom_kills),
                       cgroup_pids_hits=max(0, pids_hits), network_problem=network_problem,
                       network_bytes=network_bytes - self._bytes_before)  # fmt: skip

    def source(self) -> Source:
        """Of the whole box: a visit is led from beside it, not from above."""
        return self._supervisor.source()

    def _own_last_word(self) -> Report | None:
        """Whether the job has begun at all; the supervisor reports why it ended, since the box is gone."""
        try:
            return _final_report(super().filenos(), self._receive_own, _OWN_PATIENCE_S)
        except SetupError:
            return None

    def take_notes(self) -> list[dict[str, object]]:
        own = super().take_notes()
        self._supervisor.hear(own)
        return [*own, *self._supervisor.take_notes()]


@record
class BoxSupervisor:
    """What a living box has: the visit that keeps it open, what it is made by, and what forks leaders for it."""

    visit: GroupVisit
    spec: Spec
    source: ZygoteSource
    lingering: LingeringLeaders


def _final_report(sources: tuple[int, ...], receive: Callable[[], Report | None], patience_s: float) -> Report | None:
    """Of one of the two leaders, which says a moment after the other what it has to say; None: it has nothing."""
    poller = select.poll()
    for source in sources:
        poller.register(source, select.POLLIN)
    give_up = time.monotonic() + patience_s
    while (left_s := give_up - time.monotonic()) > 0 and poller.poll(left_s * 1000):
        report = receive()
        if report is not None:
            return report
    return None
