"""One poll for all descriptors and one heap of times: the loop of a process that leads one visit or many.

Part of: leader, leader of a visit, warden

It knows no visit. Between two descriptors, and before any tree of processes is read, it looks whether a deadline is
due: what is done for one visit does not move the deadline of another.
"""

from __future__ import annotations

import select
import time
from _collections_abc import Callable
from _heapq import heapify, heappop, heappush  # loads nothing, see ADR 0003

TYPE_CHECKING = False
if TYPE_CHECKING:
    Heap = list[tuple[int, int, "Timer"]]

_BEFORE_SWEEP = 256
_SLOW_NS = 1_000_000
"""A hearer that took this long may have delayed another visit's deadline."""
_LONGEST_MS = 3_600_000
"""poll refuses more than some 24 days."""


class Timer:
    """An action at a time, until it is cancelled."""

    __slots__ = ("_act",)

    def __init__(self, act: Callable[[], None]) -> None:
        self._act: Callable[[], None] | None = act

    def cancel(self) -> None:
        self._act = None

    @property
    def is_wanted(self) -> bool:
        return self._act is not None

    def do(self) -> None:
        if self._act is not None:
            self._act()


class Loop:
    """Hears, and keeps times; ``turn`` does both once."""

    def __init__(self, *, many: bool = False) -> None:
        """``many``: the cost of a turn must not grow with the number of descriptors. Linux only."""
        self._poller: select.poll | select.epoll = select.epoll() if many else select.poll()
        self._unit = 0.001 if many else 1
        self._hearers: dict[int, tuple[Callable[[int], None]]] = {}
        """Each in a tuple of its own: identity tells it from a later descriptor of the same number."""
        self._deadlines: Heap = []
        self._looks: Heap = []
        self._count = 0

    def add(self, descriptor: int, hear: Callable[[int], None]) -> None:
        """Call ``hear`` with the descriptor, each time that something waits there."""
        self._poller.register(descriptor, select.POLLIN)
        self._hearers[descriptor] = (hear,)

    def drop(self, descriptor: int) -> None:
        """Call this before the descriptor is closed: its number may be reused then."""
        self._poller.unregister(descriptor)
        del self._hearers[descriptor]

    def at(self, time_ns: int, act: Callable[[], None]) -> Timer:
        """Act at this time, or when the present hearer is done. The action must be quick."""
        return self._put(self._deadlines, time_ns, act)

    def look_at(self, time_ns: int, act: Callable[[], None]) -> Timer:
        """The same for slow actions, such as reading a process tree: deadlines come first."""
        return self._put(self._looks, time_ns, act)

    def _put(self, heap: Heap, time_ns: int, act: Callable[[], None]) -> Timer:
        self._count += 1  # of two with the same time, the earlier one comes first
        if self._count % _BEFORE_SWEEP == 0:
            self._sweep()
        timer = Timer(act)
        heappush(heap, (time_ns, self._count, timer))
        return timer

    def _sweep(self) -> None:
        """Most jobs end long before their deadline."""
        for heap in (self._deadlines, self._looks):
            heap[:] = [due for due in heap if due[2].is_wanted]
            heapify(heap)

    def ready(self, longest_ms: int | None = None) -> list[int]:
        """Wait, and return the descriptors at which something is."""
        longest = None if longest_ms is None else longest_ms * self._unit
        return [descriptor for descriptor, _ in self._poller.poll(longest)]

    def turn(self) -> None:
        """Wait for the next descriptor or time; hear, then do what is due."""
        ready = [(descriptor, self._hearers.get(descriptor)) for descriptor in self.ready(self._wait_ms())]
        heard_ns = time.monotonic_ns()
        for descriptor, hearer in ready:
            # Else an earlier hearer dropped it, and the number may belong to another descriptor with nothing to read.
            if hearer is not None and self._hearers.get(descriptor) is hearer:
                hearer[0](descriptor)
            now_ns = time.monotonic_ns()
            if now_ns > heard_ns + _SLOW_NS:
                heard_ns = now_ns
                self._do_due(self._deadlines)
        self._do_due(self._deadlines)
        self._do_due(self._looks)

    def _wait_ms(self) -> int | None:
        times = [heap[0][0] for heap in (self._deadlines, self._looks) if heap]
        # Rounded up: waking before the time is due would mean polling again at once.
        return min(max(0, min(times) - time.monotonic_ns()) // 1_000_000 + 1, _LONGEST_MS) if times else None

    def _do_due(self, heap: Heap) -> None:
        now_ns = time.monotonic_ns()
        while heap and heap[0][0] <= now_ns:
            heappop(heap)[2].do()
            if heap is self._looks:
                self._do_due(self._deadlines)


class Descriptors:
    """The descriptors of one visit, all with the same hearer."""

    def __init__(self, loop: Loop, hear: Callable[[int], None]) -> None:
        self._loop, self._hear = loop, hear
        self._own: set[int] = set()
        self._paused: dict[int, Timer] = {}

    def register(self, descriptor: int) -> None:
        self._loop.add(descriptor, self._hear)
        self._own.add(descriptor)

    def unregister(self, descriptor: int) -> None:
        """Does nothing if it is not registered."""
        if descriptor in self._paused:
            self._paused.pop(descriptor).cancel()
        elif descriptor in self._own:
            self._loop.drop(descriptor)
        self._own.discard(descriptor)

    def pause(self, descriptor: int, for_ns: int) -> None:
        """It is not listened to meanwhile, whatever waits there."""
        self._loop.drop(descriptor)
        until_ns = time.monotonic_ns() + for_ns
        self._paused[descriptor] = self._loop.at(until_ns, lambda: self._resume(descriptor))

    def _resume(self, descriptor: int) -> None:
        del self._paused[descriptor]
        self._loop.add(descriptor, self._hear)

    def clear(self) -> None:
        """Stop listening to all of them."""
        for descriptor in tuple(self._own):
            self.unregister(descriptor)
