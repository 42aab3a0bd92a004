"""Starts and leads one sandbox: pid 1 and all below it. The same for one in a process of its own and one of many.

Part of: leader, warden

The leading process watches one child, pid 1, and learns of its end by a descriptor: it may have other children, and
other sandboxes. Linux only.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # loads nothing, see ADR 0003
import os
import time
from _collections_abc import Iterator, Sequence

from ringfence.roles import first_process
from ringfence.roles.job_tree import JobTree, become_leader
from ringfence.roles.leader import Leader
from ringfence.roles.sandbox_end import OwnSandbox, SandboxEnd
from ringfence.roles.watchdog import Watchdog
from ringfence.steps import executor as plan
from ringfence.steps.state import SETUP
from ringfence.transport import wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from resource import struct_rusage

    from ringfence.kernel.proc.procfs import Process
    from ringfence.transport.request import VisitRequest


class SandboxTree(JobTree):
    """The tree below pid 1, a child of this process; the job is a child of pid 1."""

    contained: SandboxEnd
    awaited = False
    """pid 1 is being made."""
    own_io = -1
    """The io file of this process."""
    _rusage: struct_rusage | None = None
    written_bytes = written_chars = 0
    """Written by all processes that were in it; known once pid 1 is collected."""

    def _wakeup(self) -> int:
        return -1

    def note_made(self, pid: int) -> None:
        self.awaited, self.child, self.wakeup = False, pid, os.pidfd_open(pid)

    def group(self) -> int:
        return min(self.table.children(self.child), default=0) if self.child else 0

    def top(self) -> int:
        return self.child

    def reap(self) -> bool:
        if self.child and not self.is_collected and os.waitid(os.P_PID, self.child, _HAS_ENDED) is not None:
            before = self._counts()
            _, status, self._rusage = os.wait4(self.child, 0)
            after = self._counts()  # pid 1's alone: no other child of ours is collected in between
            self.written_bytes, self.written_chars = after[0] - before[0], after[1] - before[1]
            self._note_child(status)
        return self.wait_status is not None

    def _counts(self) -> tuple[int, int]:
        return self.table.own_written_bytes(self.own_io), self.table.own_written_chars(self.own_io)

    def _note_child(self, status: int) -> None:
        self.is_collected = True  # before anything that may fail: its pid may be reused from now on
        if self.wait_status is None:
            self.note_end(self.contained.ended())
        super()._note_child(status)

    def waited_for(self) -> tuple[int, ...]:
        used = self._rusage
        if used is None:
            return (0, 0, 0, 0, 0)
        largest = used.ru_maxrss * 1024
        return (int(used.ru_utime * 1e6), int(used.ru_stime * 1e6), largest, used.ru_nvcsw, used.ru_nivcsw)

    def collected_s(self) -> float:
        return 0.0 if self._rusage is None else self._rusage.ru_utime + self._rusage.ru_stime

    def end(self) -> bool:
        return not self.awaited and super().end()

    def _kill(self) -> None:
        os.kill(self.child, signal.SIGKILL)  # all that is in its namespace ends with it

    def _no_child_left(self) -> bool:
        self.reap()
        return self.is_collected


_HAS_ENDED = 4 | 1 | 0x1000000  # WEXITED, WNOHANG, WNOWAIT of Linux


class SandboxWatchdog(Watchdog):
    """Looks at pid 1 and all below it."""

    def __init__(self, tree: SandboxTree, request: VisitRequest) -> None:
        super().__init__(tree.table, request["limits"], -1, request.get("written", []), request.get("layers", []))
        self._tree = tree
        self.processor_time.collected_s = tree.collected_s

    def walk(self, root: int, lost: list[int]) -> Iterator[Process]:
        first = self.table.stat(self.first) if self.first else None
        if first is not None:
            yield first
            yield from self.table.walk(self.first, self.limits["pids"], lost)

    def written_chars(self, living: Sequence[int] = ()) -> int:
        return sum(self.table.written_chars(pid) for pid in living) + self._tree.written_chars

    def written_bytes(self, living: Sequence[int] = ()) -> int:
        return sum(self.table.written_bytes(pid) or 0 for pid in living) + self._tree.written_bytes


class SandboxLeader(Leader):
    """In a process of its own: it makes pid 1 itself."""

    make_tree = SandboxTree
    tree: SandboxTree

    def _start(self, streams: Sequence[int]) -> None:
        self.watchdog = SandboxWatchdog(self.tree, self.request)
        self._introduce()
        self.started = time.monotonic_ns()
        self.setup, writer = os.pipe()
        self.contained = self.tree.contained = self._own = contained = OwnSandbox(self.request, self._note_attempt)
        contained.listeners = self.listeners
        self.watchdog.answering_s, self.witness = contained.answering_s, contained.witness
        contained.listen(self.poller)
        for descriptor in (self.commands, self.setup, self.owner):
            self.poller.register(descriptor)
        self._have_made([writer, contained._told, contained._theirs, contained._counts], streams)

    def _introduce(self) -> None:
        """Before the job can stop or kill this process: the caller must know whom to end then."""
        self.tree.own_io, _ = become_leader(self.table)
        wire.say(self.reports, wire.started_frame(os.getpid()))

    def _have_made(self, kept: Sequence[int], streams: Sequence[int]) -> None:
        """``kept``: what pid 1 keeps of ours, which is closed here."""
        try:
            pid = first_process.make(self.request, streams, kept, self._own.door)
        except OSError as error:
            raise plan.StepFailed("fork", error) from error
        self._own.identity = SETUP.identity if os.geteuid() == 0 else 0
        for descriptor in (*kept, *streams):
            os.close(descriptor)
        self._note_made(pid)

    def _note_made(self, pid: int) -> None:
        self.tree.note_made(pid)
        self.poller.register(self.tree.wakeup)
        self._own.pid = self.watchdog.first = pid
        self.watchdog.tally = self._own.tally

    def _hear(self, descriptor: int) -> None:
        if descriptor == self.tree.wakeup:
            self.poller.unregister(descriptor)  # it stays readable
        else:
            super()._hear(descriptor)
