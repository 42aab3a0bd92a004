"""A line in front of a bounded number of places: first come, first served; a line that is too long is refused."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from ringfence.errors import UnavailableError, UsageError


class AdmissionQueue:
    """``at_once`` places; ``longest``: how many may wait for one, None: any number."""

    def __init__(self, at_once: int, max_waiting: int | None) -> None:
        self._at_once = at_once
        self._longest = max_waiting
        self._waiting: deque[Slot] = deque()
        self._served: set[Slot] = set()
        # May be entered again by its own thread: a signal handler can come in between.
        self._lock = threading.RLock()
        self._closed = False

    def join(self, slot: Slot | None = None) -> Slot:
        """A turn, which may have come already; UnavailableError when the line is too long."""
        slot = slot or Slot()
        with self._lock:
            if self._closed:
                raise UsageError("the pool is closed", hint="make a new one")
            if len(self._served) < self._at_once:
                self._serve(slot)
            elif self._longest is not None and len(self._waiting) >= self._longest:
                raise UnavailableError(
                    f"the pool is full: {self._at_once} jobs run and {len(self._waiting)} wait",
                    missing=("a place in the pool",), hint="raise queue_limit or at_once, or wait for earlier jobs",
                )  # fmt: skip
            else:
                self._waiting.append(slot)
        return slot

    def leave(self, slot: Slot) -> None:
        """Give back the place, or the place in the line; the next one gets its turn. Doing so twice is harmless."""
        with self._lock:
            if slot not in self._served:
                self.withdraw(slot, "given up")
                return
            self._served.discard(slot)
            if self._waiting:
                self._serve(self._waiting.popleft())

    def withdraw(self, slot: Slot, why: str) -> bool:
        """Take it out of the line; False if its turn has come: then it keeps its place."""
        with self._lock:
            if slot not in self._waiting:
                return False
            self._waiting.remove(slot)
            slot.refuse(why)
            return True

    def close(self) -> None:
        """Nobody who waits now, or comes later, gets a place."""
        with self._lock:
            self._closed = True
            while self._waiting:
                self._waiting.popleft().refuse("the pool was closed")

    def _serve(self, slot: Slot) -> None:
        self._served.add(slot)
        slot.admit()


class Slot:
    """One waiting in the line."""

    def __init__(self, told: Callable[[], None] | None = None) -> None:
        """``told``: called once it has come or was refused, under the lock of the line."""
        self._told = told
        self._event = threading.Event()
        self.refused = ""
        """Why its turn never comes; empty: it does, or did."""

    def admit(self) -> None:
        self._event.set()
        if self._told is not None:
            self._told()

    def refuse(self, why: str) -> None:
        self.refused = why
        self.admit()

    def wait(self) -> bool:
        """Whether there is a place."""
        self._event.wait()
        return not self.refused
