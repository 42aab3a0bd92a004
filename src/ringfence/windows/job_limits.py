"""From the limits of a policy to what a job object is told. Pure."""

from __future__ import annotations

import math
from _collections_abc import Mapping

from ringfence.model.record import record
from ringfence.windows.structures import CpuRate, ExtendedLimits, UiRestrictions

PER_PROCESS_TIME, PER_JOB_TIME, ACTIVE_PROCESSES = 0x2, 0x4, 0x8
PROCESS_MEMORY, JOB_MEMORY = 0x100, 0x200
DIE_ON_UNHANDLED_EXCEPTION, BREAKAWAY_OK, SILENT_BREAKAWAY_OK, KILL_ON_CLOSE = 0x400, 0x800, 0x1000, 0x2000
ALWAYS = DIE_ON_UNHANDLED_EXCEPTION | KILL_ON_CLOSE
"""Of every job. Neither kind of breakaway is ever among them."""
ALL_UI = 0xFF
"""Desktop, display and system settings, exit from Windows, global atoms, handles of others, clipboard both ways."""
CPU_RATE_ENABLED, CPU_RATE_HARD = 0x1, 0x4
WHOLE_RATE = 10_000
_UNITS_PER_S = 10_000_000
_MOST_PROCESSES, _MOST_UNITS, _MOST_BYTES = 0xFFFFFFFF, 1 << 62, 1 << 62


@record
class JobLimits:
    """What a job object is told before a process is in it."""

    flags: int
    time_units: int = 0
    """Of user time, of each process and of the job as a whole, in units of 100 ns; 0: without a limit."""
    memory_bytes: int = 0
    processes: int = 0
    cpu_rate: int = 0
    """In hundredths of a per cent of all processors together; 0: not held."""

    def extended(self) -> ExtendedLimits:
        limits = ExtendedLimits()
        limits.basic.flags = self.flags
        limits.basic.per_process_user_time = limits.basic.per_job_user_time = self.time_units
        limits.basic.active_processes = self.processes
        limits.process_memory = limits.job_memory = self.memory_bytes
        return limits

    def is_held_by(self, found: ExtendedLimits) -> bool:
        """Whether Windows says that it holds these limits. Times or counts beyond its range are refused earlier."""
        basic = found.basic
        told = (basic.flags, basic.per_process_user_time, basic.active_processes, found.process_memory,
                found.job_memory)  # fmt: skip
        asked = (self.flags, self.time_units, self.processes, self.memory_bytes, self.memory_bytes)
        needed = (True, *(bool(self.flags & flag) for flag in (PER_PROCESS_TIME, ACTIVE_PROCESSES, PROCESS_MEMORY,
                                                                JOB_MEMORY)))  # fmt: skip
        return all(said == wanted for said, wanted, must in zip(told, asked, needed, strict=True) if must)

    def ui(self) -> UiRestrictions:
        return UiRestrictions(ALL_UI)

    def rate(self) -> CpuRate | None:
        return CpuRate(CPU_RATE_ENABLED | CPU_RATE_HARD, self.cpu_rate) if self.cpu_rate else None


def job_limits(asked: Mapping[str, float], processors: int) -> JobLimits:
    """Return the limits of a job for what is asked, by capability; ``processors``: how many the host has."""
    flags, time_units, memory, processes = ALWAYS, 0, 0, 0
    if "cpu_time" in asked:
        flags |= PER_PROCESS_TIME | PER_JOB_TIME
        time_units = max(1, math.ceil(min(asked["cpu_time"] * _UNITS_PER_S, _MOST_UNITS)))
    if "memory" in asked:
        flags |= PROCESS_MEMORY | JOB_MEMORY
        memory = math.ceil(min(asked["memory"], _MOST_BYTES))
    if "pids" in asked:
        flags |= ACTIVE_PROCESSES
        processes = int(min(max(1, asked["pids"]), _MOST_PROCESSES))
    rate = _rate(asked["cpu_share"], processors) if "cpu_share" in asked else 0
    return JobLimits(flags=flags, time_units=time_units, memory_bytes=memory, processes=processes, cpu_rate=rate)


def _rate(share: float, processors: int) -> int:
    """A share of 1 is one whole processor; Windows counts all of them as one."""
    return min(max(1, math.floor(share / max(1, processors) * WHOLE_RATE)), WHOLE_RATE)
