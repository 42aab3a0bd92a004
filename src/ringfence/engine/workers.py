"""Threads for calls that run in the background: started as they are needed, up to a bound, and let go at the end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue


class Workers:
    """At most ``most`` threads and the work in front of them."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._started = 0
        self._lock = threading.RLock()
        # Work may be added from anywhere, also under the lock of a line: it never waits.
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()

    def need_one_more(self) -> None:
        """Start one before there is work for it. If no thread can be started, the existing ones do all the work."""
        with self._lock:
            if self._started == self._most:
                return
            thread = threading.Thread(target=_work, args=(self._queue,), name="ringfence-call", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                if not self._started:
                    raise
            else:
                self._started += 1

    def add(self, work: Callable[[], None]) -> None:
        self._queue.put(work)

    def stop(self) -> None:
        """All threads end when the work added before is done."""
        for _ in range(self._started):
            self._queue.put(None)


def _work(queue: SimpleQueue[Callable[[], None] | None]) -> None:
    while (work := queue.get()) is not None:
        work()
        del work  # it holds the pool, which may be forgotten while this waits
