"""The numbered events of one run, for clients that listen now or come back later with ``Last-Event-ID``.

The threads that lead runs write it, the event loop reads it. In a flood the newest events stay: a reader that missed
something is told how much. Hundreds may follow one run that prints without end, and the event loop is everybody's: so
an event becomes text once for all of them, they are woken together at a bounded rate, and each takes small pieces.
"""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from itertools import takewhile

from ringfence.service.json_text import json_text

_MOST_BYTES = 4 << 20
_MOST_EVENTS = 4096
_HEARTBEAT_S = 15.0
_PAUSE_S = 0.05
_SHARE_S = 0.002
"""Of a second, for each piece that a follower gets: all followers of a run together get no more than 500 a second."""
_PIECE_EVENTS = 512
_PIECE_BYTES = 64 << 10
_SHARED_BYTES = 256 << 10
"""Text of events that is kept for the next follower."""
_SMALL = 64
"""Bytes that an event without output is counted as."""
Told = tuple[int, str, str]
"""(number, name, JSON)."""
_Kept = tuple[int, str, object, int]
"""(number, name, value, size): nobody follows most runs, so a value becomes text only when it is read."""


class _Follower:
    """Somebody who listens. It is woken once, and then not again until it has read, except by the end."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.woken, self.over = asyncio.Event(), asyncio.Event()
        self.is_woken = False

    def wake(self, last: bool) -> None:
        """From any thread."""
        self._loop.call_soon_threadsafe(self.woken.set)
        if last:
            self._loop.call_soon_threadsafe(self.over.set)


class EventLog:
    """The events of one run, or of all."""

    def __init__(self, most_bytes: int = _MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._kept: deque[_Kept] = deque()
        self._bytes = 0
        self._last = 0
        self._waiting: set[_Follower] = set()
        self._texts: OrderedDict[int, bytes] = OrderedDict()
        """Number → the event as it is sent, while somebody follows; used by the event loop alone."""
        self._text_bytes = 0
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
            woken = [each for each in self._waiting if last or not each.is_woken]
            for each in woken:
                each.is_woken = True
        for each in woken:
            each.wake(last)

    @property
    def kept_bytes(self) -> int:
        return self._bytes

    def since(self, number: int) -> tuple[list[Told], int, bool]:
        """(what came after this number, how many of them are gone, whether that is all that ever comes)."""
        kept, missed, ended = self._after(number, _MOST_EVENTS)
        return [(each, name, json_text(value)) for each, name, value, _ in kept], missed, ended

    def _after(self, number: int, most: int) -> tuple[list[_Kept], int, bool]:
        """The same, at most so many. Events are numbered without gaps: what is asked for is not searched."""
        with self._lock:
            if number > self._last:  # from an earlier process of the service
                number = 0
            first = self._last + 1 - len(self._kept)
            begin = max(0, number + 1 - first)
            end = min(len(self._kept), begin + most)
            kept = [self._kept[place] for place in range(begin, end)]
            return kept, max(0, first - number - 1), self.ended and end == len(self._kept)

    async def follow(self, number: int) -> AsyncIterator[bytes]:
        """What comes after this number, as it comes, in pieces for a browser; a comment where nothing comes for long.
        """
        me = _Follower()
        with self._lock:  # a run's thread goes through all that wait
            self._waiting.add(me)
        try:
            while True:
                self._listen(me)
                piece, number, ended = self._piece(number)
                if piece:
                    yield piece
                if ended:
                    return
                if not await self._rest(me, number, bool(piece)):
                    yield as_sse(None)
        finally:  # also for whoever goes away
            self._leave(me)

    def _listen(self, me: _Follower) -> None:
        with self._lock:
            me.woken.clear()
            me.is_woken = False

    def _leave(self, me: _Follower) -> None:
        with self._lock:
            self._waiting.discard(me)
            if not self._waiting:
                self._texts.clear()
                self._text_bytes = 0

    def _piece(self, number: int) -> tuple[bytes, int, bool]:
        """(text, the number of its last event, whether nothing follows)."""
        kept, missed, ended = self._after(number, _PIECE_EVENTS)
        if not kept:
            return b"", number, ended
        texts = [as_sse((number + missed, "dropped", json_text({"events": missed})))] if missed else []
        size = 0
        for place, each in enumerate(kept, 1):
            texts.append(self._text(each))
            number, size = each[0], size + len(texts[-1])
            if size > _PIECE_BYTES:
                return b"".join(texts), number, ended and place == len(kept)
        return b"".join(texts), number, ended

    def _text(self, kept: _Kept) -> bytes:
        """One event as it is sent, which all who follow share."""
        number, name, value, _ = kept
        found = self._texts.get(number)
        if found is None:
            found = self._texts[number] = as_sse((number, name, json_text(value)))
            self._text_bytes += len(found)
            while self._text_bytes > _SHARED_BYTES:
                self._text_bytes -= len(self._texts.popitem(last=False)[1])
        return found

    async def _rest(self, me: _Follower, number: int, had_some: bool) -> bool:
        """Until there may be more; False where nothing came for long. What comes in a pause is read together after it,
        and the end ends the pause."""
        share_s = _SHARE_S * len(self._waiting)
        if had_some and number != self._last:
            await asyncio.sleep(share_s)
            return True
        event, within_s = (me.over, max(_PAUSE_S, share_s)) if had_some else (me.woken, _HEARTBEAT_S)
        try:
            async with asyncio.timeout(within_s):
                await event.wait()
        except TimeoutError:
            return had_some
        return True


class Feed:
    """Attempts of all tenants in one order. When it is full, the tenant with the most loses its oldest, so a flood
    pushes out nobody else's."""

    def __init__(self, most_bytes: int = _MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._kept: dict[str, deque[_Kept]] = {}
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
            found = sorted(each for kept in asked for each in takewhile(lambda one: one[0] > number, reversed(kept)))
        return [(each, name, json_text(value)) for each, name, value, _ in found]


def as_sse(told: Told | None) -> bytes:
    """One event as a browser reads it; JSON has no line end in it."""
    if told is None:
        return b": still here\n\n"
    number, name, text = told
    return f"id: {number}\nevent: {name}\ndata: {text}\n\n".encode()
