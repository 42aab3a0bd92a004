"""Moves bytes between two sockets by splice(2), in both directions, counted and bounded.

Bytes that only pass through are never copied into this process. A direction borrows a pipe for as long as bytes stand
in it, so connections that are idle hold none; a slow reader keeps one pipe and stops nobody else.
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

if sys.platform == "linux":
    import fcntl  # a gateway runs on Linux only, and can't load anything later

_PIPE_BYTES = 1 << 20
_LARGE_PIPES = 16
"""The kernel lets a user have 64 MiB in pipes and makes all later ones small: so a few are large."""
_FLAGS = 1 | 2  # SPLICE_F_MOVE, SPLICE_F_NONBLOCK: other systems have no such names
_ROUNDS = 8
"""How often a direction fills its pipe before others have their turn."""
_FAR = 1 << 62
_EPOLLIN, _EPOLLOUT, _EPOLLERR, _EPOLLHUP, _EPOLLET = 0x1, 0x4, 0x8, 0x10, 1 << 31
_READ = _EPOLLIN | _EPOLLHUP | _EPOLLERR
_WRITE = _EPOLLOUT | _EPOLLHUP | _EPOLLERR
_WATCHED = _EPOLLIN | _EPOLLOUT | _EPOLLET
_MOST_EDGES = 256


class Pipes:
    """Empty pipes, used again and again."""

    def __init__(self) -> None:
        self.free: list[tuple[int, int]] = []
        self.large: set[tuple[int, int]] = set()

    def take(self) -> tuple[int, int]:
        """Return an empty pipe; OSError where there are too many descriptors."""
        if self.free:
            return self.free.pop()
        ends = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        if len(self.large) < _LARGE_PIPES:
            try:
                fcntl.fcntl(ends[1], fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
                self.large.add(ends)
            except OSError:
                pass  # the user has many pipes already: a small one does as well
        return ends

    def give(self, ends: tuple[int, int], empty: bool) -> None:
        """Take a pipe back; one with bytes in it is never used for another connection."""
        if empty and ends in self.large:
            self.free.append(ends)
            return
        self.large.discard(ends)
        for end in ends:
            os.close(end)


class Mover(Protocol):
    """Takes bytes from ``source`` to ``sink``, which are descriptors."""

    source: int
    sink: int

    def source_changed(self) -> None:
        """There may be something to read."""

    def sink_changed(self) -> None:
        """There may be room."""


class Edges:
    """All sockets of a loop whose bytes only pass: one epoll for them, in which each is registered once.

    With the loop's own watching, each full socket is registered anew, and again when it has room, which costs more than
    moving the bytes. Here a socket is edge-triggered, for both directions, until its connection ends.
    """

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._from: dict[int, Mover] = {}
        self._to: dict[int, Mover] = {}
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._epoll.fileno(), self._changed)

    def watch(self, mover: Mover) -> None:
        """Tell the mover about both its sockets, also about what is true already."""
        for descriptor in (mover.source, mover.sink):
            if not self.is_watching(descriptor):
                self._epoll.register(descriptor, _WATCHED)
        self._from[mover.source] = self._to[mover.sink] = mover

    def forget(self, mover: Mover) -> None:
        """Call it before the sockets are closed: a later socket with the same number would be taken for one of them."""
        for descriptor, movers in ((mover.source, self._from), (mover.sink, self._to)):
            if movers.get(descriptor) is mover:
                del movers[descriptor]
                if not self.is_watching(descriptor):
                    with suppress(OSError):  # it is closed already, and the kernel has forgotten it
                        self._epoll.unregister(descriptor)

    def is_watching(self, descriptor: int) -> bool:
        return descriptor in self._from or descriptor in self._to

    def _changed(self) -> None:
        for descriptor, events in self._epoll.poll(0, _MOST_EDGES):
            source, sink = self._from.get(descriptor), self._to.get(descriptor)
            if sink is not None and events & _WRITE:
                sink.sink_changed()
            if source is not None and events & _READ:
                source.source_changed()

    def close(self) -> None:
        self._loop.remove_reader(self._epoll.fileno())
        self._epoll.close()


class Meter:
    """Counts bytes of one direction, for several owners at once: connection, rule and sandbox."""

    def __init__(self, *budgets: ByteBudget) -> None:
        self.budgets = budgets
        self.bytes = 0

    def room(self) -> int:
        """Return how many bytes may still pass."""
        return min((budget.left for budget in self.budgets), default=_FAR)

    def add(self, count: int) -> None:
        self.bytes += count
        for budget in self.budgets:
            budget.left -= count

    def reason(self) -> str:
        """Return why no byte may pass; empty: one may."""
        return next((budget.reason for budget in self.budgets if budget.left <= 0), "")


class ByteBudget:
    """How many bytes may still pass for one owner, and what to say when there are none left."""

    def __init__(self, most: int, reason: str) -> None:
        self.most = most
        self.left = most if most > 0 else _FAR
        self.reason = reason

    @property
    def passed(self) -> int:
        return (self.most if self.most > 0 else _FAR) - self.left

    def set_most(self, most: int, reason: str) -> None:
        """Set another limit; what has passed already counts. 0: there is none."""
        passed = self.passed
        self.most, self.reason = most, reason
        self.left = (most if most > 0 else _FAR) - passed


class Rate:
    """How many connections may begin in a second; as many at once."""

    def __init__(self, per_second: float) -> None:
        self.per_second = per_second
        self.left = max(per_second, 1.0)
        self.looked = time.monotonic()

    def allows(self) -> bool:
        if self.per_second <= 0:
            return True
        now = time.monotonic()
        self.left = min(max(self.per_second, 1.0), self.left + (now - self.looked) * self.per_second)
        self.looked = now
        if self.left < 1.0:
            return False
        self.left -= 1.0
        return True


class Turn:
    """How many clients one sandbox may have taken in a turn of the loop, however many sockets it has."""

    def __init__(self, most: int) -> None:
        self.loop = asyncio.get_running_loop()
        self.most = self.left = most

    def allows(self) -> bool:
        if self.left == self.most:
            self.loop.call_soon(self._begin)  # first of all in the next turn
        if self.left == 0:
            return False
        self.left -= 1
        return True

    def _begin(self) -> None:
        self.left = self.most


class LimitReached(Exception):
    """A limit ends the connection; the text says which."""


class Pump:
    """One direction, from ``source`` to ``sink``.

    ``finished`` is set when the source has ended and the sink was told so, or to the error that ended it.
    """

    def __init__(
        self, pipes: Pipes, edges: Edges, source: socket.socket, sink: socket.socket, meter: Meter,
        touch: Callable[[], None],
    ) -> None:  # fmt: skip
        self.loop = asyncio.get_running_loop()
        self.pipes, self.edges, self.meter, self.touch = pipes, edges, meter, touch
        self.source, self.sink = source.fileno(), sink.fileno()
        self.sockets = source, sink
        """Bytes are moved by these and not by their numbers: after a close, a number may be another connection's."""
        self.held = 0
        self.pipe: tuple[int, int] | None = None
        self.stopped = False
        self.finished: asyncio.Future[None] = self.loop.create_future()
        edges.watch(self)
        self._move()  # what has come already waits for no turn of the loop

    def source_changed(self) -> None:
        if not self.held:  # else the sink says when it goes on
            self._move()

    def sink_changed(self) -> None:
        if self.held:
            self.touch()
            self._move()

    def _move(self) -> None:
        """Move what there is, as far as the sink takes it. Others have their turn after some of it."""
        try:
            for _ in range(_ROUNDS):
                if self.stopped or not (self.held or self._fill()):
                    return
                assert self.pipe is not None
                self.held -= os.splice(self.pipe[0], self.sockets[1].fileno(), self.held, flags=_FLAGS)
        except BlockingIOError:
            return  # the sink is full: until that is over, the source is not read
        except OSError as error:
            self._end(error)
            return
        self.loop.call_soon(self._move)

    def _fill(self) -> bool:
        """Take what the source has into a pipe; return whether there is something to pass on."""
        room = min(_PIPE_BYTES, self.meter.room())
        if room <= 0:
            self._end(LimitReached(self.meter.reason()))
            return False
        if self.pipe is None:
            self.pipe = self.pipes.take()
        try:
            self.held = os.splice(self.sockets[0].fileno(), self.pipe[1], room, flags=_FLAGS)
        except BlockingIOError:
            self._give_back()
            return False
        if not self.held:
            self._end_of_source()
            return False
        self.meter.add(self.held)
        self.touch()
        return True

    def _end_of_source(self) -> None:
        try:
            self.sockets[1].shutdown(socket.SHUT_WR)
        except OSError:
            pass  # it is closed already
        self._end(None)

    def _end(self, error: Exception | None) -> None:
        self.stop()
        if self.finished.done():
            return
        if error is not None:
            self.finished.set_exception(error)
        else:
            self.finished.set_result(None)

    def _give_back(self) -> None:
        if self.pipe is not None:
            self.pipes.give(self.pipe, empty=not self.held)
            self.pipe = None

    def stop(self) -> None:
        """Move nothing more. It must be called before the sockets are closed."""
        self.stopped = True
        self.edges.forget(self)
        self._give_back()
        self.held = 0

    def give_up(self) -> None:
        """The same, where nobody waits for its end."""
        self.stop()
        if not self.finished.done():
            self.finished.cancel()
        elif not self.finished.cancelled():
            self.finished.exception()  # seen: nobody else asks


async def run(pumps: list[Pump]) -> None:
    """Wait until all directions have ended; raise the first error of one, which ends the others."""
    try:
        await asyncio.gather(*(pump.finished for pump in pumps))
    finally:
        for pump in pumps:
            pump.give_up()


async def receive(loop: asyncio.AbstractEventLoop, link: socket.socket, most: int) -> bytes:
    """Return what has come, after the others had their turn: asyncio does not wait for data that is there already, so a
    client that always has more to say would own the loop."""
    await asyncio.sleep(0)
    return await loop.sock_recv(link, most)


async def first_readable(loop: asyncio.AbstractEventLoop, *links: socket.socket) -> socket.socket:
    """Return the one of them that has something to read first."""
    found: asyncio.Future[socket.socket] = loop.create_future()

    def is_readable(link: socket.socket) -> None:
        if not found.done():
            found.set_result(link)

    try:
        for link in links:
            loop.add_reader(link, is_readable, link)
        return await found
    finally:
        for link in links:
            loop.remove_reader(link)
