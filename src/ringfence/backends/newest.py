"""The newest bytes of a stream that never ends: a bounded ring, and a count of what has left it.

A position is the number of bytes that came before it since the stream began. So a reader can go on where it stopped,
and knows how much it has missed.
"""

from __future__ import annotations

import threading

from ringfence.errors import UsageError
from ringfence.model.outcome import dropped_text
from ringfence.model.record import record

_CONTINUES, _LONGEST = range(0x80, 0xC0), 4


@record
class Heard:
    """What came from a position on."""

    data: bytes
    position: int
    """Where to read on."""
    dropped: int = 0
    """Bytes between the position asked for and ``data`` that are not kept any more."""
    ended: bool = False
    """Nothing comes after ``data``."""


class Newest:
    """One stream: the last ``limit`` bytes. One thread adds, any thread reads."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept = bytearray()
        self._first = 0
        """The position of the first byte that is kept."""
        self._ended = False
        # Taken by itself: a condition is entered in Python, where a signal's exception would leave it taken for good.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)

    def add(self, piece: bytes) -> None:
        with self._lock:
            self._kept += piece
            over = max(0, len(self._kept) - self._limit)
            del self._kept[:over]
            self._first += over
            self._changed.notify_all()

    def end(self) -> None:
        with self._lock:
            self._ended = True
            self._changed.notify_all()

    def all(self) -> bytes:
        """Everything that is kept, from a whole character on. If bytes were dropped, a text before it says how many."""
        with self._lock:
            data, dropped = bytes(self._kept), self._first
        if not dropped:
            return data
        half = _half_character(data)
        return dropped_text(dropped + half) + data[half:]

    def read(self, since: int, timeout_s: float | None) -> Heard:
        """What has come since a position. If nothing has, wait for more, or for the end."""
        if type(since) is not int or since < 0:
            raise UsageError(f"since: {since!r} is not a position", hint="pass the position of the last reading, or 0")
        with self._lock:
            self._changed.wait_for(lambda: self._ended or self._end > since, _seconds(timeout_s))
            begin = max(since, self._first)
            data = bytes(memoryview(self._kept)[begin - self._first :])
            return Heard(data=data, position=begin + len(data), dropped=begin - since, ended=self._ended)

    @property
    def _end(self) -> int:
        return self._first + len(self._kept)


def _half_character(data: bytes) -> int:
    """How many bytes at the start are the rest of a UTF-8 character that was cut."""
    return next((place for place, byte in enumerate(data[:_LONGEST]) if byte not in _CONTINUES), 0)


def _seconds(timeout_s: float | None) -> float | None:
    if timeout_s is None:
        return None
    if not isinstance(timeout_s, int | float) or timeout_s != timeout_s:
        raise UsageError(f"{timeout_s!r} must be a number of seconds")
    return min(timeout_s, threading.TIMEOUT_MAX)
