"""What this Windows really enforces, found out by trying: a call may succeed and enforce nothing (as most do in Wine).

The processes made for this stay suspended; none of them ever runs.
"""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from ctypes import byref, c_void_p

from ringfence.model.record import record
from ringfence.windows import command_line, integrity, job_limits, usage
from ringfence.windows.job_object import JobObject
from ringfence.windows.pipes import open_null
from ringfence.windows.removal import remove_tree
from ringfence.windows.start import Started, privileges, reduced_token, started
from ringfence.windows.structures import CpuRate
from ringfence.windows.system import call, close, try_call

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_COMMIT, _READ_WRITE = 0x1000 | 0x2000, 0x4
_SMALL, _LARGE = 64 << 20, 256 << 20
_PIECE, _SOME = 64 * 1024, 40
_QUERY_IMPERSONATE, _IMPERSONATION, _IMPERSONATION_TOKEN = 0x8 | 0x4, 2, 2


@record
class Host:
    """What is held by the kernel itself."""

    jobs: bool = False
    """A process can be put into a job object, and ends with it."""
    processes: bool = False
    memory: bool = False
    cpu_share: bool = False
    times: bool = False
    """The processor times of other processes can be read."""
    handles: bool = False
    """The open handles of a process are counted."""
    counts_writes: bool = False
    """What processes write is counted."""
    tells: bool = False
    """What limits a job has can be read back."""
    token: bool = False
    """A process is started without the caller's privileges."""
    integrity: bool = False
    """A process with low integrity can't write to what is not labelled low."""
    problem: str = ""
    """Why nothing can be run here; empty: something can."""


_found: list[Host] = []


def look() -> Host:
    """Try everything once per process."""
    if not _found:
        _found.append(_looked())
    return _found[0]


def _looked() -> Host:
    try:
        token = _token()
        return Host(
            jobs=_ends(), processes=_holds_processes(), memory=_holds_memory(), cpu_share=_holds_share(),
            times=_tells_times(), handles=_counts_handles(), counts_writes=_counts_writes(), tells=_tells(),
            token=token, integrity=_holds_integrity(),
        )  # fmt: skip
    except OSError as error:
        return Host(problem=str(error.strerror))


@contextmanager
def _suspended(token: int = 0) -> Iterator[Started]:
    null = open_null()
    try:
        made = started(sys.executable, command_line.command_line([sys.executable]),
                       command_line.environment_block({"SYSTEMROOT": os.environ.get("SYSTEMROOT", "")}),
                       os.path.dirname(sys.executable), (null, null, null), token)  # fmt: skip
    finally:
        close(null)
    try:
        yield made
    finally:
        try_call("TerminateProcess", made.process, 1)
        close(made.process, made.thread)


def _job(limits: dict[str, float]) -> JobObject:
    job = JobObject()
    try:
        job.hold(job_limits.job_limits(limits, os.cpu_count() or 1))
    except BaseException:
        job.close()
        raise
    return job


def _ends() -> bool:
    """Whether closing the job ends the processes in it."""
    job = _job({})
    try:
        with _suspended() as made:
            job.assign(made.process)
            job.close()
            return try_call("WaitForSingleObject", made.process, 5_000) == 0
    finally:
        job.close()


def _holds_processes() -> bool:
    """A second process in a job for one is refused, or ended at once."""
    job = _job({"pids": 1})
    try:
        with _suspended() as first, _suspended() as second:
            job.assign(first.process)
            taken = try_call("AssignProcessToJobObject", job.handle, second.process)
            return not taken or try_call("WaitForSingleObject", second.process, 0) == 0
    finally:
        job.close()


def _holds_memory() -> bool:
    """Memory is asked for in the name of a process that sleeps."""
    job = _job({"memory": _SMALL})
    try:
        with _suspended() as made:
            job.assign(made.process)
            return not try_call("VirtualAllocEx", made.process, None, _LARGE, _COMMIT, _READ_WRITE)
    finally:
        job.close()


def _tells_times() -> bool:
    """A sleeping process has used nothing. For any process, Wine reports our own times."""
    with _suspended() as made:
        used = usage.of_process(made.process).cpu_ms
    return used < max(1, usage.of_process(try_call("GetCurrentProcess")).cpu_ms) / 2


def _tells() -> bool:
    job = _job({})
    try:
        return bool(job.limits().basic.flags)
    finally:
        job.close()


def _holds_share() -> bool:
    job = JobObject()
    try:
        return job.takes_rate(CpuRate(job_limits.CPU_RATE_ENABLED | job_limits.CPU_RATE_HARD, 5_000))
    finally:
        job.close()


def _counts_handles() -> bool:
    this = try_call("GetCurrentProcess")
    before = usage.of_process(this).handles
    opened = [open_null() for _ in range(_SOME)]
    after = usage.of_process(this).handles
    close(*opened)
    return after >= before + _SOME // 2


def _counts_writes() -> bool:
    before = usage.own_written_bytes()
    with open(os.devnull, "wb", buffering=0) as null:
        null.write(bytes(_PIECE))
    return usage.own_written_bytes() >= before + _PIECE


def _token() -> bool:
    token = reduced_token()
    try:
        with _suspended(token):
            return privileges(token) <= 1
    finally:
        close(token)


def _holds_integrity() -> bool:
    """This thread takes low integrity for a moment: it may write to a directory only after the directory was
    labelled."""
    folder = os.path.join(os.environ.get("TEMP") or os.path.expanduser("~"), f"ringfence-{os.urandom(8).hex()}")
    os.mkdir(folder)
    try:
        before = _writes_when_low(os.path.join(folder, "before"))
        integrity.label_tree(folder)
        return not before and integrity.is_low(folder) and _writes_when_low(os.path.join(folder, "after"))
    except OSError:
        return False
    finally:
        remove_tree(folder)


def _writes_when_low(path: str) -> bool:
    token, worn = reduced_token(low=True), c_void_p()
    try:
        call("DuplicateTokenEx", token, _QUERY_IMPERSONATE, None, _IMPERSONATION, _IMPERSONATION_TOKEN, byref(worn))
        call("SetThreadToken", None, worn)
        try:
            with open(path, "w", encoding="ascii"):
                return True
        except OSError:
            return False
        finally:
            call("RevertToSelf")
    finally:
        close(token, worn.value or 0)
