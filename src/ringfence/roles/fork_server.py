"""Waits on a socket for descriptors and forks one leader per message. It never runs a job itself.

Part of: spawner, zygote

The loop of the spawner and of every zygote: single-threaded, so what it forks holds no lock.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # loads nothing, see ADR 0003
import os
import sys
from _collections_abc import Callable, Sequence

from ringfence.roles import job_start
from ringfence.roles.leader import OVER, Leader
from ringfence.steps import executor as plan
from ringfence.steps.wakeup import wake_on_child
from ringfence.transport import passing, wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

    from ringfence.transport.request import VisitRequest

BROKEN = 1
"""The exit code of a process that an error has ended."""


def fork_with(descriptors: list[int], run: Callable[[list[int]], None], leave_open: Sequence[int] = ()) -> int:
    """Fork a process that owns copies of these descriptors, and those that stay where they are; return its pid."""
    child = os.fork()
    if child == 0:
        os.setsid()
        become(descriptors, run, leave_open)
    return child


def become(descriptors: list[int], run: Callable[[list[int]], None], leave_open: Sequence[int] = ()) -> NoReturn:
    """Be that process from now on. If it breaks, its parent learns that, and ends what it has left."""
    code = BROKEN
    try:
        signal.set_wakeup_fd(-1)
        run(keep_only(descriptors, leave_open))
        code = 0
    finally:
        os._exit(code)


def lead_described(descriptors: list[int]) -> None:
    """``owner`` becomes readable when the caller ends."""
    commands, reports, owner, *streams = descriptors
    if sys.platform == "linux":
        from ringfence.kernel.proc import processes

        processes.set_name(processes.LEADER)
    try:
        request = job_start.whole(wire.read_visit(commands))
    except EOFError:
        return
    leader = _kind_of(request)(request, commands, reports, owner)
    if request.get("egress"):
        leader.listeners = streams.pop()
    lead(leader, streams)


def lead(visit: Leader, streams: Sequence[int]) -> None:
    """Lead one visit from the request to the report. If that breaks, whoever forked this process ends what is left."""
    visit.begin(streams)
    try:
        while visit.phase != OVER:
            visit.loop.turn()
    except Exception as error:
        visit.tell_broken(error)
        raise


def _kind_of(request: VisitRequest) -> type[Leader]:
    if request.get("in_box"):
        from ringfence.roles.box_leader import BoxLeader

        return BoxLeader
    if request.get("contained"):
        from ringfence.roles.sandbox_leader import SandboxLeader

        return SandboxLeader
    return Leader


def _clean(descriptors: list[int]) -> None:
    from ringfence.roles import scratch_cleaner

    scratch_cleaner.clean(*descriptors)


def keep_only(descriptors: list[int], leave_open: Sequence[int] = ()) -> list[int]:
    """Close every descriptor but these, which may be 0, 1 or 2; those become the null device."""
    floor = 3 + len(descriptors) + max(descriptors)
    kept = [plan.duplicate(descriptor, floor) for descriptor in descriptors]
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    start = 3
    for descriptor in sorted((*kept, *leave_open)):
        os.closerange(start, descriptor)
        start = descriptor + 1
    plan.close_from(start)
    return kept


class ForkServer:
    """The loop."""

    def __init__(self, door: int) -> None:
        self.door = door
        self.leaders: dict[int, int] = {}
        """Leader → the number of the pipe that it reports through; 0 for a zygote."""

    def serve(self) -> None:
        """Serve until the owner closes the door, then until the last leader has ended."""
        import select

        wakeup = wake_on_child()
        poller = select.poll()
        poller.register(self.door, select.POLLIN)
        poller.register(wakeup, select.POLLIN)
        open_for_more = True
        while open_for_more or self.leaders:
            for descriptor, _ in poller.poll():
                if descriptor == wakeup:
                    os.read(wakeup, 4096)
                    self._reap()
                elif not self._receive():
                    open_for_more = False
                    poller.unregister(self.door)

    def _receive(self) -> bool:
        kind, descriptors = passing.receive(self.door)
        if not kind:
            return False
        try:
            if kind == passing.ZYGOTE and len(descriptors) == 3:
                self._fork_zygote(descriptors)
            elif kind == passing.END and len(descriptors) == 2:
                self._end_leader(descriptors[0])
            elif kind == passing.CLEANER and len(descriptors) == 3:
                self._remember(fork_with(descriptors, _clean), descriptors)
            elif kind == passing.DRAFT and len(descriptors) == 1:
                self._keep_draft(descriptors[0])
            elif len(descriptors) > 3:
                self._fork_leader(descriptors)
        except OSError:
            pass  # no room for a process: the caller sees its pipes close before the leader spoke
        for descriptor in descriptors:
            os.close(descriptor)
        return True

    def _fork_leader(self, descriptors: list[int], leave_open: Sequence[int] = ()) -> int:
        return self._remember(fork_with(descriptors, lead_described, leave_open), descriptors)

    def _remember(self, leader: int, descriptors: list[int]) -> int:
        self.leaders[leader] = os.fstat(descriptors[1]).st_ino
        return leader

    def _end_leader(self, reports: int) -> None:
        """The caller knows no pid of a leader that has not spoken, but has the other end of its pipe."""
        pipe = os.fstat(reports).st_ino
        for leader in [leader for leader, number in self.leaders.items() if number == pipe]:
            os.kill(leader, signal.SIGKILL)

    def _fork_zygote(self, descriptors: list[int]) -> None:
        """Only the spawner makes zygotes."""

    def _keep_draft(self, file: int) -> None:
        """Only zygotes are given drafts."""

    def _reap(self) -> None:
        """Collect leaders that ended; what is left of a tree whose leader was killed is killed too."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in self.leaders and status != 0:
                self._kill_orphans(pid)
            self.leaders.pop(pid, None)

    def _kill_orphans(self, dead_leader: int) -> None:
        if sys.platform != "linux":
            return
        from ringfence.kernel.proc import procfs

        self.leaders.pop(dead_leader, None)
        mine = os.getpid()
        for _ in range(1000):
            orphans = [pid for pid in procfs.children(mine) if pid not in self.leaders]
            rows = [row for pid in orphans for row in (procfs.stat(pid), *procfs.descendants(pid)) if row]
            if not rows:
                return
            for row in rows:
                procfs.kill(row, signal.SIGKILL)
            for pid in orphans:
                os.waitpid(pid, 0)
