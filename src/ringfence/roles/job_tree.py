"""The processes of one visit: which of them is the job, how it ended, and how all of them are ended.

Part of: leader, leader of a visit, warden

Decides nothing: the visit says when they are to end, and why.
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
# Long: a killed process runs no more, but it ends only when a slow disk has answered the call that it is in.
_OF_THE_TREE = tuple(getattr(signal, name) for name in ("SIGSTOP", "SIGCONT") if hasattr(signal, name))


def become_leader(table: Table, *, counting: bool = False) -> tuple[int, int]:
    """Adopt orphans and hide our memory. Return our own io file, which can't be opened while memory is hidden; and if
    operations are counted that of our one thread, else -1."""
    if sys.platform != "linux":
        return -1, -1
    from ringfence.kernel.proc import processes

    processes.adopt_orphans()
    processes.show_memory()  # its parent hid its memory: an ordinary user's counts are then root's
    own_io, thread_io = table.open_own_io(), table.open_thread_io() if counting else -1
    processes.hide_memory()
    return own_io, thread_io


class JobTree:
    """Everything below this process, which has forked the job or pid 1 of its sandbox, and nothing else."""

    def __init__(self) -> None:
        self.table = tree_reader()
        self.wakeup = self._wakeup()
        self.child = 0
        """The process that this one has forked."""
        self.stood_by = 0
        """Of a sandbox that stands by: the process that becomes the job."""
        self.wait_status: int | None = None
        """How the job ended; None: it has not, or nobody could say."""
        self.used: tuple[int, ...] = ()
        """What the job used, as pid 1 reported or as looked up; empty: neither."""
        self.dismissed = False
        """The job has said its exit status, and waits to be killed."""
        self.survivors = 0
        self.is_collected = False
        """The child has been waited for."""
        self._oom_before = self.table.oom_kills()
        self._give_up_s = 0.0
        self._pause_ns = _LONGEST_PAUSE_NS >> 8

    def _wakeup(self) -> int:
        return wake_on_child()

    def group(self) -> int:
        """The job's process group: named after its first process."""
        return self.child

    def signal(self, number: int) -> None:
        """Signal the job's process group in one step, which a fork can't slip past. Signals that stop or continue it go
        to the other groups of its tree too."""
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
        """The process above the whole job and nothing else."""
        return os.getpid()

    def dismiss(self, exit_code: int) -> None:
        """Its process may still be there: we look up what it used, since nobody reports it."""
        self.wait_status, self.used = exit_code << 8, self.table.usage(self.stood_by)
        self.dismissed = True

    def note_end(self, ended: tuple[int, ...] | None) -> None:
        """What pid 1 says of the job; nothing when it was killed before it could."""
        if ended is not None:
            self.wait_status, self.used = ended[0], ended[1:]

    def reap(self) -> bool:
        """Collect the dead; return True once it is known how the job ended, or no process is left that could tell."""
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
        """Processes whose counts are not among those of the dead yet, although we know how the job ended."""
        return [self.stood_by] if self.dismissed and not self.is_collected else []

    def waited_for(self) -> tuple[int, ...]:
        """What all ended processes have used, in the form of ``used``."""
        import resource

        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        largest = used.ru_maxrss * (1024 if sys.platform == "linux" else 1)
        return (int(used.ru_utime * 1e6), int(used.ru_stime * 1e6), largest, used.ru_nvcsw, used.ru_nivcsw)

    def oom_kills(self) -> int:
        """Only for a job that was killed: reading the host's counts takes longer than the rest of the report."""
        killed = self.wait_status is None or os.WIFSIGNALED(self.wait_status)
        return max(0, self.table.oom_kills() - self._oom_before) if killed else 0

    def is_empty(self) -> bool:
        """Nothing runs any more but pid 1 and a job that was dismissed."""
        left = self.table.children(self.top())
        return len(left) == 1 and not self.table.children(left[0]) if self.dismissed else not left

    def end(self) -> bool:
        """Kill; return whether no child is left, or nothing more can be done."""
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
