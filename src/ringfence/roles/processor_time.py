"""The processor time of a whole tree, including children that nobody waits for. It counts; it ends nothing.

Part of: leader, leader of a visit, warden
"""

from __future__ import annotations

import os
from _collections_abc import Callable, Sequence

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.kernel.proc.procfs import Process

_V1, _V2, _V2_FIRST = "cpuacct.usage", "cpu.stat", b"usage_usec "


class ProcessorTime:
    """Two counts of the dead, each of which misses some; the larger of them is taken, or that of the job's group.

    A child that its parent waits for is in the parent's count. A child whose parent ignores SIGCHLD is in no count; we
    only know what it had used when it was last seen.

    Processes of ours between this one and the job, such as pid 1 of a sandbox, have this one's session; a job has one
    of its own, and none of its processes can come back to ours. What ours use themselves is not the job's.
    """

    def __init__(self, ticks_per_s: int) -> None:
        self.group_s: Callable[[], float] = float
        """What the job's own control group has counted, which misses no process; 0: there is no group."""
        self.collected_s: Callable[[], float] = _collected_s
        """What all children that this process has waited for have used."""
        self._ticks_per_s = ticks_per_s
        self.session = os.getsid(0)
        """Of processes of ours."""
        self._last: dict[tuple[int, int], int] = {}
        self._ours: dict[tuple[int, int], int] = {}
        self._vanished = self._ours_vanished = 0
        self._most_s = 0.0
        self._system_part = 0.0

    def used_s(self, tree: Sequence[Process]) -> float:
        """Used by all living processes in the tree of this process, and by all that have ended in it."""
        theirs = [row for row in tree if row.session != self.session]
        ours = {(row.pid, row.start): row.own_ticks for row in tree if row.session == self.session}
        now = {(row.pid, row.start): row.own_ticks for row in theirs}
        self._vanished += _gone(self._last, now)
        self._ours_vanished += _gone(self._ours, ours)
        self._last, self._ours = now, ours
        waited_for = sum(row.cpu_ticks for row in tree) - sum(ours.values()) - self._ours_vanished
        collected_s = waited_for / self._ticks_per_s + self.collected_s()
        seen_s = (sum(now.values()) + self._vanished) / self._ticks_per_s
        counted_s = self.group_s() - (sum(ours.values()) + self._ours_vanished) / self._ticks_per_s
        used_s = float(max(collected_s, seen_s, counted_s))
        self._remember(used_s, theirs)
        return used_s

    def _remember(self, used_s: float, rows: Sequence[Process]) -> None:
        self._most_s = max(self._most_s, used_s)
        total = sum(row.cpu_ticks for row in rows)
        if total:
            self._system_part = sum(row.system_ticks for row in rows) / total

    def most_us(self) -> tuple[int, int]:
        """The most that was seen, split into (user, system) in the proportion of the living processes."""
        system_s = self._most_s * self._system_part
        return int((self._most_s - system_s) * 1e6), int(system_s * 1e6)


def _collected_s() -> float:
    return sum(os.times()[2:4])


def _gone(before: dict[tuple[int, int], int], now: dict[tuple[int, int], int]) -> int:
    return sum(used for key, used in before.items() if key not in now)


class GroupTime:
    """The time of a job's own control group from now on, which counts every process that was in it.

    ``folders``: the group's, one for each hierarchy; perhaps none of them counts time.
    """

    def __init__(self, folders: Sequence[str]) -> None:
        opened = (_opened(folder, name) for name in (_V1, _V2) for folder in folders)
        self._file = next((file for file in opened if file >= 0), -1)
        self._before_s = self._now_s()

    def used_s(self) -> float:
        return max(0.0, self._now_s() - self._before_s)

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _now_s(self) -> float:
        try:
            return _seconds(os.pread(self._file, 256, 0)) if self._file >= 0 else 0.0
        except (OSError, ValueError):
            return 0.0  # the group is gone


def _opened(folder: str, name: str) -> int:
    """-1: there is no such count in this hierarchy."""
    try:
        file = os.open(f"{folder}/{name}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1
    if name == _V1 or os.pread(file, 256, 0).startswith(_V2_FIRST):
        return file
    os.close(file)
    return -1


def _seconds(text: bytes) -> float:
    if text.startswith(_V2_FIRST):
        return int(text[len(_V2_FIRST) :].split(None, 1)[0]) / 1e6
    return int(text) / 1e9
