"""A box that lives between visits, from the caller's side: who keeps it open, and a visit to it."""

from __future__ import annotations

import os
import select
import time
from _collections_abc import Callable
from _thread import allocate_lock

from ringfence.backends.facts import Report
from ringfence.backends.forkers import FromMould
from ringfence.backends.groups import GroupVisit
from ringfence.backends.led_visit import LedVisit
from ringfence.errors import SetupError
from ringfence.linux.rootfs import Wish
from ringfence.model.record import record, replace
from ringfence.posix import wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.monitor.source import Source

_PATIENCE_S, _OWN_PATIENCE_S = 1.0, 10.0
_HOLDER_GONE = "holder_gone"


class Stragglers:
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
            wire.is_readable(leader, _PATIENCE_S)
            os.close(leader)

    def __del__(self) -> None:
        """Of a box that everybody has forgotten."""
        for leader in self._leaders:
            os.close(leader)


class VisitToBox(LedVisit):
    """A visit to a living box; what its keeper says of the whole is heard too."""

    def __init__(self, request: dict[str, object], streams: tuple[int, ...], keeper: Keeper) -> None:
        self._keeper = keeper.visit
        self._stragglers = keeper.stragglers
        self._events_before = keeper.visit.events()
        super().__init__(request, (keeper.visit.post, *streams), keeper.forker)

    def release(self) -> None:
        with self._open_lock:
            if self._report is not None and self._leader_pidfd >= 0:
                self._stragglers.add(os.dup(self._leader_pidfd))
        super().release()

    def filenos(self) -> tuple[int, ...]:
        return (self.fileno(), self._keeper.fileno())

    def receive(self) -> Report | None:
        report = self._receive_own()
        ended = self._keeper.receive()
        if ended is None and report is not None and report.cause == _HOLDER_GONE:
            ended = _last_word(self._keeper.fileno(), self._keeper.receive, _PATIENCE_S)
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
        now, before = self._keeper.events(), self._events_before
        oom_kills, pids_hits = now[0] - before[0], now[1] - before[1]
        never_was = report.cause == _HOLDER_GONE and pids_hits > 0  # pid 1 had no room for it
        return replace(report, cause="" if never_was else report.cause, box_oom_kills=max(0, oom_kills),
                       cgroup_pids_hits=max(0, pids_hits))  # fmt: skip

    def source(self) -> Source:
        """Of the whole box: a visit is led from beside it, not from above."""
        return self._keeper.source()

    def _own_last_word(self) -> Report | None:
        """Whether the job has begun at all; why it ended says the keeper. It will be said, for the box is gone."""
        try:
            return _last_word(self.fileno(), self._receive_own, _OWN_PATIENCE_S)
        except SetupError:
            return None

    def take_notes(self) -> list[dict[str, object]]:
        return [*super().take_notes(), *self._keeper.take_notes()]


@record
class Keeper:
    """What a living box has: the visit that keeps it open, what it shows, and what forks leaders for it."""

    visit: GroupVisit
    wish: Wish
    forker: FromMould
    stragglers: Stragglers


def _last_word(source: int, receive: Callable[[], Report | None], patience_s: float) -> Report | None:
    """Of one of the two leaders, which says a moment after the other what it has to say; None: it has nothing."""
    poller = select.poll()
    poller.register(source, select.POLLIN)
    give_up = time.monotonic() + patience_s
    while (left_s := give_up - time.monotonic()) > 0 and poller.poll(left_s * 1000):
        report = receive()
        if report is not None:
            return report
    return None
