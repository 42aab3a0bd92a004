"""Measures what the processes of a job use: for limits that job objects lack, or that a system does not enforce.

A handle of each process is kept, so that what it used is known after its end.
"""

from __future__ import annotations

from ctypes import byref, c_int, c_int64, c_uint32, sizeof

from ringfence.model.record import record
from ringfence.windows.job_object import JobObject
from ringfence.windows.structures import IoCounters, MemoryCounters
from ringfence.windows.system import close, try_call

_QUERY = 0x1000 | 0x400
_US = 10
STILL_ACTIVE = 259


@record
class Used:
    """The sum over all processes of a job, except where it says otherwise."""

    user_us: int = 0
    kernel_us: int = 0
    memory_bytes: int = 0
    """Committed now."""
    processes: int = 0
    handles: int = 0
    """The most that one of them has."""
    written_bytes: int = 0

    @property
    def cpu_ms(self) -> int:
        return (self.user_us + self.kernel_us) // 1000


class UsageMeter:
    """Looks at the processes of one job."""

    def __init__(self, job: JobObject) -> None:
        self._job = job
        self._open: dict[int, int] = {}
        self._of_ended = Used()
        self.peak_memory_bytes = self.peak_processes = 0

    def look(self) -> Used:
        """Measure all that are there, and those that have ended since."""
        for pid in self._job.processes():
            if pid not in self._open and (handle := self._opened(pid)):
                self._open[pid] = handle
        total, ended = Used(), []
        for pid, handle in self._open.items():
            used = of_process(handle)
            if used.processes:
                total = _sum(total, used)
            else:
                ended.append(pid)
                self._of_ended = _sum(self._of_ended, used)
        for pid in ended:
            close(self._open.pop(pid))
        total = self._as_told_by_job(_sum(total, self._of_ended))
        self.peak_memory_bytes = max(self.peak_memory_bytes, total.memory_bytes)
        self.peak_processes = max(self.peak_processes, total.processes)
        return total

    def with_memory(self) -> int:
        """Return how many processes have memory: in others nothing can run."""
        self.look()
        return sum(of_process(handle).memory_bytes > 0 for handle in self._open.values())

    def _opened(self, pid: int) -> int:
        """A handle, if the pid is still of one of the job's."""
        handle, is_in = try_call("OpenProcess", _QUERY, 0, pid), c_int()
        if handle and try_call("IsProcessInJob", handle, self._job.handle, byref(is_in)) and is_in.value:
            return handle
        close(handle)
        return 0

    def _as_told_by_job(self, seen: Used) -> Used:
        """The kernel's counts, where they are higher: it also counts processes that ended between two looks."""
        told = self._job.accounting()
        return Used(
            user_us=max(seen.user_us, told.user_time // _US),
            kernel_us=max(seen.kernel_us, told.kernel_time // _US),
            memory_bytes=seen.memory_bytes,
            processes=max(seen.processes, told.active_processes),
            handles=seen.handles,
            written_bytes=max(seen.written_bytes, told.io.write_bytes),
        )

    def close(self) -> None:
        while self._open:
            close(self._open.popitem()[1])


def _sum(one: Used, other: Used) -> Used:
    return Used(
        user_us=one.user_us + other.user_us,
        kernel_us=one.kernel_us + other.kernel_us,
        memory_bytes=one.memory_bytes + other.memory_bytes,
        processes=one.processes + other.processes,
        handles=max(one.handles, other.handles),
        written_bytes=one.written_bytes + other.written_bytes,
    )


def of_process(handle: int) -> Used:
    """Return what one uses; of one that has ended, what stays: its times and what it wrote."""
    born, gone, kernel, user, code = c_int64(), c_int64(), c_int64(), c_int64(), c_uint32()
    try_call("GetProcessTimes", handle, byref(born), byref(gone), byref(kernel), byref(user))
    counted = IoCounters()
    try_call("GetProcessIoCounters", handle, byref(counted))
    try_call("GetExitCodeProcess", handle, byref(code))
    lives = code.value == STILL_ACTIVE and try_call("WaitForSingleObject", handle, 0) != 0
    memory, handles = MemoryCounters(size=sizeof(MemoryCounters)), c_uint32()
    if lives:
        try_call("K32GetProcessMemoryInfo", handle, byref(memory), sizeof(memory))
        try_call("GetProcessHandleCount", handle, byref(handles))
    return Used(user_us=user.value // _US, kernel_us=kernel.value // _US, memory_bytes=memory.committed,
                processes=int(lives), handles=handles.value, written_bytes=counted.write_bytes)  # fmt: skip


def own_written_bytes() -> int:
    """Return what this process has written so far, as Windows counts it."""
    counted = IoCounters()
    try_call("GetProcessIoCounters", try_call("GetCurrentProcess"), byref(counted))
    return int(counted.write_bytes)
