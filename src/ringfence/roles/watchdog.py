"""Holds what the kernel does not hold for a whole tree: processor time, memory, tasks, writes. Looks, never kills.

Part of: leader, leader of a visit, warden
"""

from __future__ import annotations

import os
import sys
import time
from _collections_abc import Callable, Collection, Iterator, Sequence

from ringfence.roles.layer_room import GoneRoom, LayerRoom
from ringfence.roles.processor_time import GroupTime, ProcessorTime

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    from ringfence.kernel.proc.operations import OperationsCount
    from ringfence.kernel.proc.procfs import Process

    class Table(Protocol):
        """The module that reads the process tree of this system: ``kernel.proc.procfs``, or ``process_table``."""

        TICKS_PER_S: int

        def stat(self, pid: int) -> Process | None: ...
        def children(self, pid: int) -> list[int]: ...
        def descendants(self, root: int, most: float = ...) -> Sequence[Process]: ...
        def walk(self, root: int, most: float, lost: list[int]) -> Iterator[Process]: ...
        def usage(self, pid: int) -> tuple[int, ...]: ...
        def proportional_bytes(self, process: Process) -> int: ...
        def unshared_bytes(self, process: Process) -> int: ...
        def has_its_parents_memory(self, process: Process, tree: Collection[int]) -> bool: ...
        def written_bytes(self, asked: int) -> int | None: ...
        def written_chars(self, pid: int) -> int: ...
        def operations(self, asked: int) -> int | None: ...
        def operations_waited_for(self, own_io: int, thread_io: int) -> int: ...
        def open_thread_io(self) -> int: ...
        def open_own_io(self) -> int: ...
        def own_written_bytes(self, descriptor: int) -> int: ...
        def own_written_chars(self, descriptor: int) -> int: ...
        def oom_kills(self) -> int: ...
        def kill(self, process: Process, number: int) -> None: ...

TICK_NS = 25_000_000
_ADDING_TICK_NS = 10_000_000
_MEMORY_TURN_NS = 10_000_000
_SUMS_MORE = 3
_WALKED_BYTES, _WALKED_LIMITS = 4 << 30, 4
"""Pages of this many bytes, and of this many times the limit, are walked at once: that takes a tenth of a second."""
# Faster than a processor fills the page cache: until a tree that writes this fast could have passed its limit, root
# does not look, so that a wide limit costs nothing. Other users must look: of a zombie they know only what they saw
# while it lived.
FASTEST_BYTES_PER_S = (4 << 30) * (os.cpu_count() or 1)


def tree_reader() -> Table:
    """The reader of the process tree that this system has."""
    if sys.platform == "linux":
        from ringfence.kernel.proc import procfs

        return procfs
    from ringfence.roles import process_table

    return process_table


class DiskCount:
    """What living processes have written, including those that an ordinary user can't look into. A program may choose
    that: it forbids it, or runs a file that it may not read."""

    def __init__(self, table: Table, folders: Sequence[str]) -> None:
        self._table = table
        self._folders = folders
        self._counted: dict[int, int] = {}
        """pid → the most that was seen of it. Dead processes that nobody waited for can't be looked into either."""
        self._gone = GoneRoom(self.free_bytes)
        self._gone_before: dict[int, int] = {}
        """pid of a process we can't look into → how much room had gone when it was first seen."""
        self._told = 0
        self.seen = 0
        """What was counted at the last look, without what processes that we can't look into were charged with."""

    def of(self, tree: Sequence[Process], first: int, tally: int) -> int:
        """``first``: pid 1 of a sandbox, which can't be looked into and reports what the dead inside wrote; or 0."""
        now = {row.pid: self._table.written_bytes(row.asked) for row in tree}
        self._counted = {pid: self._counted.get(pid, 0) if count is None else count for pid, count in now.items()}
        told = self._dead_inside(tally) if first in now and now[first] is None else 0
        closed = [row for row in tree if now[row.pid] is None and not row.zombie]
        ours = {row.session for row in closed if row.pid == first}  # which no process of the job can be in
        strangers = [row.pid for row in closed if row.session not in ours]
        self.seen = sum(self._counted.values()) + told
        return self.seen + self._gone_since(strangers)

    def _dead_inside(self, tally: int) -> int:
        try:
            self._told += os.eventfd_read(tally)
        except BlockingIOError:
            pass  # nothing new
        return self._told

    def _gone_since(self, closed: Sequence[int]) -> int:
        """The most that they can have written: the room that has gone since they were first seen. Others write too."""
        if not closed:
            self._gone_before = {}
            return 0
        gone = self._gone.look()
        self._gone_before = {pid: self._gone_before.get(pid, gone) for pid in closed}
        return gone - min(self._gone_before.values())

    def free_bytes(self) -> int:
        found = {}
        for folder in self._folders:
            try:
                found[os.stat(folder).st_dev] = os.statvfs(folder)
            except OSError:
                continue  # not made yet, or gone
        return sum(each.f_bavail * each.f_frsize for each in found.values())


