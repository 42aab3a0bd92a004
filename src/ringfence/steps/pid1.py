"""pid 1 of a sandbox once everything is built: forks the job, collects the dead, tells the end.

Runs as: pid 1 of a sandbox, in Python where the native part is missing; ``native/init.c`` does the same.
Parent: leader, maker
Holds: the pipe on which it tells the end, the count of what the dead wrote.
Must not have: a capability; the job's streams; anything to read that the guest wrote.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # loads nothing, see ADR 0003
import os
import select
from _collections_abc import Callable
from struct import Struct

from ringfence.kernel.proc.procfs import operations_in
from ringfence.steps.state import SETUP
from ringfence.steps.wakeup import wake_on_child

TYPE_CHECKING = False
if TYPE_CHECKING:
    from resource import struct_rusage

_BLOCK_BYTES = 512
ENDED = Struct("!i5q")
"""How the job ended: status, user and system time in µs, largest memory in bytes, switches of both kinds."""
OPERATIONS = Struct("!q")
"""Sent after it, for a visit whose operations are counted: how many; -1: unknown."""


def run_as_init() -> None:
    """pid 1 stays here: it forks the job, which goes on with the plan, collects the dead, and reports the end."""
    signal.set_wakeup_fd(-1)
    job = os.fork()
    if job == 0:
        return
    os.closerange(0, SETUP.status)
    try:
        collect(job)
    finally:
        os._exit(0)


class JobCounts:
    """The io file of a job. It can't be read once the job is collected, so it is read before."""

    def __init__(self, job: int, file: int) -> None:
        """``file``: -1: there is none."""
        self._job, self._file = job, file
        self.told = OPERATIONS.pack(-1)

    def next_dead(self) -> tuple[int, int, struct_rusage | None]:
        """As ``_next_dead``."""
        try:
            dead = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return -1, 0, None
        if dead is None:
            return 0, 0, None
        if dead.si_pid == self._job and self._file >= 0:
            self.told = OPERATIONS.pack(operations_in(os.pread(self._file, 4096, 0)))
        return os.wait4(dead.si_pid, 0)


def collect(job: int, *, until_empty: bool = False, counts: JobCounts | None = None) -> None:
    """Collect children until the job is among them, and tell how it ended; ``until_empty``: until none is left."""
    wakeup = wake_on_child()
    poller = select.poll()
    poller.register(wakeup, select.POLLIN)
    # An error on it means that the leader is gone; if the job has not ended, nothing must outlive the leader.
    poller.register(SETUP.status, 0)
    told = False
    while True:
        pid, status, used = _next_dead() if counts is None else counts.next_dead()
        count_written(pid, used)
        if pid == job and used is not None:
            os.write(SETUP.status, ENDED.pack(status, *_counted(used)) + (b"" if counts is None else counts.told))
            poller.unregister(SETUP.status)
            told = True
        if pid < 0 or (told and not until_empty):
            return
        if pid > 0:
            continue
        for descriptor, _ in poller.poll():
            if descriptor == SETUP.status:
                return
            os.read(wakeup, 4096)


def count_written(pid: int, used: struct_rusage | None) -> None:
    """Tell the leader what a dead process and its dead children wrote: an ordinary user can't read that from us."""
    if used is not None and pid > 0 and used.ru_oublock and SETUP.tally >= 0:
        os.eventfd_write(SETUP.tally, used.ru_oublock * _BLOCK_BYTES)


def _next_dead() -> tuple[int, int, struct_rusage | None]:
    """(pid, status, usage); pid 0: no child has ended, -1: there is no child."""
    try:
        return os.wait4(-1, os.WNOHANG)
    except ChildProcessError:
        return -1, 0, None


def _counted(used: struct_rusage) -> tuple[int, ...]:
    return (
        int(used.ru_utime * 1e6), int(used.ru_stime * 1e6), used.ru_maxrss * 1024, used.ru_nvcsw, used.ru_nivcsw,
    )  # fmt: skip


STEPS: dict[str, Callable[..., None]] = {
    "run as init": run_as_init,
}
