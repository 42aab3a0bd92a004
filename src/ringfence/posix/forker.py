"""Waits on a socket for descriptors and forks one leader per message. It never runs a job itself.

This is the whole inside of the spawner: single-threaded, and started with an isolated interpreter and
an empty environment, so what it forks holds no secret and no lock of the caller.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # loads nothing, see ADR 0003
import os
import sys
from _collections_abc import Callable, Sequence

from ringfence.posix import job_start, passing, plan, visit


def _fork(descriptors: list[int], run: Callable[[list[int]], None], stay: Sequence[int] = ()) -> int:
    """Fork a process that owns copies of these descriptors, and those that stay where they are; its pid."""
    child = os.fork()
    if child:
        return child
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        run(_keep_only(descriptors, stay))
    finally:
        os._exit(0)


def _lead(descriptors: list[int]) -> None:
    commands, reports, owner, *streams = descriptors
    if sys.platform == "linux":
        from ringfence.linux import processes

        processes.set_name(processes.LEADER)
    visit.lead(commands, reports, owner, streams)


def _keep(descriptors: list[int]) -> None:
    from ringfence.posix import folder_keeper

    folder_keeper.keep(*descriptors)


def _keep_only(descriptors: list[int], stay: Sequence[int] = ()) -> list[int]:
    """Close every descriptor but these, which may be 0, 1 or 2; those become the null device."""
    floor = 3 + len(descriptors) + max(descriptors)
    kept = [plan.duplicate(descriptor, floor) for descriptor in descriptors]
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    start = 3
    for descriptor in sorted((*kept, *stay)):
        os.closerange(start, descriptor)
        start = descriptor + 1
    plan.close_from(start)
    return kept


class Forker:
    """The loop of the spawner process."""

    def __init__(self, door: int) -> None:
        self.door = door
        self.leaders: dict[int, int] = {}
        """Leader: the number of the pipe that it reports through; of a mould 0."""

    def serve(self) -> None:
        """Until the owner closes the door; then until the last leader has ended."""
        import select

        wakeup = job_start.wake_on_child()
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
            if kind == passing.MOULD and len(descriptors) == 3:
                self._fork_mould(descriptors)
            elif kind == passing.END and len(descriptors) == 2:
                self._end_leader(descriptors[0])
            elif kind == passing.KEEPER and len(descriptors) == 3:
                self._remember(_fork(descriptors, _keep), descriptors)
            elif len(descriptors) > 3:
                self._fork_leader(descriptors)
        except OSError:
            pass  # no room for a process: the caller sees its pipes close before the leader spoke
        for descriptor in descriptors:
            os.close(descriptor)
        return True

    def _fork_leader(self, descriptors: list[int], stay: Sequence[int] = ()) -> int:
        return self._remember(_fork(descriptors, _lead, stay), descriptors)

    def _remember(self, leader: int, descriptors: list[int]) -> int:
        self.leaders[leader] = os.fstat(descriptors[1]).st_ino
        return leader

    def _end_leader(self, reports: int) -> None:
        """The caller knows no pid of a leader that has not spoken, but has the other end of its pipe."""
        pipe = os.fstat(reports).st_ino
        for leader in [leader for leader, number in self.leaders.items() if number == pipe]:
            os.kill(leader, signal.SIGKILL)

    def _fork_mould(self, descriptors: list[int]) -> None:
        from ringfence.posix import mould

        mould.furnish()  # here, so that every later mould has it too
        self.leaders[_fork(descriptors, lambda kept: mould.main(*kept))] = 0

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
        from ringfence.linux import procfs

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


def main(door: int) -> None:
    """The spawner process: from here on it only forks."""
    os.setsid()
    os.chdir("/")
    os.umask(0o077)
    (door,) = _keep_only([door])
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    if sys.platform == "linux":
        from ringfence.linux import processes, procfs  # noqa: F401  (loaded once, used by every fork)

        processes.adopt_orphans()
        processes.set_name(processes.FORKER)
        processes.hide_memory()
    Forker(door).serve()
