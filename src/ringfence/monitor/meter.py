"""Measures one sandbox: its control group tells what it counts, /proc the rest.

Processor time and memory are read every time, from two small files where there is a group. Writes, operations, network
and the number of processes need the whole tree and are read once a second there, if anything has run.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from ringfence.errors import UnavailableError
from ringfence.kernel.proc import procfs
from ringfence.kernel.proc.group_reader import GroupFiles
from ringfence.kernel.proc.open_files import DescriptorBudget
from ringfence.kernel.proc.tally import Counted, Tally
from ringfence.kernel.proc.tree_reader import TreeFiles, has_datagrams_at, own_network
from ringfence.monitor.sample import Sample
from ringfence.monitor.source import Source

DEEP_EVERY_S = 1.0
"""How often the whole tree is walked where a group, or the last walk, has the figures that change fast."""
REST_S = 0.0015
"""Time per process between two walks of a tree: one huge tree must not take up a processor."""
_AGAIN = 3
"""How often the processes are asked again if one of them ended while their counts were read."""
_SHORTEST_S = 0.001
"""Over less than this a share of the processor means nothing."""


class _Led:
    """What is known of the tree below one leader; kept when it has ended."""

    def __init__(self) -> None:
        self.ticks, self.written, self.operations = Tally(), Tally(), Tally()
        self.network = self.loopback = 0
        self.connected = 0
        """A process of it that has a network of its own; 0: none is known."""
        self.has_gateway: bool | None = None
        """Its loopback leads to a gateway, and nothing tells what went through; None: not looked up yet."""
        self.asked: set[int] = set()
        """Processes that were asked whether they have one."""


class Meter:
    """Measures one sandbox; not for two threads at a time."""

    def __init__(
        self,
        source: Source,
        room: DescriptorBudget,
        clock: Callable[[], float],
        doubt_bytes: float,
        deep_every_s: float = DEEP_EVERY_S,
    ) -> None:
        """``doubt_bytes``: if memory is above this, and no group counts it, shared pages are told apart."""
        self._deep_every_s = deep_every_s
        self._source = source
        self._clock = clock
        self._doubt_bytes = doubt_bytes
        self._began_s = clock()
        self._groups = GroupFiles(source.groups, room) if GroupFiles.suffices(source.groups) else None
        self._files: Any = TreeFiles(room) if sys.platform == "linux" or source.measure is not None else _table()
        self._led: dict[tuple[int, int], _Led] = {}
        self._deep_due_s = 0.0
        self._deep_cpu_s = -1.0
        self.rest_s = 0.0
        """How long to wait before the next look."""
        self._last: Sample | None = None
        self._rows: list[Any] = []
        self._cpu_s = 0.0
        self._resident_bytes = self._shared_bytes = self._unreadable = 0
        self._slow = (0, 0, 0, 0, 0, 0)
        """The last fields of a sample: what only a walk tells."""

    def measure(self, *, whole: bool = False) -> Sample:
        """``whole``: read everything anew, even what is otherwise read once a second."""
        now_s = self._clock() - self._began_s
        if self._source.measure is not None:
            return self._as_told(now_s, *self._source.measure())
        groups = self._groups
        if groups is None:
            self._walk(whole or now_s >= self._deep_due_s, now_s)
            cpu_s, memory_bytes = self._by_tree()
        else:
            cpu_s, memory_bytes = groups.figures(anew=whole) or (0.0, 0)
            # Nothing has happened in a group that has used no time at all.
            if whole or (now_s >= self._deep_due_s and cpu_s != self._deep_cpu_s):
                self._deep_cpu_s = cpu_s
                self._walk(True, now_s)
                cpu_s, memory_bytes = groups.figures(anew=True) or (0.0, 0)
        cpu_s, percent = self._share(now_s, cpu_s)
        self._last = Sample(now_s, cpu_s, percent, memory_bytes, *self._slow)
        if self._source.network is not None:
            self._last = self._last._replace(network_bytes=self._last.network_bytes + self._source.network())
        return self._last

    def _as_told(self, now_s: float, cpu_s: float, memory_bytes: int, written: int, processes: int) -> Sample:
        cpu_s, percent = self._share(now_s, cpu_s)
        self._last = Sample(now_s, cpu_s, percent, memory_bytes, written, 0, 0, 0, processes, 0)
        return self._last

    def _share(self, now_s: float, cpu_s: float) -> tuple[float, float]:
        """(processor time, which never falls, and its share since the last sample)."""
        last = self._last
        if last is None:
            return cpu_s, 0.0
        passed_s, cpu_s = now_s - last.time_s, max(cpu_s, last.cpu_s)
        return cpu_s, (cpu_s - last.cpu_s) / passed_s * 100 if passed_s >= _SHORTEST_S else last.cpu_percent

    def _by_tree(self) -> tuple[float, int]:
        """Resident memory counts shared pages once for each sharer, so it may only seem too much."""
        if self._resident_bytes - self._shared_bytes > self._doubt_bytes:
            self._shared_bytes = self._resident_bytes - sum(map(self._files.proportional_bytes, self._rows))
        return self._cpu_s, max(0, self._resident_bytes - self._shared_bytes)

    # ---- the tree

    def _walk(self, deep: bool, now_s: float) -> None:
        files = self._files
        if deep:
            self._shared_bytes = 0
            self._deep_due_s = now_s + max(self._deep_every_s, REST_S * len(self._rows))
        if not files.look(self._source.leaders(), whole=deep):
            return  # no process has run, so no count has changed
        rows, below = files.rows, _by_parent(files.parents)
        self._rows, self._unreadable = [], 0
        for root in below.get(0, ()):
            if root in rows:
                pids = [pid for pid in _all_below(root, below) if pid in rows]
                self._update(rows, root, pids, deep)
        self._add_up()
        self.rest_s = REST_S * len(self._rows) if self._groups is None else 0.0

    def _update(self, rows: Mapping[int, Any], root: int, pids: list[int], deep: bool) -> None:
        leader = rows[root]
        led = self._led.setdefault((root, leader.start), _Led())
        mine = [rows[pid] for pid in pids]
        self._rows += mine
        if self._groups is None:
            # Of the leader's counts only its waited-for children belong to the sandbox.
            ticks = {root: Counted(leader.start, 0, leader.cpu_ticks - leader.own_ticks)}
            ticks |= {row.pid: Counted(row.start, self._files.parents[row.pid], row.cpu_ticks) for row in mine}
            led.ticks.update(ticks)
        # At every look: a process that nobody waits for takes its counts with it when it ends.
        self._count(led, mine, deep)
        if deep:
            self._count_network(led, pids)

    def _add_up(self) -> None:
        led = self._led.values()
        self._cpu_s = sum(each.ticks.total for each in led) / procfs.TICKS_PER_S
        self._resident_bytes = sum(row.rss_bytes for row in self._rows)
        self._slow = (
            sum(each.written.total for each in led),
            sum(each.network for each in led),
            sum(each.loopback for each in led),
            sum(each.operations.total for each in led),
            sum(not row.zombie for row in self._rows),
            self._unreadable,
        )

    def _count(self, led: _Led, rows: list[Any], deep: bool) -> None:
        """Parents before their children. If a process ends in the middle, its parent may have been asked before or
        after it took over the counts: all are asked again. A tree in which processes end all the time is counted as
        found: too much rather than not at all."""
        counts, ended = self._counts(rows, deep)
        for _ in range(_AGAIN):
            if not ended:
                break
            rows = [row for row in rows if row.pid not in ended]
            counts, ended = self._counts(rows, deep=True)
        written: dict[int, Counted] = {}
        operations: dict[int, Counted] = {}
        for row in rows:
            pid, start, parent = row.pid, row.start, self._files.parents[row.pid]
            found = counts[pid]
            if found is None:
                self._unreadable += not row.zombie
                found = led.written.known(pid, start), led.operations.known(pid, start)
            written[pid] = Counted(start, parent, found[0])
            operations[pid] = Counted(start, parent, found[1])
        led.written.update(written)
        led.operations.update(operations)

    def _counts(self, rows: list[Any], deep: bool) -> tuple[dict[int, Any], set[int]]:
        """What each process has counted, None if that can't be read; and the processes found to have ended."""
        files = self._files
        counts: dict[int, Any] = {}
        ended: set[int] = set()
        for row in rows:
            anew = deep or row.pid in files.stirred
            counts[row.pid] = files.counts(row.pid, anew=anew)
            if anew and files.has_ended(row.pid):
                ended.add(row.pid)
        return counts, ended

    def _count_network(self, led: _Led, pids: list[int]) -> None:
        if led.connected not in pids:
            led.connected = next((pid for pid in pids if pid not in led.asked and own_network(pid)), 0)
            led.asked = set(pids)
        if led.connected:
            outside, loopback = self._files.network_bytes(led.connected)
            if led.has_gateway is None:
                led.has_gateway = self._source.network is None and _leads_to_a_gateway(led.connected)
            if led.has_gateway:
                outside += loopback // 2  # each packet leaves there, and arrives there
            led.network, led.loopback = max(led.network, outside), max(led.loopback, loopback)

    def close(self) -> None:
        self._files.close()
        if self._groups is not None:
            self._groups.close()


