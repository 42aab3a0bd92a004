"""Leads one visit to a living box: like any visit, but the job is forked by the box's pid 1 and is not our child.

Runs as: leader of a visit, one for each job in a living box, until the last process of the visit has ended.
Parent: zygote
Holds: what a leader holds, a pidfd of the visit's reaper, and the visit's limit of time.
Must not have: a child; what the box may use in all, which its supervisor holds; other visits' processes.

It holds the visit's time limit. The leader of the box holds what the box may use in all. What a visit leaves running
when its job has ended stays, and ends with the box. While it runs somebody has to answer for its filter, and the caller
is told on request what it tries (docs/adr/0131).
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # loads nothing, see ADR 0003
import errno
import marshal
import os
import time
from _collections_abc import Sequence

from ringfence.kernel.proc import procfs
from ringfence.roles.box_pid1 import COUNTED, VISIT
from ringfence.roles.job_tree import JobTree
from ringfence.roles.leader import ENDS, OVER, Leader
from ringfence.roles.sandbox_end import BoxVisit, SandboxEnd
from ringfence.roles.watchdog import TICK_NS
from ringfence.steps import executor as plan
from ringfence.transport import passing, wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.kernel.proc.procfs import Process
    from ringfence.roles.watchdog import Table

_END_WAIT_S = 10.0
_STAYS = OVER + 1
"""The job has ended, and what it left behind is answered and recorded."""


class BoxedTree(JobTree):
    """The job is a child of the process that holds the visit; neither is our child."""

    contained: SandboxEnd | None = None

    def group(self) -> int:
        guest = self.contained
        return min(self.table.children(guest.pid), default=0) if guest is not None and _knows_holder(guest) else 0

    def top(self) -> int:
        """The reaper: other visits to the box are not our business."""
        return self.contained.pid if self.contained is not None else os.getpid()

    def reap(self) -> bool:
        return self.wait_status is not None

    def waited_for(self) -> tuple[int, ...]:
        return (0, 0, 0, 0, 0)


class BoxLeader(Leader):
    """``streams`` of its leader begin with the socket to the box's pid 1."""

    make_tree = BoxedTree
    tree: BoxedTree
    contained: BoxVisit | None

    def _fork_job(self, streams: Sequence[int]) -> None:
        guest = self.contained = self.tree.contained = BoxVisit(self.request, self._note_attempt)
        self.watchdog.answering_s, self.witness = guest.answering_s, guest.witness
        self.setup, writer = os.pipe()
        post, *streams = streams
        steps = os.memfd_create("plan")
        os.write(steps, marshal.dumps(self.request["plan"]))
        os.lseek(steps, 0, os.SEEK_SET)
        kind = COUNTED if guest.is_counted else VISIT
        try:
            passing.send(post, kind, [guest._theirs, writer, guest._told, steps, *streams],
                         b"%d" % self.request["in_box"])  # fmt: skip
        except OSError as error:
            raise plan.StepFailed(wire.ENTER, error) from error
        for descriptor in (guest._theirs, writer, guest._told, steps, post, *streams):
            os.close(descriptor)
        guest.listen(self.poller)
        self._listen()

    def _note_end(self, ended: tuple[int, ...] | None) -> None:
        super()._note_end(ended)
        if ended is not None or self.contained is None:
            return
        if not _knows_holder(self.contained):  # pid 1 has ended, or had no room for it
            raise plan.StepFailed(wire.ENTER, ProcessLookupError(errno.ESRCH, "nobody took the visit in"))
        self._note("reaper_gone", 0)  # a process in the box killed it: this visit's processes are not known any more

    def _root(self) -> int:
        return self.contained.pid if self.contained is not None else 0

    def _waited_for(self) -> int:
        """Operations of the job, with all children that it has waited for, once its reaper has reported them."""
        return self.contained.operations if self.contained is not None else 0

    def _begin_end(self) -> None:
        """The filter of this visit is still listened to: see ``_leave``."""
        self.phase = ENDS
        self._deadline.cancel()
        for descriptor in (self.commands, self.tree.wakeup, self.setup):
            self.poller.unregister(descriptor)

    def _drain(self) -> None:
        """Only if the processes are ended; those that stay are still listened to."""
        guest = self.contained
        if self.cause and guest is not None and guest.reaper >= 0 and not wire.is_readable(guest.reaper):
            guest.drain()

    def _leave(self) -> None:
        """Not before the last process of this visit has ended: nobody else answers the calls that its filter reports,
        and without an answer the kernel refuses them. The caller has heard the end, and may close its pipes."""
        guest = self.contained
        if self._failed or self.owner_gone or guest is None:
            super()._leave()
        elif self._is_silent(guest):
            self.outbox.end(guest.page_frame() + wire.frame(wire.LEFT, b""))
            super()._leave()
        elif self.phase != _STAYS:
            self.phase = _STAYS
            self.poller.unregister(guest.status)
            for descriptor in (self.commands, guest.reaper):
                self.poller.register(descriptor)

    def _is_silent(self, guest: BoxVisit) -> bool:
        return not _knows_holder(guest) or guest.is_silent()

    def _hear(self, descriptor: int) -> None:
        guest = self.contained
        if self.phase != _STAYS or guest is None:
            super()._hear(descriptor)
            return
        if descriptor == self.owner:
            self.owner_gone = True
        elif descriptor == guest.reaper:
            self.poller.unregister(descriptor)  # it stays readable
        elif descriptor == self.commands:
            self._hear_asked(guest)
        else:
            guest.on_readable(descriptor)
        self._leave()

    def _hear_asked(self, guest: BoxVisit) -> None:
        asked = os.read(self.commands, 4096)
        if not asked:
            self.poller.unregister(self.commands)  # nobody will ask any more
        for _ in range(asked.count(wire.TELL)):
            self.outbox.put_long(guest.page_frame())

    def _go_on(self) -> None:
        super()._go_on()
        if self.phase == _STAYS:
            self._flush_on()

    def _flush_on(self) -> None:
        """A caller that is slow to read still gets everything."""
        self.outbox.flush()
        if not self.outbox.is_empty:
            self._next.cancel()
            self._next = self.loop.at(time.monotonic_ns() + TICK_NS, self._once_more)

    def end_tree(self) -> bool:
        """Only if there is a cause to end the visit; what a job leaves behind when it ends by itself stays."""
        guest = self.contained
        if not self.cause or guest is None or not _knows_holder(guest):
            return True
        reaper = self.table.stat(guest.pid) if guest.pid else None
        give_up = time.monotonic() + _END_WAIT_S
        while time.monotonic() < give_up and not wire.is_readable(guest.reaper):
            _signal_all(self.table, guest.pid)
            time.sleep(0.001)
            if reaper is not None and not self.table.children(guest.pid):
                end_reaper(self.table, reaper, give_up)
        return True


def _knows_holder(guest: SandboxEnd) -> bool:
    """Waits until pid 1 has named the reaper: a visit that is signalled as soon as it begins must get the signal."""
    while guest.reaper < 0 and guest.door >= 0 and wire.is_readable(guest.door, _END_WAIT_S):
        if not guest.receive_handover():
            break
    return guest.reaper >= 0


def _signal_all(table: Table, reaper: int) -> None:
    for row in table.descendants(reaper):
        table.kill(row, signal.SIGKILL)


def end_reaper(table: Table, reaper: Process, give_up: float) -> None:
    """Stop the reaper first and look again: one that is just about to fork the job would leave it behind."""
    table.kill(reaper, signal.SIGSTOP)
    while time.monotonic() < give_up and _runs(table, reaper.pid):
        time.sleep(0.0001)
    table.kill(reaper, signal.SIGCONT if table.children(reaper.pid) else signal.SIGKILL)


def _runs(table: Table, pid: int) -> bool:
    row = table.stat(pid)
    return row is not None and not row.zombie and not procfs.is_stopped(pid)
