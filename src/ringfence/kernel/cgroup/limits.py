"""What may be asked of a control group, and the two tables that turn it into files: one for v2, one for v1.

A setting is text for a file and the judge of what is read back. Looks only at which disk a path lies on and
whether there is swap; opens no group and writes nothing (cgroups.py does).
"""

from __future__ import annotations

import os
import stat
from _collections_abc import Callable

from ringfence.kernel.cgroup import tree as cgroup_tree
from ringfence.model.record import record

CPU_PERIOD_US = 100_000
SMALLEST_QUOTA_US = 1_000
"""The kernel refuses a smaller value."""

SOCKET_SHARE = 8
"""On v1 an eighth of the memory limit may lie in buffers of sockets."""

SWAP_FIX = "sudo swapoff -a, or boot with swapaccount=1"


@record
class CgroupLimits:
    """Limits of one group; absent means: no limit of ours (the host's still holds)."""

    mem_bytes: int | None = None
    swap_bytes: int = 0
    """Swap beside ``mem_bytes``; only with it."""
    pids_max: int | None = None
    cpu_share: float | None = None
    """Cores that may be kept busy, such as 0.5."""
    read_bytes_per_s: int | None = None
    write_bytes_per_s: int | None = None
    io_paths: tuple[str, ...] = ("/",)
    """Bytes per second are counted on each of the disks under these paths."""

    def asked(self) -> dict[str, object]:
        """Capability → what is asked of it."""
        io = {"read": self.read_bytes_per_s, "write": self.write_bytes_per_s}
        wanted = {"memory": self.mem_bytes, "pids": self.pids_max, "cpu_share": self.cpu_share,
                  "io": io if any(io.values()) else None}  # fmt: skip
        return {capability: value for capability, value in wanted.items() if value is not None}


@record
class Setting:
    """Describes one write to a file of a group. ``holds`` judges what is read back: the kernel rounds, and a write may
    take no effect."""

    file: str
    text: str
    holds: Callable[[str], bool]
    only_if_there: bool = False
    """The promise holds even on a kernel without this file."""
    lack: str = ""
    """What is not limited if the file is missing, for ``details``."""
    fix: str = ""
    """What helps if the kernel must have the file and does not."""


def settings(capability: str, version: int, limits: CgroupLimits) -> tuple[Setting, ...]:
    """The writes that make this limit, in the order in which the kernel takes them."""
    return _TABLE[capability, version](limits)


def disk_of(path: str) -> str:
    """major:minor of the whole disk under a path; '' if there is none (tmpfs, overlay, network).
    Throttling is set on disks, not on their partitions."""
    state = os.stat(path)
    device = state.st_rdev if stat.S_ISBLK(state.st_mode) else state.st_dev
    entry = f"/sys/dev/block/{os.major(device)}:{os.minor(device)}"
    if os.path.exists(f"{entry}/partition"):
        entry = os.path.dirname(os.path.realpath(entry))
    try:
        with open(f"{entry}/dev", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def disks_of(limits: CgroupLimits) -> tuple[str, ...]:
    return tuple(dict.fromkeys(disk_of(path) for path in limits.io_paths))


def swap_is_on() -> bool:
    text = cgroup_tree.read("/proc/swaps")
    return text is None or text.count("\n") > 1


def _at_most(limit: int) -> Callable[[str], bool]:
    """The kernel rounds memory down to pages; more than asked, or ``max``, is not the limit."""
    return lambda text: text.strip().isdigit() and int(text) <= limit


def _equal(*words: str) -> Callable[[str], bool]:
    return lambda text: text.split() == list(words)


def _line(*words: str) -> Callable[[str], bool]:
    return lambda text: any(set(words) <= set(line.split()) for line in text.splitlines())


def _v2_memory(limits: CgroupLimits) -> tuple[Setting, ...]:
    size, swap = limits.mem_bytes or 0, limits.swap_bytes
    return (
        Setting(file="memory.max", text=str(size), holds=_at_most(size)),
        Setting(file="memory.swap.max", text=str(swap), holds=_at_most(swap),
                only_if_there=not swap_is_on(), fix=SWAP_FIX),
        Setting(file="memory.oom.group", text="1", holds=_equal("1"), only_if_there=True),
    )  # fmt: skip


def _v1_memory(limits: CgroupLimits) -> tuple[Setting, ...]:
    size = limits.mem_bytes or 0
    both = size + limits.swap_bytes
    # On v1 the memory limit does not include the buffers of sockets: this share comes on top.
    buffers = size // SOCKET_SHARE
    return (
        Setting(file="memory.limit_in_bytes", text=str(size), holds=_at_most(size)),
        Setting(file="memory.memsw.limit_in_bytes", text=str(both), holds=_at_most(both),
                only_if_there=not swap_is_on(), fix=SWAP_FIX),
        Setting(file="memory.kmem.tcp.limit_in_bytes", text=str(buffers), holds=_at_most(buffers), only_if_there=True,
                lack="buffers of sockets are not counted by this kernel"),
    )  # fmt: skip


def _pids(limits: CgroupLimits) -> tuple[Setting, ...]:
    return (Setting(file="pids.max", text=str(limits.pids_max), holds=_equal(str(limits.pids_max))),)


def _quota_us(limits: CgroupLimits) -> str:
    return str(max(SMALLEST_QUOTA_US, int((limits.cpu_share or 0) * CPU_PERIOD_US)))


def _v2_cpu(limits: CgroupLimits) -> tuple[Setting, ...]:
    words = (_quota_us(limits), str(CPU_PERIOD_US))
    return (Setting(file="cpu.max", text=" ".join(words), holds=_equal(*words)),)


def _v1_cpu(limits: CgroupLimits) -> tuple[Setting, ...]:
    period, quota = str(CPU_PERIOD_US), _quota_us(limits)
    return (
        Setting(file="cpu.cfs_quota_us", text=quota, holds=_equal(quota)),
        Setting(file="cpu.cfs_period_us", text=period, holds=_equal(period)),
    )


def _v2_io(limits: CgroupLimits) -> tuple[Setting, ...]:
    rates = [f"{key}={rate}" for key, rate in _rates(limits, "rbps", "wbps")]
    return tuple(
        Setting(file="io.max", text=" ".join([disk, *rates]), holds=_line(disk, *rates)) for disk in disks_of(limits)
    )


def _v1_io(limits: CgroupLimits) -> tuple[Setting, ...]:
    return tuple(
        Setting(file=file, text=f"{disk} {rate}", holds=_line(disk, str(rate)))
        for disk in disks_of(limits)
        for file, rate in _rates(limits, "blkio.throttle.read_bps_device", "blkio.throttle.write_bps_device")
    )


def _rates(limits: CgroupLimits, read: str, write: str) -> list[tuple[str, int]]:
    pairs = ((read, limits.read_bytes_per_s), (write, limits.write_bytes_per_s))
    return [(key, rate) for key, rate in pairs if rate]


_TABLE: dict[tuple[str, int], Callable[[CgroupLimits], tuple[Setting, ...]]] = {
    ("memory", 2): _v2_memory,
    ("memory", 1): _v1_memory,
    ("pids", 2): _pids,
    ("pids", 1): _pids,
    ("cpu_share", 2): _v2_cpu,
    ("cpu_share", 1): _v1_cpu,
    ("io", 2): _v2_io,
    ("io", 1): _v1_io,
}