class MemorySum:
    """The memory of a tree with shared pages counted once; asked only when its resident memory exceeds the limit. The
    kernel walks all pages of a process to tell, and many processes may share many: it is added up a few milliseconds at
    a time, so that no tree delays the deadline of another. A process that maps far more than that (the same pages a
    thousand times) is not walked; there each time counts.

    If processes came or ended meanwhile, the least of some sums counts: those are counted with memory that others were
    counted with, so one sum may be too much."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._adding: Iterator[None] | None = None
        self._least = 0

    @property
    def is_adding(self) -> bool:
        return self._adding is not None

    def give_up(self) -> None:
        self._adding = None

    def of(self, tree: Sequence[Process], most_bytes: float, again: Callable[[], Sequence[Process]]) -> int:
        """The memory of these, which ``again`` lists anew; 0 while it is added up: the next call goes on."""
        if self._adding is None:
            self._adding = self._sums(tree, most_bytes, again)
        until_ns = time.monotonic_ns() + _MEMORY_TURN_NS
        for _ in self._adding:
            if time.monotonic_ns() > until_ns:
                return 0
        self._adding = None
        return self._least

    def _sums(
        self, tree: Sequence[Process], most_bytes: float, again: Callable[[], Sequence[Process]]
    ) -> Iterator[None]:
        walked = max(_WALKED_BYTES, _WALKED_LIMITS * most_bytes)
        yield from self._sum(tree, walked)
        least = self._least
        for _ in range(_SUMS_MORE):
            before, tree = tree, again()
            if least <= most_bytes or _are_same(before, tree):
                break
            yield from self._sum(tree, walked)
            least = min(least, self._least)
        self._least = least

    def _sum(self, tree: Sequence[Process], walked_bytes: float) -> Iterator[None]:
        found, pids = 0, {row.pid for row in tree}
        for row in tree:
            read = self._table.proportional_bytes if row.rss_bytes <= walked_bytes else self._table.unshared_bytes
            found += 0 if self._table.has_its_parents_memory(row, pids) else read(row)
            yield
        self._least = found


def _are_same(before: Sequence[Process], now: Sequence[Process]) -> bool:
    return {(row.pid, row.start) for row in before} == {(row.pid, row.start) for row in now}


class Watchdog:
    """Looks at everything below this process, and remembers the most that it saw."""

    def __init__(
        self, table: Table, limits: dict[str, float], own_io: int, written: Sequence[str] = (),
        layers: Sequence[str] = (),
    ) -> None:  # fmt: skip
        """``table`` reads the process tree of this system; ``own_io`` is this process' io file, -1: none; ``written``
        are directories on the file systems that the tree writes to, ``layers`` those that it alone writes to."""
        self.answering_s: Callable[[], float] = float
        """Processor time of this process that the job caused, which is charged to the job."""
        self.table = table
        self.limits = limits
        self.peak_memory = 0
        self.peak_tasks = 0
        self.most_written = 0
        self.thread_io = -1
        """The io file of the one thread of this process; -1: there is none."""
        self.operations: OperationsCount | None = None
        if "operations" in limits:
            from ringfence.kernel.proc.operations import OperationsCount

            self.operations = OperationsCount(table.operations)
        self._own_io = own_io
        self.processor_time = ProcessorTime(table.TICKS_PER_S)
        # Up to a second later than RLIMIT_CPU, which says it better; RLIMIT_CPU knows whole seconds only.
        self._latest_cpu_s = limits["cpu_time"] + min(1.0, limits["cpu_time"])
        self._next_disk_look_ns = 0
        self._memory = MemorySum(table)
        self._disk = DiskCount(table, written)
        self._layers = LayerRoom(layers, DiskCount(table, layers).free_bytes)
        self._group: GroupTime | None = None
        self.first, self.tally = 0, -1
        """pid 1 of a sandbox, and where it counts what the dead in it wrote; 0 and -1: there is none."""

    def count_group(self, folders: Sequence[str]) -> None:
        """Count by the control group from now on. Only that counts children whose end nobody is told of."""
        if folders:
            self._group = GroupTime(folders)
            self.processor_time.group_s = self._group.used_s

    def close(self) -> None:
        """No more looks after this."""
        if self._group is not None:
            self._group.close()

    def usage(self, told: Sequence[int]) -> tuple[int, ...]:
        """What was reported of the job, or what was seen of the whole tree if that is more; plus what we did for it."""
        user_us, system_us, *rest = told
        user_us, system_us = max((user_us, system_us), self.processor_time.most_us(), key=sum)
        return (user_us, system_us + int(self.answering_s() * 1e6), *rest)

    @property
    def tick_ns(self) -> int:
        """When to look again. While a sum is under way, soon: the job goes on writing."""
        return _ADDING_TICK_NS if self._layers.is_adding or self._memory.is_adding else TICK_NS

    def look(self, root: int = 0) -> tuple[str, float] | None:
        """(the limit that is passed, what was measured: bytes, tasks or milliseconds), or None.

        ``root``: another process than this one.
        """
        return self._passed(self.rows(root), root)

    def look_last(self, root: int = 0) -> None:
        """The look before everything is ended: processes that nobody waits for afterwards are in no other count."""
        tree = self.rows(root)
        self._passed(tree, root)
        self._counted(tree)

    def _passed(self, tree: Sequence[Process], root: int) -> tuple[str, float] | None:
        cpu_s = self.processor_time.used_s(tree) + self.answering_s()
        resident = sum(row.rss_bytes for row in self._theirs(tree))
        # The dead that nobody has waited for hold a pid and have used processor time, too.
        tasks = sum(1 if row.zombie else row.threads for row in tree)
        self.peak_memory = max(self.peak_memory, resident)
        self.peak_tasks = max(self.peak_tasks, sum(row.threads for row in tree if not row.zombie))
        if tasks > self.limits["pids"]:
            return "pids", tasks
        if resident > self.limits["memory"]:
            resident = self._memory.of(self._theirs(tree), self.limits["memory"], lambda: self._theirs(self.rows(root)))
            if resident > self.limits["memory"]:
                return "memory", resident
        else:
            self._memory.give_up()
        if cpu_s >= self._latest_cpu_s:
            return "cpu_time", cpu_s * 1000
        if "disk" in self.limits and time.monotonic_ns() >= self._next_disk_look_ns:
            written = self._written(tree, root)
            if written > self.limits["disk"]:
                return "disk", written
        return None

    def _theirs(self, tree: Sequence[Process]) -> list[Process]:
        """Without pid 1, whose memory is ours."""
        return [row for row in tree if row.pid != self.first]

    def _written(self, tree: Sequence[Process], root: int) -> int:
        """Also sets when to look again: not before the remaining bytes can be written."""
        taken = self._layers.taken(self.limits["disk"], lambda: self._asked(root))
        written = max(self._counted(tree), taken)
        if os.geteuid() == 0:
            left_s = max(0.0, self.limits["disk"] - max(written, self._layers.most)) / FASTEST_BYTES_PER_S
            self._next_disk_look_ns = time.monotonic_ns() + int(left_s * 1e9)
        return written

    def look_at_operations(self, root: int, waited_for: int | None) -> tuple[str, float] | None:
        """As ``look``, for the calls that a visit may make. ``waited_for``: see ``OperationsCount``; None: of ours."""
        if self.operations is None:
            return None
        if waited_for is None:
            waited_for = self.table.operations_waited_for(self._own_io, self.thread_io) if self.thread_io >= 0 else 0
        count = self.operations.look(self.rows(root), waited_for)
        return ("operations", count) if count > self.limits["operations"] else None

    def _counted(self, tree: Sequence[Process]) -> int:
        waited_for, counted = self.written_bytes(), self._disk.of(tree, self.first, self.tally)
        self.most_written = max(self.most_written, waited_for + self._disk.seen)
        return waited_for + counted

    def rows(self, root: int) -> list[Process]:
        return list(self.walk(root, []))

    def walk(self, root: int, lost: list[int]) -> Iterator[Process]:
        """Each as soon as it is found; ``lost`` gets those that ended before they were read."""
        return self.table.walk(root or os.getpid(), self.limits["pids"], lost)

    def _asked(self, root: int) -> Iterator[int]:
        """A thread of each process, listed anew: in an older list, many would have ended by now."""
        lost: list[int] = []
        yield from (row.asked for row in self.walk(root, lost))
        yield from lost

    def written_chars(self, living: Sequence[int] = ()) -> int:
        """Bytes passed to write calls by the same processes, whatever they were written to."""
        live = sum(self.table.written_chars(pid) for pid in living)
        return int(live + self.table.own_written_chars(self._own_io))

    def written(self, living: Sequence[int]) -> int:
        """Written by all children that were waited for, and by these; or what was seen, if that is more."""
        return max(self.written_bytes(living), self.most_written)

    def written_bytes(self, living: Sequence[int] = ()) -> int:
        """Written by all children that were waited for, and by these, which were not."""
        live = sum(self.table.written_bytes(pid) or 0 for pid in living)
        return int(live + self.table.own_written_bytes(self._own_io))
