"""One job object: its limits, who is in it, what its completion port tells, its end.

Processes are ended when the last handle of the job is closed, also by the kernel after a caller that was killed.
"""

from __future__ import annotations

from ctypes import Structure, byref, c_size_t, c_uint32, c_void_p, sizeof

from ringfence.windows.job_limits import JobLimits
from ringfence.windows.structures import (
    Accounting,
    CompletionPort,
    CpuRate,
    ExtendedLimits,
    ProcessList,
    UiRestrictions,
)
from ringfence.windows.system import MORE_DATA, call, close, last_error, try_call

_WITHOUT_IO, _PROCESS_LIST, _UI, _PORT, _ACCOUNTING, _EXTENDED, _CPU_RATE = 1, 3, 4, 7, 8, 9, 15
_NO_HANDLE = 2**64 - 1
_MOST_MESSAGES = 4096
"""Messages taken at a time: a job that starts processes without end must not keep the listener busy for ever."""


class JobObject:
    """A job object of ours; nobody inherits it, and it has no name by which another could open it."""

    def __init__(self) -> None:
        self.handle = call("CreateJobObjectW", None, None)
        self._port = 0
        try:
            self._port = call("CreateIoCompletionPort", _NO_HANDLE, None, 0, 1)
            self._set(_PORT, CompletionPort(self.handle, self._port))
        except BaseException:
            self.close()
            raise

    def hold(self, limits: JobLimits) -> None:
        """Set the limits, and check that Windows reports them as set; Wine reports nothing at all."""
        self._set(_EXTENDED, limits.extended())
        told = self.limits()
        if told.basic.flags and not limits.is_held_by(told):
            raise OSError(22, "the job object has other limits than it was given")
        self._set(_UI, limits.ui())
        rate = limits.rate()
        if rate is not None:
            self._set(_CPU_RATE, rate)

    def takes_rate(self, rate: CpuRate) -> bool:
        """Whether this system holds a share of the processors, by setting one."""
        return bool(try_call("SetInformationJobObject", self.handle, _CPU_RATE, byref(rate), sizeof(rate)))

    def _set(self, kind: int, value: Structure) -> None:
        call("SetInformationJobObject", self.handle, kind, byref(value), sizeof(value))

    def limits(self) -> ExtendedLimits:
        """Return what Windows says of the limits, and the peaks."""
        found = ExtendedLimits()
        call("QueryInformationJobObject", self.handle, _EXTENDED, byref(found), sizeof(found), None)
        return found

    def ui(self) -> int:
        """Return which parts of the desktop are out of reach."""
        found = UiRestrictions()
        call("QueryInformationJobObject", self.handle, _UI, byref(found), sizeof(found), None)
        return int(found.classes)

    def accounting(self) -> Accounting:
        """Return what was counted; what a system does not report is 0."""
        found = Accounting()
        if not try_call("QueryInformationJobObject", self.handle, _ACCOUNTING, byref(found), sizeof(found), None):
            call("QueryInformationJobObject", self.handle, _WITHOUT_IO, byref(found), Accounting.io.offset, None)
        return found

    def processes(self) -> list[int]:
        """Return the pids of those that are in it; where there are more than fit, some of them."""
        found = ProcessList()
        done = try_call("QueryInformationJobObject", self.handle, _PROCESS_LIST, byref(found), sizeof(found), None)
        if not done and last_error() != MORE_DATA:
            return []
        return [int(pid) for pid in found.pids[: min(found.listed, len(found.pids))]]

    def assign(self, process: int) -> None:
        call("AssignProcessToJobObject", self.handle, process)

    def messages(self, wait_ms: int) -> list[tuple[int, int]]:
        """Return (message, pid) of what has come; waits for the first one."""
        found: list[tuple[int, int]] = []
        number, key, pid = c_uint32(), c_size_t(), c_void_p()
        while len(found) < _MOST_MESSAGES and try_call(
            "GetQueuedCompletionStatus", self._port, byref(number), byref(key), byref(pid), 0 if found else wait_ms
        ):
            found.append((number.value, pid.value or 0))
        return found

    def end(self, code: int) -> None:
        """End all that are in it; they exit with this code."""
        try_call("TerminateJobObject", self.handle, code)

    def close(self) -> None:
        """End everything that is still in it."""
        handle, self.handle = self.handle, 0
        port, self._port = self._port, 0
        close(handle, port)
