"""What a job reads of its own limits: /sys/fs/cgroup in the form of cgroup v2, and the totals of /proc/meminfo.

Runtimes size themselves by these files: a JVM its heap, node its generations, Go its threads. They are plain files that
say what the policy says; they enforce nothing, and contain nothing of the host's (ADR 0054).
"""

from __future__ import annotations

import os

from ringfence.model.record import record

CGROUP, MEMORY = "/sys/fs/cgroup", "/proc/meminfo"
FOLDER = "limits"
"""Where they lie while a sandbox is built."""
_PERIOD_US = 100_000
_MEMINFO = ("MemTotal", "MemFree", "MemAvailable", "Buffers", "Cached", "SwapCached", "Active", "Inactive", "SwapTotal",
            "SwapFree", "Dirty", "Writeback", "AnonPages", "Mapped", "Shmem", "KReclaimable", "Slab", "SReclaimable",
            "SUnreclaim", "CommitLimit", "Committed_AS")  # fmt: skip
_FULL = ("MemTotal", "MemFree", "MemAvailable", "CommitLimit")


_V1 = frozenset(("memory", "cpuset", "cpu", "cpuacct"))
"""Controllers that a JVM must find mounted, all of them, before it trusts any."""


@record
class Limits:
    """The parts of a policy that a runtime asks for."""

    memory: int
    tasks: int
    cores: float | None = None
    """Absent: all of them."""
    groups: tuple[tuple[str, str], ...] = ()
    """(kind, options) of the file systems of control groups that this kernel has."""
    by_kernel: bool = False
    """On v2 the job's own group says everything, and is itself shown."""


def files(limits: Limits, total: int) -> list[tuple[str, str]]:
    """(path below the directory, text). ``total``: the host's memory, which is the limit where that is larger."""
    memory = min(limits.memory, total) // 4096 * 4096
    quota = max(1000, int(limits.cores * _PERIOD_US)) if limits.cores else None
    cores = f"0-{(os.cpu_count() or 1) - 1}"
    group = {
        "cgroup.controllers": "cpu memory pids", "cgroup.type": "domain", "pids.max": limits.tasks,
        "cpu.max": f"{quota or 'max'} {_PERIOD_US}", "memory.max": memory, "memory.high": "max", "memory.low": 0,
        "memory.min": 0, "memory.swap.max": 0, "memory.swap.current": 0,
        # Where the kernel has v1, /proc/self/cgroup says so; a JVM looks here then, and node in a directory.
        "memory.limit_in_bytes": memory, "memory.soft_limit_in_bytes": memory, "memory.memsw.limit_in_bytes": memory,
        "memory.use_hierarchy": 1, "memory.swappiness": 0, "cpu.cfs_quota_us": quota or -1, "cpu.shares": 1024,
        "cpu.cfs_period_us": _PERIOD_US, "cpuset.cpus": cores, "cpuset.effective_cpus": cores,
        "memory/memory.limit_in_bytes": memory, "memory/memory.soft_limit_in_bytes": memory,
    }  # fmt: skip
    rows = [(f"{FOLDER}{CGROUP}/{name}", f"{text}\n") for name, text in group.items()]
    numbers = ((name, memory // 1024 if name in _FULL else 0) for name in _MEMINFO)
    return [*rows, (f"{FOLDER}{MEMORY}", "".join(f"{name + ':':<15} {number:>8} kB\n" for name, number in numbers))]


def group_mounts(own_groups: str) -> tuple[tuple[str, str], ...]:
    """What to mount so that a runtime looks for groups at all, by the text of /proc/self/cgroup.

    >>> group_mounts("0::/x"), group_mounts("3:cpu,cpuacct:/\\n2:pids:/\\n0::/")
    ((('cgroup2', ''),), (('cgroup', 'cpu,cpuacct'),))
    """
    rows = [line.split(":", 2) for line in own_groups.split("\n") if line.count(":") >= 2]
    v1 = [names for number, names, _ in rows if number != "0" and _V1 & set(names.split(","))]
    return tuple(("cgroup", names) for names in v1) or (("cgroup2", ""),)


def host_total() -> int:
    """The host's memory in bytes."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
