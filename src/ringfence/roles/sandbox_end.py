"""The leader's side of a sandbox with namespaces: hears how the job ended, and serves the recorder.

Part of: leader, leader of a visit, warden

Linux only. It holds no limit and ends nothing (``leader``); what the recorder keeps and how it is answered are
``kernel.recorder``, ``kernel.seccomp.responder`` and ``kernel.tripwire.serve``.
"""

from __future__ import annotations

import marshal
import os
import time
from _collections_abc import Callable

from ringfence.kernel.proc import processes
from ringfence.kernel.recorder import Recorder, as_rows
from ringfence.kernel.seccomp.chosen import profile_of
from ringfence.kernel.seccomp.responder import MAX_CALLS_PER_TURN, NotifyResponder
from ringfence.kernel.seccomp.witness import Witness
from ringfence.roles.pace import Pace
from ringfence.steps.pid1 import ENDED, OPERATIONS
from ringfence.steps.state import LAST_SOCKET, LISTENER, REAPER, SOCKETS, TRIPWIRE, UNHEARD
from ringfence.steps.step import StepFailed
from ringfence.transport import passing, wire
from ringfence.transport.plain_json import dumps

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.kernel.seccomp.rules import Profile
    from ringfence.kernel.tripwire.serve import Tripwire
    from ringfence.roles.loop import Descriptors
    from ringfence.transport.report import NotedFrame
    from ringfence.transport.request import VisitRequest

    Tell = Callable[[NotedFrame], None]

PID_1 = 1


