"""A line in front of a bounded number of places: who comes first is served first, and too long a line is refused."""

from __future__ import annotations

import threading
from collections import deque

from ringfence.errors import UnavailableError


class Line:
    """``at_once`` places; ``longest``: how many may wait for one, None: any number."""

    def __init__(self, at_once: int, longest: int | None) -> None:
        self._free = at_once
        self._at_once = at_once
        self._longest = longest
        self._waiting: deque[Turn] = deque()
        self._lock = threading.Lock()

    def join(self) -> Turn:
        """A turn, which may have come already; UnavailableError when the line is too long."""
        turn = Turn()
        with self._lock:
            if self._free and not self._waiting:
                self._free -= 1
                turn.come()
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
            if turn.left:
                return
            turn.left = True
            if not turn.has_come:
                self._waiting.remove(turn)
                turn.come()
            elif self._waiting:
                self._waiting.popleft().come()
            else:
                self._free += 1

    def close(self) -> None:
        """Nobody who waits now will have a place."""
        for turn in tuple(self._waiting):
            self.leave(turn)

    @property
    def waiting(self) -> int:
        return len(self._waiting)


class Turn:
    """One who stands in the line."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self.left = False
        """Given back; if that was before it had come, it never comes."""

    @property
    def has_come(self) -> bool:
        return self._event.is_set()

    def come(self) -> None:
        self._event.set()

    def wait(self) -> bool:
        """Whether there is a place."""
        self._event.wait()
        return not self.left
