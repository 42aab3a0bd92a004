"""Output that may be long: collected within bounds, and cut for a reader with a note about what is left out."""

from __future__ import annotations


class Gathered:
    """The first and the last half of ``limit`` bytes of a stream."""

    def __init__(self, limit: int) -> None:
        self._half = max(1, limit // 2)
        self._first = bytearray()
        self._last = bytearray()
        self.dropped = 0

    def add(self, data: bytes, dropped: int = 0) -> None:
        """``dropped``: what came before it and is not here."""
        self.dropped += dropped
        room = self._half - len(self._first)
        if room > 0 and not self.dropped:
            self._first += data[:room]
            data = data[room:]
        self._last += data
        over = max(0, len(self._last) - self._half)
        del self._last[:over]
        self.dropped += over

    def all(self) -> bytes:
        middle = b"\n[TRUNCATED] %d bytes dropped\n" % self.dropped if self.dropped else b""
        return bytes(self._first) + middle + bytes(self._last)


def cut(text: str, most: int, more: str) -> str:
    """Its first and last part, where it is longer, with ``more`` between them: how the rest is read."""
    if len(text) <= most:
        return text
    head = most * 2 // 3
    tail = most - head
    return f"{text[:head]}\n[… {len(text) - most} of {len(text)} characters left out here; {more} …]\n{text[-tail:]}"
