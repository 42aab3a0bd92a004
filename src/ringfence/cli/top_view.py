"""What ``ringfence top`` shows: the running sandboxes measured, as rows, as lines of a table, as plain data."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Sequence

from ringfence.kernel.proc import running as leaders
from ringfence.kernel.proc.open_files import half_of_the_limit
from ringfence.kernel.proc.running import RunningSandbox
from ringfence.model.limits import format_size
from ringfence.model.printed import BLOCKS, clock, counted, graph, harmless
from ringfence.model.record import record
from ringfence.monitor.meter import Meter
from ringfence.monitor.sample import Sample
from ringfence.monitor.source import Source

GRAPH_WIDTH = 12


@record
class Row:
    """One running sandbox."""

    leader: RunningSandbox
    seconds: float
    sample: Sample
    shares: tuple[float, ...]
    """Of one core, in percent, the latest last."""

    def to_dict(self) -> dict[str, object]:
        sample = self.sample
        return {
            "id": str(self.leader.pid),
            "caller": self.leader.caller,
            "command": list(self.leader.command),
            "seconds": round(self.seconds, 2),
            "cpu_percent": round(sample.cpu_percent, 1),
            "cpu_s": round(sample.cpu_s, 3),
            "memory_bytes": sample.memory_bytes,
            "processes": sample.processes,
            "written_bytes": sample.written_bytes,
            "network_bytes": sample.network_bytes,
            "loopback_bytes": sample.loopback_bytes,
            "file_operations": sample.operations,
            "unreadable": sample.unreadable,
        }


class _Watched:
    def __init__(self, leader: RunningSandbox, meter: Meter) -> None:
        self.leader = leader
        self.meter = meter
        self.shares: deque[float] = deque(maxlen=GRAPH_WIDTH)

    def row(self) -> Row:
        sample = self.meter.measure(whole=True)
        self.shares.append(sample.cpu_percent)
        return Row(leader=self.leader, seconds=leaders.age_s(self.leader), sample=sample, shares=tuple(self.shares))


class Overview:
    """All sandboxes of this user, looked at again and again."""

    def __init__(self) -> None:
        self._room = half_of_the_limit()
        self._watched: dict[tuple[int, int], _Watched] = {}

    def look(self) -> list[Row]:
        found = {(leader.pid, leader.start): leader for leader in leaders.find()}
        for key in self._watched.keys() - found.keys():
            self._watched.pop(key).meter.close()
        for key, leader in found.items():
            if key not in self._watched:
                self._watched[key] = _Watched(leader, self._meter(leader))
        return [self._watched[key].row() for key in found]

    def _meter(self, leader: RunningSandbox) -> Meter:
        source = Source(leaders=lambda: (leader.pid,), groups=leaders.groups(leader))
        return Meter(source, self._room, time.monotonic, float("inf"))

    def close(self) -> None:
        while self._watched:
            self._watched.popitem()[1].meter.close()


def command_of(leader: RunningSandbox) -> str:
    """What it was asked to run, from the caller's own command line, never from a process of the sandbox."""
    words = list(leader.command)
    names = [os.path.basename(word) for word in words[:3]]
    if "ringfence" in names and "--" in words:
        return " ".join(words[words.index("--") + 1 :])
    return " ".join([os.path.basename(words[0]), *words[1:]]) if words else "?"


def lines(rows: Sequence[Row], width: int, characters: str = BLOCKS) -> list[str]:
    """The table; the first line sums it up."""
    cores = sum(row.sample.cpu_percent for row in rows)
    memory = format_size(sum(row.sample.memory_bytes for row in rows))
    gap = " " * GRAPH_WIDTH
    head = f"{'ID':>8} {'TIME':>8} {'CPU %':>6} {gap} {'MEMORY':>10} {'PROCS':>5} {'WRITTEN':>10}  COMMAND"
    table = [f"{counted(len(rows), 'sandbox')}, {cores:.0f} % of a core, {memory}", head]
    return [harmless(line, width) for line in (*table, *(_line(row, width, characters) for row in rows))]


def _line(row: Row, width: int, characters: str) -> str:
    sample = row.sample
    shares = graph(row.shares, GRAPH_WIDTH, top=100.0, characters=characters)
    written = format_size(sample.written_bytes) + ("?" if sample.unreadable else "")
    return (
        f"{row.leader.pid:>8} {clock(row.seconds):>8} {sample.cpu_percent:>6.0f} {shares:>{GRAPH_WIDTH}} "
        f"{format_size(sample.memory_bytes):>10} {sample.processes:>5} {written:>10}  {command_of(row.leader)}"
    )
