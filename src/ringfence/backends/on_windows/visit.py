"""One job in a job object, and the thread that holds its deadline and what the object does not hold.

There is no leader: the caller's process plays that part. When that process is killed, the last handle of the object is
closed, and Windows ends everything in it.
"""

from __future__ import annotations

import time
from _collections_abc import Mapping, Sequence
from _thread import allocate_lock, start_new_thread
from ctypes import byref, c_uint32

from ringfence.backends.facts import Report
from ringfence.errors import SetupError
from ringfence.monitor.source import Source
from ringfence.windows import endings
from ringfence.windows.host import look
from ringfence.windows.job_limits import JobLimits
from ringfence.windows.job_object import JobObject
from ringfence.windows.start import Started, reduced_token, started
from ringfence.windows.system import BAD_EXE_FORMAT, call, close, try_call
from ringfence.windows.usage import UsageMeter, Used

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.transport.report import Note

_SIGKILL = 9
_KILLED = 128 + _SIGKILL
_LOOK_MS = 25
_END_S, _HALF_MADE_S = 10.0, 1.0
_ENOEXEC = 8
_PENDING = 258


class JobVisit:
    """A running job. The thread that watches it says everything that is reported here."""

    begun = entered = True
    operations = -1

    def __init__(
        self,
        command: tuple[str, str, str, str],
        streams: Sequence[int],
        limits: JobLimits,
        watched: Mapping[str, float],
        *,
        low: bool = False,
    ) -> None:
        """``command``: program, command line, environment, directory. ``watched``: what is measured, by capability.
        ``low``: it has low integrity."""
        self._watched = dict(watched)
        self.used = Used()
        """As it was seen last."""
        self._lock = allocate_lock()
        self._asked, self._signal, self._cause, self._measured = False, 0, "", 0
        self._messages: list[int] = []
        self._report: Report | None = None
        self._job = JobObject()
        self._meter = UsageMeter(self._job)
        self._event, self._first = 0, None
        try:
            self._event = call("CreateEventW", None, 1, 0, None)
            self._job.hold(limits)
            self._first = _started_in(self._job, command, streams, low=low)
            self._begun_s = time.monotonic()
            self._first.resume()
        except OSError as error:
            self._free()
            raise SetupError("exec", f"{error.strerror}: {command[0]}", errno=_errno(error)) from error
        except BaseException:
            self._free()
            raise
        start_new_thread(self._watch, ())

    def _watch(self) -> None:
        """Ends when no process of the job is left, or none can be ended; whatever happens, there is a report."""
        assert self._first is not None
        try:
            used = self._wait_for_end(self._first)
            self._job.end(_KILLED)
            survivors = self._wait_for_last()
            report = self._told(max(used, self._meter.look(), key=lambda each: each.cpu_ms), survivors)
        except Exception:  # whatever it is: the job must end, and the waiting caller must hear of it
            self._job.end(_KILLED)
            report = Report(leader_lost=True)
        self._report = report
        try_call("SetEvent", self._event)

    def _wait_for_end(self, first: Started) -> Used:
        until = self._begun_s + self._watched.get("wall_time", float("inf"))
        while True:
            self._messages += [number for number, _ in self._job.messages(_LOOK_MS) if number in endings.CAPABILITY_OF]
            del self._messages[1000:]
            used = self.used = self._meter.look()
            if try_call("WaitForSingleObject", first.process, 0) != _PENDING:
                return used
            cause, measured = self._exceeded(used)
            if time.monotonic() >= until:
                cause = cause or "wall_time"
            if self._asked:
                cause = cause or ("" if self._signal else "asked")
            if cause or self._asked:
                self._cause, self._measured = cause, measured
                return used

    def _exceeded(self, used: Used) -> tuple[str, int]:
        for name, value in (("cpu_time", used.cpu_ms), ("memory", used.memory_bytes), ("pids", used.processes),
                            ("nofile", used.handles), ("disk", used.written_bytes)):  # fmt: skip
            most = self._watched.get(name, float("inf")) * (1000 if name == "cpu_time" else 1)
            if value > most:
                return name, value
        return "", 0

    def _wait_for_last(self) -> int:
        """How many processes are left after a while; usually 0. If a process is killed while it creates another, the
        new one can stay without ever having had memory: nothing runs there."""
        begun, left = time.monotonic(), 0
        while self._job.accounting().active_processes:
            self._messages += [number for number, _ in self._job.messages(5) if number in endings.CAPABILITY_OF]
            self._job.end(_KILLED)
            left, waited_s = self._meter.with_memory(), time.monotonic() - begun
            if waited_s > (_END_S if left else _HALF_MADE_S):
                return left
        self._messages += [number for number, _ in self._job.messages(0) if number in endings.CAPABILITY_OF]
        return 0

    def _told(self, used: Used, survivors: int) -> Report:
        assert self._first is not None
        wall_ns = int((time.monotonic() - self._begun_s) * 1e9)
        code = c_uint32()
        try_call("WaitForSingleObject", self._first.process, 1000)
        try_call("GetExitCodeProcess", self._first.process, byref(code))
        end = endings.ending(code.value, self._messages)
        by_us = bool(self._cause) or bool(self._signal)
        limits = self._job.limits()
        return Report(
            exit_code=None if by_us else end.exit_code,
            signal=(self._signal or _SIGKILL) if by_us else end.signal,
            cause=self._cause,
            measured=self._measured,
            wall_ns=wall_ns,
            cpu_user_us=used.user_us if look().times else 0,
            cpu_system_us=used.kernel_us if look().times else 0,
            peak_memory_bytes=max(self._meter.peak_memory_bytes, limits.peak_job_memory),
            processes=self._meter.peak_processes,
            written_bytes=used.written_bytes,
            survivors=survivors,
            told_limits=end.hits,
            native=end.native if not by_us else "",
        )

    def may_begin(self) -> bool:
        return True

    def is_stopped(self) -> bool:
        return False

    def source(self) -> Source:
        return Source(measure=lambda: measured((self,)), terminate=lambda: self.signal(_SIGKILL))

    def filenos(self) -> tuple[int, ...]:
        """An event in the place of a descriptor."""
        return (self._event,) if self._event else ()

    def receive(self) -> Report | None:
        return self._report

    def take_notes(self) -> list[Note]:
        return []

    def signal(self, number: int) -> None:
        """There are no signals: any of them ends the whole tree."""
        if self._report is None and not self._asked:
            self._signal = 0 if number == _SIGKILL else number
            self._asked = True

    def abandon(self) -> None:
        self.signal(_SIGKILL)
        with self._lock:
            self._job.end(_KILLED)

    def close(self) -> None:
        if self._event and self._report is None:
            self.signal(_SIGKILL)
            try_call("WaitForSingleObject", self._event, int(2 * _END_S * 1000))
        self._free()

    def _free(self) -> None:
        with self._lock:
            event, self._event = self._event, 0
            first, self._first = self._first, None
            self._meter.close()
            self._job.close()
            close(event, *((first.process, first.thread) if first else ()))


def measured(visits: Sequence[JobVisit]) -> tuple[float, int, int, int]:
    """Return what these use, for a monitor. Processor time and writes are of those that run or ended just now."""
    running = [visit.used for visit in visits if visit.receive() is None]
    cpu_us = sum(visit.used.user_us + visit.used.kernel_us for visit in visits) if look().times else 0
    return (cpu_us / 1e6, sum(used.memory_bytes for used in running), sum(visit.used.written_bytes for visit in visits),
            sum(used.processes for used in running))  # fmt: skip


def _started_in(job: JobObject, command: tuple[str, str, str, str], streams: Sequence[int], *, low: bool) -> Started:
    """In the job, and suspended."""
    token = reduced_token(low=low)
    try:
        first = started(*command, streams, token)
    finally:
        close(token)
    try:
        job.assign(first.process)
    except BaseException:
        try_call("TerminateProcess", first.process, _KILLED)
        close(first.process, first.thread)
        raise
    return first


def _errno(error: OSError) -> int:
    """No program of this kind can be executed here, which shells tell apart from one that is not there."""
    return _ENOEXEC if getattr(error, "winerror", 0) == BAD_EXE_FORMAT else error.errno or 0
