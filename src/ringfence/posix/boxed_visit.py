"""Leads one visit to a living box: like any visit, but the job is forked by the box's pid 1 and is not our child.

It holds the visit's time. What the box may use in all is held by the leader of the box; what a visit leaves running
when its job has ended stays, and ends with the box. As long as it runs somebody has to answer for its filter.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # loads nothing, see ADR 0003
import errno
import marshal
import os
import select
import time
from _collections_abc import Sequence

from ringfence.posix import passing, plan, wire
from ringfence.posix.box_init import VISIT
from ringfence.posix.contained import Guest, Visitor
from ringfence.posix.job_tree import JobTree
from ringfence.posix.visit import Visit

_END_WAIT_S = 10.0


class BoxedTree(JobTree):
    """The job is a child of the process that holds the visit, and none of them is ours."""

    def group(self) -> int:
        guest = self.contained
        return min(self.table.children(guest.pid), default=0) if guest is not None and _knows_holder(guest) else 0

    def reap(self) -> bool:
        return self.wait_status is not None


class BoxedVisit(Visit):
    """``streams`` of its leader begin with the way to the box's pid 1."""

    make_tree = BoxedTree

    def _fork_job(self, streams: Sequence[int]) -> bytes:
        guest = self.contained = self.tree.contained = Visitor(self.request, self._note_attempt)
        self.watchdog.answering_s = guest.answering_s
        reader, writer = os.pipe()
        post, *streams = streams
        steps = os.memfd_create("plan")
        os.write(steps, marshal.dumps(self.request["plan"]))
        os.lseek(steps, 0, os.SEEK_SET)
        try:
            passing.send(post, VISIT, [guest._theirs, writer, guest._told, steps, *streams])
        except OSError as error:
            raise plan.StepFailed(wire.ENTER, error) from error
        for descriptor in (guest._theirs, writer, guest._told, steps, post, *streams):
            os.close(descriptor)
        guest.listen(self.poller)
        return self._await_start(reader)

    def _note_end(self, ended: tuple[int, ...] | None) -> None:
        super()._note_end(ended)
        if ended is not None or self.contained is None:
            return
        if not _knows_holder(self.contained):  # pid 1 has ended, or had no room for it
            raise plan.StepFailed(wire.ENTER, ProcessLookupError(errno.ESRCH, "nobody took the visit in"))
        self._note("holder_gone", 0)  # somebody in the box has killed it: who belongs to this visit is lost

    def _waited_for(self) -> tuple[int, ...]:
        return (0, 0, 0, 0, 0)

    def _root(self) -> int:
        return self.contained.pid if self.contained is not None else 0

    def finish(self) -> None:
        super().finish()
        if self.contained is not None and not self.cause:
            self._stay_with_the_rest(self.contained)

    def _stay_with_the_rest(self, guest: Guest) -> None:
        """Until the last process of this visit has ended: nobody else answers the calls that its filter tells of, and
        without an answer the kernel refuses them. The caller has heard the end, and may close its pipes."""
        if not _knows_holder(guest):
            return
        for descriptor in (self.commands, self.tree.wakeup):
            self.poller.unregister(descriptor)
        self.poller.register(guest.holder, select.POLLIN)
        while True:
            for descriptor, _ in self.poller.poll():
                if descriptor in (guest.holder, self.owner):
                    return
                guest.hear(descriptor)

    def end_tree(self) -> None:
        """Only what is ended for a reason; what a job leaves behind when it has ended by itself stays."""
        guest = self.contained
        if not self.cause or guest is None or not _knows_holder(guest):
            return
        holder = self.table.stat(guest.pid) if guest.pid else None
        give_up = time.monotonic() + _END_WAIT_S
        while time.monotonic() < give_up and not wire.is_readable(guest.holder):
            _signal_all(self.table, guest.pid)
            time.sleep(0.001)
            if holder is not None and not self.table.children(guest.pid):
                self.table.kill(holder, signal.SIGKILL)


def _knows_holder(guest: Guest) -> bool:
    """Waits for pid 1 to tell of it: a visit that is signalled as soon as it begins must hear that all the same."""
    while guest.holder < 0 and guest.door >= 0 and wire.is_readable(guest.door, _END_WAIT_S):
        if not guest.take():
            break
    return guest.holder >= 0


def _signal_all(table: object, holder: int) -> None:
    for row in table.descendants(holder):  # type: ignore[attr-defined]
        table.kill(row, signal.SIGKILL)  # type: ignore[attr-defined]
