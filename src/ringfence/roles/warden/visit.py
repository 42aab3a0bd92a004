"""A visit that a warden leads beside many others: its leader shares a process, and holds nothing when it is over.

Part of: warden
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # loads nothing, see ADR 0003
import os
import time
from _collections_abc import Sequence

from ringfence.kernel.proc import procfs
from ringfence.roles.leader import OVER, STARTS
from ringfence.roles.sandbox_leader import SandboxLeader
from ringfence.steps import executor as plan
from ringfence.transport import wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.roles.warden.warden import Warden
    from ringfence.transport.request import StandbyRequest, VisitRequest

_TURN_NS, _DRAIN_NS = 2_000_000, 10_000_000  # meanwhile no sandbox is led
_LATEST_WORD_S, _AGAIN_NS = 10.0, 10_000_000


class LateOutbox(wire.Outbox):
    """Never waits for the caller."""

    def __init__(self, pipe: int) -> None:
        super().__init__(pipe)
        os.set_blocking(pipe, False)
        self._bytes = b""

    def put(self, data: bytes) -> None:
        self._bytes += data
        self.flush()

    def put_long(self, data: bytes) -> None:
        self.put(data)

    def flush(self) -> None:
        while self._bytes:
            try:
                self._bytes = self._bytes[os.write(self._pipe, self._bytes) :]
            except BlockingIOError:
                return
            except OSError:
                self._bytes = b""  # nobody listens

    def end(self, last: bytes) -> None:
        self.put(last)

    @property
    def is_empty(self) -> bool:
        return not self._bytes


class WardedVisit(SandboxLeader):
    """A leader in a warden, which has pid 1 made by a zygote."""

    def __init__(self, request: VisitRequest, descriptors: list[int], warden: Warden, ticket: int) -> None:
        commands, reports, owner, self._post = descriptors
        self._warden, self.ticket = warden, ticket
        self.small: StandbyRequest = {"draft": 0, "groups": request["groups"], "standby": True}
        super().__init__(request, commands, reports, owner, warden.loop)
        self.outbox: LateOutbox = LateOutbox(reports)
        self.identity = 0
        self.maker = -1
        """Who has made pid 1."""
        self.sockets = -1
        """The count of sockets in its own network; -1: it has none, or no sandbox was made."""
        self._give_up_telling_s = 0.0

    def _introduce(self) -> None:
        """There is no pid 1 yet: the caller is told of it once it exists."""
        self.tree.own_io = self._warden.own_io

    def _have_made(self, kept: Sequence[int], streams: Sequence[int]) -> None:
        self._own.identity = self.identity
        self.tree.awaited = True
        # From here on it belongs to the order: if no zygote takes that, this visit is over before ``order`` returns.
        post, self._post = self._post, -1
        self._warden.order(self, [*kept, post, self._own.door], [*kept, post])

    def depends_on(self, maker: int) -> bool:
        """Whether pid 1 is there, and may still wait for this zygote to let it go."""
        return self.maker == maker and self.phase == STARTS and not self.tree.stood_by

    @property
    def may_have_used_network(self) -> bool:
        """Whether something may be left in its network namespace: a socket was made there, or some of its processes may
        still be."""
        return self._failed or (self.contained is not None and self.contained.witness.used_network)

    def note_made_by(self, maker: int, pid: int) -> None:
        """pid 1 is there, and waits for its ids."""
        self.maker = maker
        self._note_made(pid)
        self.watchdog.processor_time.session = pid
        if "net" in self.request["namespaces"]:
            self.sockets = procfs.open_socket_count(pid)
        self.outbox.put(wire.started_frame(pid))
        self._once_more()

    def note_failed(self, step: str, number: int, problem: str) -> None:
        self.tree.awaited = False
        if self.phase == STARTS:
            self._guarded(self._raise, plan.StepFailed(step, OSError(number, problem)))

    def _raise(self, failed: plan.StepFailed) -> None:
        raise failed

    def note_asked(self) -> None:
        self._guarded(self._note, "asked", 0)

    def _hear(self, descriptor: int) -> None:
        if descriptor == self.setup and self.tree.awaited:
            self._warden.hear_makers()
            if self.phase != STARTS:
                return  # the visit has ended together with its maker
        super()._hear(descriptor)

    def _rehearse(self) -> None:
        """Not needed: others were led in this process before."""

    def _run(self) -> None:
        super()._run()
        self._own.drain_ns = _DRAIN_NS
        if self._own.responder is not None:
            self._own.responder.hurry(_TURN_NS)

    def _fail(self, frame: bytes) -> None:
        """A visit that can't be ended in order must not end the others."""
        if not self._failed:
            return super()._fail(frame)
        if self.tree.child and not self.tree.is_collected:
            os.kill(self.tree.child, signal.SIGKILL)
        return self._let_go()

    def _leave(self) -> None:
        """Leave once the caller has taken the last word, or is gone, or does not read."""
        self.outbox.flush()
        now = time.monotonic()
        self._give_up_telling_s = self._give_up_telling_s or now + _LATEST_WORD_S
        if self.outbox.is_empty or now > self._give_up_telling_s:
            self._let_go()
        else:
            self._next = self.loop.at(time.monotonic_ns() + _AGAIN_NS, self._once_more)

    def _let_go(self) -> None:
        """Only once: a number that is closed here may belong to another visit afterwards."""
        if self.phase == OVER:
            return
        super()._leave()
        self._close()
        self._warden.forget(self)

    def _close(self) -> None:
        contained = self.contained
        found = [self.commands, self.reports, self.owner, self._post, self.setup, self.farewell, self.tree.wakeup]
        if contained is not None:
            found += [contained.status, contained.door, self._own.tally]
            for source in (contained.tripwire, contained.responder):
                if source is not None:
                    source.close()
        for descriptor in found:
            if descriptor >= 0:
                os.close(descriptor)
        self.watchdog.close()
