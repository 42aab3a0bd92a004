"""A line in front of a bounded number of places: who comes first is served first, and too long a line is refused."""

from __future__ import annotations

import threading
from collections import deque

from ringfence.errors import UnavailableError, UsageError


class Line:
    """``at_once`` places; ``longest``: how many may wait for one, None: any number."""

    def __init__(self, at_once: int, longest: int | None) -> None:
        self._at_once = at_once
        self._longest = longest
        self._waiting: deque[Turn] = deque()
        self._served: set[Turn] = set()
        # May be entered again by its own thread: a signal handler can come in between.
        self._lock = threading.RLock()
        self._closed = False

    def join(self) -> Turn:
        """A turn, which may have come already; UnavailableError when the line is too long."""
        turn = Turn()
        with self._lock:
            if self._closed:
                raise UsageError("the pool is closed")
            if len(self._served) < self._at_once:
                self._serve(turn)
            elif self._longest is not None and len(self._waiting) >= self._longest:
                raise UnavailableError(
                    f"the pool is full: {self._at_once} jobs run and {len(self._waiting)} wait",
                    missing=("a place in the pool",), hint="raise queue_limit or at_once, or wait for earlier jobs",
                )  # fmt: skip
            else:
                self._waiting.append(turn)
        return turn

    def leave(self, turn: Turn) -> None:
        """Give the place, or the place in the line, back; whoever is next has its turn. Twice is harmless."""
        with self._lock:
            if turn not in self._served:
                self.withdraw(turn, "given up")
                return
            self._served.discard(turn)
            if self._waiting:
                self._serve(self._waiting.popleft())

    def withdraw(self, turn: Turn, why: str) -> bool:
        """Take it out of the line; false when its turn has come, and then it keeps its place."""
        with self._lock:
            if turn not in self._waiting:
                return False
            self._waiting.remove(turn)
            turn.refuse(why)
            return True

    def close(self) -> None:
        """Nobody who waits now, or comes later, will have a place."""
        with self._lock:
            self._closed = True
            while self._waiting:
                self._waiting.popleft().refuse("the pool was closed")

    def _serve(self, turn: Turn) -> None:
        self._served.add(turn)
        turn.come()


class Turn:
    """One who stands in the line."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self.refused = ""
        """Why it never comes; empty: it does, or did."""

    def come(self) -> None:
        self._event.set()

    def refuse(self, why: str) -> None:
        self.refused = why
        self._event.set()

    def wait(self) -> bool:
        """Whether there is a place."""
        self._event.wait()
        return not self.refused
