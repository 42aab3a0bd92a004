"""One look at a sandbox, all looks of its life in little room, and means over the last seconds."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple


class Sample(NamedTuple):
    """What a sandbox had used at one moment. A plain tuple: a thousand of them are made a second."""

    time_s: float
    """Since monitoring began."""
    cpu_s: float = 0.0
    cpu_percent: float = 0.0
    """Of one core, since the sample before."""
    memory_bytes: int = 0
    written_bytes: int = 0
    network_bytes: int = 0
    loopback_bytes: int = 0
    operations: int = 0
    processes: int = 0
    unreadable: int = 0
    """Living processes whose writes and operations can't be read: those figures are then too small."""


class History:
    """Samples of the whole life: all of them at first, fewer as it grows longer, never more than ``most``."""

    def __init__(self, most: int) -> None:
        self._most = max(2, most)
        self._kept: list[Sample] = []
        self._stride = 1
        self._skipped = 0
        self.last = Sample(0.0)
        self.peak_memory_bytes = 0

    def add(self, sample: Sample) -> None:
        self.last = sample
        if sample.memory_bytes > self.peak_memory_bytes:
            self.peak_memory_bytes = sample.memory_bytes
        self._skipped += 1
        if self._skipped < self._stride and self._kept:
            return
        self._skipped = 0
        self._kept.append(sample)
        if len(self._kept) > self._most:
            self._kept = self._kept[::2]
            self._stride *= 2

    def mean_cpu_percent(self) -> float:
        """Return the percentage of one core that was used from the first sample to the last."""
        first, last = (self._kept or [self.last])[0], self.last
        passed_s = last.time_s - first.time_s
        return (last.cpu_s - first.cpu_s) / passed_s * 100 if passed_s > 0 else 0.0

    def samples(self) -> list[Sample]:
        """In order, the latest among them."""
        kept = list(self._kept)
        return kept if not kept or kept[-1] is self.last else [*kept, self.last]


class Window:
    """The mean of something over the last ``seconds``, from its growing sum.

    A mean, not «at every moment»: otherwise a sandbox that pauses briefly now and then would never be over a limit.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._sums: deque[tuple[float, float]] = deque()

    def mean(self, time_s: float, total: float) -> float | None:
        """None until the window is full."""
        sums = self._sums
        sums.append((time_s, total))
        while len(sums) > 2 and sums[1][0] <= time_s - self._seconds:
            sums.popleft()
        then, total_then = sums[0]
        if time_s - then < self._seconds or time_s <= then:
            return None
        return (total - total_then) / (time_s - then)