def _leads_to_a_gateway(pid: int) -> bool:
    """A guest can't take port 53: if the gateway's resolver is there, so is the gateway."""
    from ringfence.egress.addresses import DNS_ADDRESS, DNS_PORT

    return has_datagrams_at(pid, DNS_ADDRESS, DNS_PORT)


def _by_parent(parents: Mapping[int, int]) -> dict[int, list[int]]:
    below: dict[int, list[int]] = {}
    for pid, parent in parents.items():
        below.setdefault(parent, []).append(pid)
    return below


def _all_below(root: int, below: Mapping[int, list[int]]) -> list[int]:
    found = list(below.get(root, ()))
    for pid in found:  # grows while it is gone through
        found += below.get(pid, ())
    return found


def _table() -> _Table:
    if sys.platform == "win32":
        raise UnavailableError("processes can't be measured on this system", hint="run on Linux or macOS")
    return _Table()


class _Table:
    """Where there is no /proc: from ps, without writes, operations and network."""

    class _Leader:
        start = cpu_ticks = own_ticks = 0

    def __init__(self) -> None:
        self.parents: dict[int, int] = {}
        self.rows: dict[int, Any] = {}
        self.stirred: frozenset[int] = frozenset()

    def look(self, roots: tuple[int, ...], *, whole: bool = False) -> bool:
        from ringfence.roles import process_table

        self.parents, self.rows = {}, {}
        for root in roots:
            self.parents[root], self.rows[root] = 0, self._Leader()
            for row in process_table.descendants(root):
                self.parents[row.pid], self.rows[row.pid] = root, row
        return True

    def counts(self, pid: int, *, anew: bool) -> None:
        return None

    def has_ended(self, pid: int) -> bool:
        return False

    def proportional_bytes(self, row: Any) -> int:
        return int(row.rss_bytes)

    def close(self) -> None:
        return