class SandboxEnd:
    """What comes out of a sandbox: how the job ended, and what the recorder is told."""

    reaper = -1
    """In a box: a descriptor of the process that holds this visit."""
    listeners = -1
    """The socket to the gateway; -1: there is none, or all sockets were handed over."""
    drain_ns = 100_000_000
    """How long, at most, a guest that asks for things to the very end is listened to."""

    def __init__(self, request: VisitRequest, tell: Tell) -> None:
        self.request = request
        self.recorder = Recorder(write=tell)
        self.heard = request["heard"]
        self.witness = Witness(self.heard["witness"])
        self._pace = Pace(self.heard["share"])
        self.responder: NotifyResponder | None = None
        self.tripwire: Tripwire | None = None
        self.pid = 0
        """As the host knows it: pid 1 of a sandbox, or in a box the process that holds this visit."""
        self.identity = 0
        """The id on the host, if the caller is root."""
        self.status, self._told = os.pipe()
        self.door, self._theirs = passing.channel()

    def listen(self, poller: Descriptors) -> None:
        """Listen for what is handed over, and from then on to that too."""
        self._poller = poller
        poller.register(self.door)

    def receive_handover(self) -> bool:
        """Take something handed over through the door; False: the other side is gone."""
        kind, descriptors = passing.receive(self.door)
        if kind == LISTENER and descriptors:
            heard = self.heard
            self.responder = NotifyResponder(
                descriptors[0], self._profile, self.recorder, heard["watched"], private=heard.get("private", ()),
                wired=heard["wired"], witness=self.witness,
            )  # fmt: skip
            self._poller.register(descriptors[0])
        elif kind == TRIPWIRE and len(descriptors) == 3:
            self._poller.register(self._lay(*descriptors))
        elif kind == UNHEARD:
            self.recorder.lose(1, "an outer sandbox listens to the system calls, so nobody is told of what is refused")
        elif kind == REAPER and descriptors:
            self.pid = processes.pid_of(descriptors[0])
            self.reaper = descriptors[0]
        elif kind in (SOCKETS, LAST_SOCKET):
            self._pass_on(kind, descriptors)
        return bool(kind)

    def _pass_on(self, kind: bytes, sockets: list[int]) -> None:
        """Pass sockets to the gateway, which accepts whatever it gets: so nothing once pid 1 has said this is all."""
        try:
            if self.listeners >= 0:
                passing.send(self.listeners, kind, sockets)
        except OSError as error:
            raise StepFailed("listen", OSError(error.errno, f"the gateway: {error.strerror}")) from error
        finally:
            for descriptor in sockets:
                os.close(descriptor)
        if kind == LAST_SOCKET and self.listeners >= 0:
            os.close(self.listeners)
            self.listeners = -1

    def close_handover(self) -> None:
        """What comes through the door is trusted, so nothing may come once the program runs; messages from before may
        still be queued."""
        while self.door >= 0 and wire.is_readable(self.door):
            self.on_readable(self.door)
        if self.door >= 0 and self._is_complete():
            self._close_door()

    def _is_complete(self) -> bool:
        """Whether everything has been handed over."""
        return True

    def _close_door(self) -> None:
        self._poller.unregister(self.door)
        os.close(self.door)
        self.door = -1

    def _profile(self) -> Profile:
        heard = self.heard
        return profile_of(heard["profile"], heard["ids"], watched=bool(heard["watched"]), wired=heard["wired"],
                          witness=heard["witness"])  # fmt: skip

    def _lay(self, device: int, proc: int, layout: int) -> int:
        """A tripwire of this layout; before the job's program runs, so what pid 1 says is trusted."""
        from ringfence.kernel.tripwire import layout as tripwire_layout
        from ringfence.kernel.tripwire import serve as tripwire

        with open(layout, "rb") as file:
            nodes = tripwire_layout.from_data(marshal.load(file))
        uid, gid = self.heard["ids"]
        self.tripwire = tripwire.Tripwire(device, nodes, mounter=PID_1, proc=proc, uid=uid, gid=gid,
                                          visited=self.request.get("visited", False))  # fmt: skip
        return device

    def on_readable(self, descriptor: int) -> None:
        """Take, answer and record what waits there."""
        if descriptor == self.door:
            if not self.receive_handover():
                self._close_door()
        elif self.responder is not None and descriptor == self.responder.fileno():
            self._answer(descriptor, self.responder.handle)
            self._forget(self.responder)
        elif self.tripwire is not None and descriptor == self.tripwire.fileno():
            self._answer(descriptor, self._serve_tripwire)
            self._forget(self.tripwire)

    def _answer(self, descriptor: int, answer: Callable[[], None]) -> None:
        """Answer now, or later if the guest has used up its share."""
        pause_ns = self._pace.work(answer)
        if pause_ns:
            self._poller.pause(descriptor, pause_ns)

    def _serve_tripwire(self) -> None:
        assert self.tripwire is not None
        for attempt in self.tripwire.handle(self.recorder.wants):
            self.recorder.record(attempt)

    def answering_s(self) -> float:
        """Processor time that it took to answer the guest so far."""
        return self._pace.spent_ns / 1e9

    def _forget(self, source: NotifyResponder | Tripwire) -> None:
        """Stop polling once the last process under the filter is gone, or the mount: it stays readable, and would be
        polled for ever."""
        if source.finished:
            self._poller.unregister(source.fileno())

    def ended(self) -> tuple[int, ...] | None:
        """How the job ended and what it used, as pid 1 reports; None if pid 1 was killed before it could."""
        data = os.read(self.status, ENDED.size)
        return ENDED.unpack(data) if len(data) == ENDED.size else None

    def drain(self) -> None:
        """Before everything left is killed: record what it asks for at this moment. Calls are no longer answered, so
        each thread has at most one; tripwires must be answered. If the guest goes on asking, some attempts are left
        over."""
        until_ns = time.monotonic_ns() + self.drain_ns
        if self.responder is not None and not self.responder.drain(until_ns):
            self.recorder.lose(1, "calls were still made when all was ended")
        if self.tripwire is not None and not self._drain_tripwire(self.tripwire, until_ns):
            self.recorder.lose(1, "hidden paths were still asked for when all was ended")

    def _drain_tripwire(self, tripwire: Tripwire, until_ns: int) -> bool:
        taken = 0
        while not tripwire.finished and wire.is_readable(tripwire.fileno()):
            if taken >= MAX_CALLS_PER_TURN and time.monotonic_ns() > until_ns:
                return False
            taken += 1
            self._serve_tripwire()
        return True

    def page(self) -> bytes:
        """The recorder's word on everything recorded since the last page: ``last_word``."""
        self._count_lost()
        word = self.last_word()
        self.recorder.turn_page()
        if self.responder is not None:
            self.responder.forbidden = ""
        return word

    def page_frame(self) -> bytes:
        """The same as a frame for the asking caller, to whom everything since the last time belongs."""
        return wire.frame(wire.HEALTH, self.page())

    def close(self) -> bytes:
        """The recorder's last word. What comes now is late."""
        self._count_lost()
        self.recorder.close()
        return self.last_word()

    def _count_lost(self) -> None:
        if self.tripwire is not None:
            self.recorder.lose(self.tripwire.lost, "requests to the tripwires could not be answered")
            self.tripwire.lost = 0

    def last_word(self) -> bytes:
        """How sure the recorder is, and the first call that ended a process; JSON, or empty: ``wire.NOTHING_SEEN``."""
        forbidden = self.responder.forbidden if self.responder is not None else ""
        if self.recorder.is_blank and not forbidden:  # most sandboxes
            return b""
        health = self.recorder.health
        counted = {name: value for name, value in vars(health).items() if isinstance(value, int)}
        words = {"forbidden": forbidden, "problems": list(health.problems), "caveat": health.caveat}
        rows = {"totals": self.recorder.totals(), "summary": as_rows(self.recorder.summary)}
        told = counted | words | rows | {"complete": health.complete}
        if told == wire.NOTHING_SEEN:
            return b""
        return dumps(told).encode()


class BoxVisit(SandboxEnd):
    """What comes out of one visit to a box, and of what it leaves running."""

    operations = 0
    """Calls of the read and the write family that the job has made, where they are counted and it has ended."""

    def close(self) -> bytes:
        return self.page()

    def is_silent(self) -> bool:
        """Whether no process of this visit is left: its reaper has ended, and no process has its filter any more, since
        the guest may have killed the reaper."""
        if self.reaper >= 0 and not wire.is_readable(self.reaper):
            return False
        return self.responder is None or self.responder.is_over()

    @property
    def is_counted(self) -> bool:
        return "operations" in self.request["limits"]

    def ended(self) -> tuple[int, ...] | None:
        ended = super().ended()
        if ended is not None and self.is_counted:
            self.operations = max(0, OPERATIONS.unpack(os.read(self.status, OPERATIONS.size))[0])
        return ended

    def _is_complete(self) -> bool:
        """Not before the reaper is named: pid 1 may be late. It is not the job that names it: the job has no door."""
        return self.reaper >= 0


class OwnSandbox(SandboxEnd):
    """What comes out of one sandbox, from the making of its pid 1 to the last record."""

    def __init__(self, request: VisitRequest, tell: Tell) -> None:
        super().__init__(request, tell)
        self.tally = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        """Counts bytes that dead processes inside wrote, since it was last read."""
        self._counts = os.dup(self.tally)
