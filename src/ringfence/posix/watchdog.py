"""Holds what the kernel does not hold for a whole tree: processor time, memory, tasks, writes. Looks, never kills."""

from __future__ import annotations

import os
import sys
import time
from _collections_abc import Sequence

from ringfence.posix.processor_time import ProcessorTime

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

TICK_NS = 25_000_000
# Faster than a processor fills the page cache: until a tree that writes so fast could have passed its limit, nobody
# looks, so that a wide limit costs nothing.
FASTEST_BYTES_PER_S = (4 << 30) * (os.cpu_count() or 1)


def tree_reader() -> Any:
    """The reader of the process tree that this system has."""
    if sys.platform == "linux":
        from ringfence.linux import procfs

        return procfs
    from ringfence.posix import process_table

    return process_table


class Watchdog:
    """Looks at everything below this process, and remembers the most that it saw."""

    def __init__(self, table: Any, limits: dict[str, float], own_io: int) -> None:
        """``table`` reads the process tree of this system; ``own_io`` is this process' io file, -1: none."""
        self.table = table
        self.limits = limits
        self.peak_memory = 0
        self.peak_tasks = 0
        self._own_io = own_io
        self._processor_time = ProcessorTime(table.TICKS_PER_S)
        self._next_disk_look_ns = 0

    def look(self) -> tuple[str, float] | None:
        """(the limit that is passed, what was measured), or None."""
        tree = self.table.descendants(os.getpid())
        resident = sum(row.rss_bytes for row in tree)
        # The dead that nobody has waited for hold a pid and have used processor time, too.
        tasks = sum(1 if row.zombie else row.threads for row in tree)
        self.peak_memory = max(self.peak_memory, resident)
        self.peak_tasks = max(self.peak_tasks, sum(row.threads for row in tree if not row.zombie))
        if tasks > self.limits["pids"]:
            return "pids", tasks
        if resident > self.limits["memory"]:
            resident = sum(self.table.proportional_bytes(row) for row in tree)
            if resident > self.limits["memory"]:
                return "memory", resident
        cpu_s = self._processor_time.used_s(tree)
        if cpu_s >= self.limits["cpu_time"] + 1:  # a second later than RLIMIT_CPU, which says it better
            return "cpu_time", cpu_s
        if "disk" in self.limits and time.monotonic_ns() >= self._next_disk_look_ns:
            written = self.written_bytes([row.pid for row in tree])
            if written > self.limits["disk"]:
                return "disk", written
            left_s = (self.limits["disk"] - written) / FASTEST_BYTES_PER_S
            self._next_disk_look_ns = time.monotonic_ns() + int(left_s * 1e9)
        return None

    def written_bytes(self, living: Sequence[int] = ()) -> int:
        """By all that were waited for, and by these, which were not."""
        live = sum(map(self.table.written_bytes, living))
        return int(live + self.table.own_written_bytes(self._own_io))
