"""The numbered events of one run, for clients that listen now or come back later with ``Last-Event-ID``.

The threads that lead runs write it, the event loop reads it. In a flood the newest events stay: a reader that missed
something is told how much.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator

from ringfence.service.json_text import json_text

_MOST_BYTES = 4 << 20
_MOST_EVENTS = 4096
_HEARTBEAT_S = 15.0
_SMALL = 64
"""Bytes that an event without output is counted as."""
Told = tuple[int, str, str]
"""(number, name, JSON)."""


class EventLog:
    """The events of one run, or of all."""

    def __init__(self, most_bytes: int = _MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._kept: deque[tuple[int, str, object, int]] = deque()
        """(number, name, value, size): nobody follows most runs, so a value becomes text only when it is read."""
        self._bytes = 0
        self._last = 0
        self._waiting: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()
        self.ended = False

    def tell(self, name: str, value: object, *, last: bool = False, size: int = _SMALL) -> None:
        """Add an event, from any thread. ``last``: nothing follows. ``size``: of the value, which must not change."""
        with self._lock:
            if self.ended:
                return
            self._last += 1
            self._kept.append((self._last, name, value, size))
            self._bytes += size
            while len(self._kept) > _MOST_EVENTS or (self._bytes > self._most_bytes and len(self._kept) > 1):
                self._bytes -= self._kept.popleft()[3]
            self.ended = last
            waiting, self._waiting = self._waiting, set()
        for loop, event in waiting:
            loop.call_soon_threadsafe(event.set)

    @property
    def bytes(self) -> int:
        return self._bytes

    def since(self, number: int) -> tuple[list[Told], int, bool]:
        """(what came after this number, how many of them are gone, whether that is all that ever comes)."""
        with self._lock:
            if number > self._last:  # from an earlier process of the service
                number = 0
            first = self._kept[0][0] if self._kept else self._last + 1
            kept = [each for each in self._kept if each[0] > number]
            missed, ended = max(0, first - number - 1), self.ended
        return [(each, name, json_text(value)) for each, name, value, _ in kept], missed, ended

    async def follow(self, number: int) -> AsyncIterator[Told | None]:
        """What comes after this number, as it comes; None from time to time where nothing does."""
        while True:
            event = asyncio.Event()
            waiter = asyncio.get_running_loop(), event
            with self._lock:
                self._waiting.add(waiter)
            try:
                told, missed, ended = self.since(number)
                if missed:
                    yield number + missed, "dropped", json_text({"events": missed})
                for each in told:
                    number = each[0]
                    yield each
                if ended:
                    return
                if not told:
                    try:
                        async with asyncio.timeout(_HEARTBEAT_S):
                            await event.wait()
                    except TimeoutError:
                        yield None
            finally:  # also for whoever goes away
                with self._lock:
                    self._waiting.discard(waiter)


class Feed:
    """Attempts of all tenants in one order. When it is full, the tenant with the most loses its oldest, so a flood
    pushes out nobody else's."""

    def __init__(self, most_bytes: int = _MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._kept: dict[str, deque[tuple[int, str, object, int]]] = {}
        self._bytes: dict[str, int] = {}
        self._sum = 0
        self._last = 0
        self.ended = False

    def tell(self, owner: str, name: str, value: object, size: int) -> None:
        """From any thread."""
        with self._lock:
            self._last += 1
            self._kept.setdefault(owner, deque()).append((self._last, name, value, size))
            self._bytes[owner] = self._bytes.get(owner, 0) + size
            self._sum += size
            while self._sum > self._most_bytes:
                most = max(self._bytes, key=self._bytes.__getitem__)
                gone = self._kept[most].popleft()[3]
                self._bytes[most] -= gone
                self._sum -= gone

    def end(self) -> None:
        self.ended = True

    def since(self, number: int, owner: str | None) -> list[Told]:
        """What came after this number, of one tenant; None: of all."""
        with self._lock:
            if number > self._last:  # from an earlier process of the service
                number = 0
            asked = self._kept.values() if owner is None else [self._kept.get(owner, deque())]
            found = sorted((each for kept in asked for each in kept if each[0] > number), key=lambda each: each[0])
        return [(each, name, json_text(value)) for each, name, value, _ in found]


def as_sse(told: Told | None) -> bytes:
    """One event as a browser reads it; JSON has no line end in it."""
    if told is None:
        return b": still here\n\n"
    number, name, text = told
    return f"id: {number}\nevent: {name}\ndata: {text}\n\n".encode()
