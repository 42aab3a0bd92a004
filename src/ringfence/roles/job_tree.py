"""The processes of one visit: which of them is the job, how it ended, and how all of them are ended.

Part of: leader, leader of a visit

Decides nothing: when they are to end, and why, is the visit's.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # loads nothing, see ADR 0003
import os
import sys
import time

from ringfence.roles.watchdog import tree_reader
from ringfence.steps.wakeup import wake_on_child

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.roles.watchdog import Table

_END_WAIT_S, _LONGEST_PAUSE_NS = 60.0, 50_000_000
# Long: what was killed runs no more, yet it ends only when a slow disk has answered the call that it is in.
_OF_THE_TREE = tuple(getattr(signal, name) for name in ("SIGSTOP", "SIGCONT") if hasattr(signal, name))


def become_leader(table: Table, *, counting: bool = False) -> tuple[int, int]:
    """Adopt and hide; return our own io file, which can't be opened while memory is hidden, and where operations are
    counted that of our one thread, else -1."""
    if sys.platform != "linux":
        return -1, -1
    from ringfence.kernel.proc import processes

    processes.adopt_orphans()
    processes.show_memory()  # hidden by what it was forked from, as an ordinary user its counts are root's
    own_io, thread_io = table.open_own_io(), table.open_thread_io() if counting else -1
    processes.hide_memory()
    return own_io, thread_io


class JobTree:
    """All below this process, which has forked the job or pid 1 of its sandbox, and nothing else."""

    def __init__(self) -> None:
        self.table = tree_reader()
        self.wakeup = self._wakeup()
        self.child = 0
        """The one that this process has forked."""
        self.stood_by = 0
        """Of a sandbox that stands by: the process that becomes the job."""
        self.wait_status: int | None = None
        """How the job ended; None: it has not, or nobody could say."""
        self.used: tuple[int, ...] = ()
        """What the job used, as pid 1 told or as was looked up; empty: neither."""
        self.dismissed = False
        """The job has said its exit status, and waits to be killed."""
        self.survivors = 0
        self.is_collected = False
        """The child is."""
        self._oom_before = self.table.oom_kills()
        self._give_up_s = 0.0
        self._pause_ns = _LONGEST_PAUSE_NS >> 8

    def _wakeup(self) -> int:
        return wake_on_child()

    def group(self) -> int:
        """The job's process group: named after its first process."""
        return self.child

    def signal(self, number: int) -> None:
        """To the job's process group, in one step, which a fork can't slip past; what stops or continues it goes to
        the other groups of its tree too."""
        group = self.group()
        try:
            if group > 1:
                os.killpg(group, number)
        except OSError:
            pass
        if group > 1 and number in _OF_THE_TREE:
            for row in self.table.descendants(self.top()):
                self.table.kill(row, number)

    def top(self) -> int:
        """The process that all of the job, and nothing else, is below."""
        return os.getpid()

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
        self.is_collected = True
        if self.wait_status is None:
            self.wait_status = status

    def living(self) -> list[int]:
        """Whose counts are not among those of the dead yet, though it is known how the job ended."""
        return [self.stood_by] if self.dismissed and not self.is_collected else []

    def waited_for(self) -> tuple[int, ...]:
        """What all that have ended have used, as ``used`` has it."""
        import resource

        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        largest = used.ru_maxrss * (1024 if sys.platform == "linux" else 1)
        return (int(used.ru_utime * 1e6), int(used.ru_stime * 1e6), largest, used.ru_nvcsw, used.ru_nivcsw)

    def oom_kills(self) -> int:
        """Of a job that was killed: to read the host's counts takes longer than the rest of the report."""
        killed = self.wait_status is None or os.WIFSIGNALED(self.wait_status)
        return max(0, self.table.oom_kills() - self._oom_before) if killed else 0

    def is_empty(self) -> bool:
        """Nothing runs any more but pid 1 and a job that was dismissed."""
        left = self.table.children(self.top())
        return len(left) == 1 and not self.table.children(left[0]) if self.dismissed else not left

    def end(self) -> bool:
        """Kill; whether no child is left, or nothing more can be done."""
        if not self.child or self._no_child_left():
            return True
        now = time.monotonic()
        self._give_up_s = self._give_up_s or now + _END_WAIT_S
        if now > self._give_up_s:
            self.survivors = len(self.table.descendants(self.top()))
            return True
        self._kill()
        return self._no_child_left()

    def pause_ns(self) -> int:
        """How long to wait before the next pass: each time longer."""
        self._pause_ns = min(self._pause_ns * 2, _LONGEST_PAUSE_NS)
        return self._pause_ns

    def _kill(self) -> None:
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
