"""A box that lives between visits, from the caller's side: what keeps it open, and a visit to it.

What is tried between visits, or after the last, is ``hearing``'s.
"""

from __future__ import annotations

import select
import time
from _collections_abc import Callable
from _thread import get_ident

from ringfence.backends.facts import Report
from ringfence.backends.groups import GroupVisit
from ringfence.backends.leader_client import LeaderClient
from ringfence.backends.leader_sources import ZygoteSource
from ringfence.backends.living.hearing import BoxHearing, by_gateway
from ringfence.checkpoint.late import Late, gaps_in, with_late
from ringfence.errors import SetupError
from ringfence.model.record import record, replace
from ringfence.sandbox.spec import Spec
from ringfence.transport import wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.backends.egress_link import EgressLink
    from ringfence.monitor.source import Source
    from ringfence.transport.report import Note
    from ringfence.transport.request import VisitRequest

_GRACE_S, _OWN_PATIENCE_S, _LOOK_S = 1.0, 10.0, 0.001
_HOLDER_GONE = "reaper_gone"


class VisitToBox(LeaderClient):
    """A visit to a living box; it also receives what the supervisor reports of the whole box."""

    _asked_on = _said_on = 0
    """How often its leader was asked to catch up, and said that it has."""
    _reader = 0
    """The thread that supervises it."""

    def __init__(
        self, request: VisitRequest, streams: tuple[int, ...], supervisor: BoxSupervisor, since: str | None
    ) -> None:
        """``since``: the checkpoint before it, for what it leaves running; None: a transfer of ours, no result."""
        self._supervisor = supervisor.visit
        self._hearing = supervisor.hearing
        self.since = since
        self.number = self._hearing.enter(since)
        self._events_before = supervisor.visit.events()
        self._bytes_before = supervisor.visit.network()[0]
        self._settled: Report | None = None
        self._late: list[Late] = []
        """What processes of earlier visits tried, which belongs to its result."""
        self._beside: list[Note] = []
        """What the supervisor told of it and nobody has taken yet."""
        self._wired: list[Note] = []
        """Everything that tripwires told of it: its own recorder does not count that."""
        self._copies: list[Note] = []
        """Everything that was told of it, for a caller that asks what it has tried so far."""
        try:
            super().__init__(request | {"in_box": self.number}, (supervisor.visit.post, *streams), supervisor.source)
        except BaseException:
            self._hearing.leave(self.number)
            raise
        self._hearing.begun(self)

    def release(self) -> None:
        """Its leader is heard even after its end: it stays with what is left, and records what that tries."""
        self._hearing.leave(self.number)
        if self._report is not None and self._reports >= 0:
            self._hearing.stay(self)
        else:
            super().release()
        late, self._late = self._late, []
        self._hearing.put_back(late)

    def hang_up(self) -> None:
        super().release()

    def is_gone_silently(self) -> bool:
        """Whether its leader has left, and has said nothing that anybody must know."""
        self.await_word(0)
        return self.has_left and not self._notes and not gaps_in(self._pages)[0]

    def filenos(self) -> tuple[int, ...]:
        return (*super().filenos(), *self._supervisor.filenos())

    def receive(self) -> Report | None:
        """When the end has come, ask the recorders of what earlier visits left running."""
        self._reader = get_ident()
        if self._settled is None:
            report = self._received()
            self._settled = report if report is None or self.since is None else self._with_late(report)
        return self._settled

    def _with_late(self, report: Report) -> Report:
        self._take_beside()  # before it has left: an earlier visit that goes on would take it
        self._late = self._hearing.settle(self)
        for late in self._late:
            self._supervisor.hear([dict(note) for note in late.notes])
        self._take_beside()
        return replace(report, recorder=with_late(report.recorder, self._wired, self._late))

    def _received(self) -> Report | None:
        report = self._receive_own()
        ended = self._supervisor.receive()
        if ended is None and report is not None and report.cause == _HOLDER_GONE:
            ended = _final_report(self._supervisor.filenos(), self._supervisor.receive, _GRACE_S)
        elif ended is not None and report is None:
            report = self._own_last_word()
        if ended is not None:  # the box itself is at its end: that is why the visit is
            own = report or ended
            return replace(ended, wall_ns=own.wall_ns, recorder=own.recorder)
        return None if report is None else self._counted(report)

    def _receive_own(self) -> Report | None:
        """A box that has ended can't be entered. The guest caused its end, so that is a fact, not a failure."""
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
                       peak_memory_bytes=self._supervisor.most_memory(report.peak_memory_bytes),
                       network_bytes=network_bytes - self._bytes_before)  # fmt: skip

    def source(self) -> Source:
        """Return the source of the whole box: a visit is led from beside it, not from above."""
        return self._supervisor.source()

    def _own_last_word(self) -> Report | None:
        """Whether the job has begun at all; the supervisor reports why it ended, since the box is gone."""
        try:
            return _final_report(super().filenos(), self._receive_own, _OWN_PATIENCE_S)
        except SetupError:
            return None

    def take_own_notes(self) -> list[Note]:
        """The notes of its own leader alone."""
        return super().take_notes()

    def take_notes(self) -> list[Note]:
        own = super().take_notes()
        self._take_beside()
        beside, self._beside = self._beside, []
        late = [dict(note) for each in self._late for note in each.notes]
        self._late = []
        return [*own, *beside, *late]

    def _take_beside(self) -> None:
        taken = self._hearing.take(self.number, beside=self.since is not None)
        wired = [note for note in taken if "aim" in note]
        self._wired += wired
        self._copies += [*wired, *(note for note in taken if by_gateway(note))]
        self._beside += taken

    def _handle(self, kind: bytes, body: bytes) -> None:
        """Its notes are passed on at once: what the gateway decided is told with the process that asked, and both may
        come together with the end."""
        before = len(self._notes)
        self._said_on += kind == wire.SAID
        super()._handle(kind, body)
        self._supervisor.hear(self._notes[before:])
        if self._report is None:
            self._copies += self._notes[before:]

    def catch_up(self, within_s: float) -> bool:
        """Wait until everything is heard that its leader has recorded up to now; return whether it was. The thread that
        supervises the visit does the reading, so a callback in that thread can't wait for it."""
        with self._open_lock:
            self._asked_on += 1
            mine, is_reader = self._asked_on, self._reader == get_ident()
        self._send(bytes((wire.SAY_ON,)))
        give_up = time.monotonic() + (0 if is_reader else within_s)
        while self._said_on < mine and not (self.is_told or self.has_left or self.is_over):
            if time.monotonic() > give_up:
                return False
            time.sleep(_LOOK_S)
        return self._said_on >= mine or self.is_told or self.has_left

    def take_copies(self) -> tuple[list[Note], list[Note]]:
        """Copies of what it has tried since the last call, and of what its recorder said at its end."""
        copies, self._copies = self._copies, []
        return copies, [dict(self._report.recorder)] if self._report is not None else []


@record
class BoxSupervisor:
    """What a living box has: the visit that keeps it open, the spec it is made by, and what forks its leaders."""

    visit: GroupVisit
    spec: Spec
    source: ZygoteSource
    hearing: BoxHearing
    link: EgressLink | None
    """To the gateway; None: its network is empty, or the host's."""


def _final_report(sources: tuple[int, ...], receive: Callable[[], Report | None], patience_s: float) -> Report | None:
    """The report of one of the two leaders, which comes a moment after the other's; None: it has nothing to say."""
    poller = select.poll()
    for source in sources:
        poller.register(source, select.POLLIN)
    give_up = time.monotonic() + patience_s
    while (left_s := give_up - time.monotonic()) > 0 and poller.poll(left_s * 1000):
        report = receive()
        if report is not None:
            return report
    return None
