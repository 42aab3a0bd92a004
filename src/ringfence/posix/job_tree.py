"""The processes of one visit: which of them is the job, how it ended, and how all of them are ended.

Decides nothing: when they are to end, and why, is the visit's.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # loads nothing, see ADR 0003
import os
import time

from ringfence.posix import job_start, wire
from ringfence.posix.watchdog import tree_reader

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.posix.contained import Guest

_END_WAIT_S = 10.0


class JobTree:
    """All below this process, which has forked the job or pid 1 of its sandbox, and nothing else."""

    def __init__(self) -> None:
        self.table = tree_reader()
        self.wakeup = job_start.wake_on_child()
        self.child = 0
        """The one that this process has forked."""
        self.contained: Guest | None = None
        """With it the child is pid 1 of a sandbox, and the job is a child of that."""
        self.stood_by = 0
        """Of a sandbox that stands by: the process that becomes the job."""
        self.wait_status: int | None = None
        """How the job ended; None: it has not, or nobody could say."""
        self.used: tuple[int, ...] = ()
        """What the job used, as pid 1 told or as was looked up; empty: neither."""
        self.dismissed = False
        """The job has said its exit status, and waits to be killed."""
        self.survivors = 0
        self._child_reaped = False

    def group(self) -> int:
        """The job's process group: named after its first process, which in a sandbox is pid 1's first child."""
        return self.child if self.contained is None else min(self.table.children(self.child), default=0)

    def signal(self, number: int) -> None:
        """To the job's process group, in one step, which a fork can't slip past."""
        group = self.group()
        try:
            if group > 1:
                os.killpg(group, number)
        except OSError:
            pass

    def dismiss(self, exit_code: int) -> None:
        """Its process may still be there: what it used is looked up, not told."""
        self.wait_status, self.used = exit_code << 8, self.table.usage(self.stood_by)
        self.dismissed = True

    def note_end(self, ended: tuple[int, ...] | None) -> None:
        """What pid 1 says of the job; nothing when it was killed before it could."""
        if ended is not None:
            self.wait_status, self.used = ended[0], ended[1:]

    def reap(self) -> bool:
        """Collect the dead; true once it is known how the job ended, or nobody is left to know it of."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return True
            if pid == 0:
                return self.wait_status is not None
            if pid == self.child:
                self._note_child(status)

    def _note_child(self, status: int) -> None:
        self._child_reaped = True
        if self.wait_status is None and self.contained is not None:
            self.note_end(self.contained.ended())
        if self.wait_status is None:
            self.wait_status = status

    def living(self) -> list[int]:
        """Whose counts are not among those of the dead yet, though it is known how the job ended."""
        return [self.stood_by] if self.dismissed and not self._child_reaped else []

    def is_empty(self) -> bool:
        """Nothing runs any more but pid 1 and a job that was dismissed."""
        left = self.table.children(os.getpid() if self.contained is None else self.child)
        return len(left) == 1 and not self.table.children(left[0]) if self.dismissed else not left

    def end(self) -> None:
        """Kill until no child is left. A tree that forks while it dies needs several passes."""
        give_up = time.monotonic() + _END_WAIT_S
        pause_s = 0.0005
        while self.child and not self._no_child_left():
            if time.monotonic() > give_up:
                self.survivors = len(self.table.descendants(os.getpid()))
                return
            self._kill()
            if self._no_child_left():
                return
            self._await_child(pause_s)
            pause_s = min(pause_s * 2, 0.05)

    def _await_child(self, longest_s: float) -> None:
        if wire.is_readable(self.wakeup, longest_s):
            os.read(self.wakeup, 4096)

    def _kill(self) -> None:
        if self.contained is not None and not self._child_reaped:
            os.kill(self.child, signal.SIGKILL)  # pid 1: all that is in its namespace ends with it
            return
        if self.wait_status is None:
            self.signal(signal.SIGKILL)
        for row in self.table.descendants(os.getpid()):
            self.table.kill(row, signal.SIGKILL)

    def _no_child_left(self) -> bool:
        self.reap()
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return True
        return False
