"""Two kinds of connection with one face: bytes over a socket, and bytes in TLS over a socket.

TLS is done in memory (``ssl.MemoryBIO``): whole stretches are read and written at once, which is faster than asyncio's
own transports, and what a connection holds is bounded by one stretch in each direction.
"""

from __future__ import annotations

import asyncio
import codecs
import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import Protocol, cast

from ringfence.egress.relay import first_readable

codecs.lookup("idna")  # ssl encodes names with it, and by then a gateway may not read its file
STRETCH, _SHORTEST = 128 * 1024, 16 * 1024
"""What is read at a time."""
_STRETCHES = 8 << 20
"""What all inspected connections read at a time; each holds a few times its share while its server is stuck."""
_CLOSE_S, _CLOSE_BYTES = 1.0, 1 << 20
_TURN_S = 0.001
"""How long a connection may go on without waiting for anything: then others have their turn."""


class Gauge(Protocol):
    """Counts the bytes of one direction against what is allowed."""

    def room(self) -> int:
        """Return how many bytes may still pass."""

    def add(self, count: int, /) -> None:
        """Count some that pass."""

    def reason(self) -> str:
        """Return why none may pass any more."""


class LinkLimitReached(Exception):
    """No byte more may pass; the text says which limit."""


class LinkError(Exception):
    """The connection can't be used; the text says why and quotes neither side."""


class Crowd:
    """How many connections are inspected at this moment; ``with`` counts one."""

    count = 0

    def __enter__(self) -> None:
        Crowd.count += 1

    def __exit__(self, *_: object) -> None:
        Crowd.count -= 1

    @classmethod
    def stretch(cls) -> int:
        """Return how much one of them reads at a time."""
        return max(_SHORTEST, min(STRETCH, _STRETCHES // max(1, cls.count)))


class Link:
    """Bytes over a socket that does not block."""

    def __init__(
        self,
        link: socket.socket,
        first: bytes = b"",
        *,
        out: Gauge | None = None,
        back: Gauge | None = None,
        touch: Callable[[], None] = lambda: None,
    ) -> None:
        """``first``: what was read from it before. ``out`` and ``back`` count what is written and read."""
        self.loop = asyncio.get_running_loop()
        self.socket, self._first = link, first
        self._out, self._back, self._touch = out, back, touch
        self._writes = asyncio.Lock()
        self._turn_ends = 0.0

    async def read(self) -> bytes | memoryview:
        """Return some bytes; empty: the other side sends no more. The buffer is shared with the next reader, so the
        caller has to use the bytes before it waits for anything."""
        return await self._receive()

    async def write(self, data: bytes) -> None:
        if data:
            async with self._writes:
                await self._send(data)

    async def _let_others(self) -> None:
        """Data that is there already is read without waiting, so a peer that always has more would own the loop."""
        if self.loop.time() >= self._turn_ends:
            await asyncio.sleep(0)
            self._turn_ends = self.loop.time() + _TURN_S

    async def _receive(self) -> bytes | memoryview:
        if self._first:
            first, self._first = self._first, b""
            return first
        stretch = Crowd.stretch()
        room = stretch if self._back is None else min(stretch, self._back.room())
        if room <= 0 and self._back is not None:
            raise LinkLimitReached(self._back.reason())
        try:
            await self._let_others()
            data = await self._come(room)
        except OSError as error:
            raise LinkError(error.strerror or "the connection was reset") from None
        self._touch()
        if self._back is not None:
            in_time = len(data) <= self._back.room()  # others may have read meanwhile, against the same limit
            self._back.add(len(data))
            if not in_time:
                raise LinkLimitReached(self._back.reason())
        return data

    async def _come(self, room: int) -> memoryview:
        """Return what has come, in the buffer that all connections of a thread share; don't yield after this."""
        while True:
            place = _Scratch.of_thread.wire[:room]
            try:
                return place[: self.socket.recv_into(place)]
            except BlockingIOError:
                await first_readable(self.loop, self.socket)

    async def _send(self, data: bytes) -> None:
        if self._out is not None and self._out.room() < len(data):
            raise LinkLimitReached(self._out.reason() or "the next bytes are more than may still be sent")
        if self._out is not None:
            self._out.add(len(data))  # counted before the slow sending: others count against the same limit
        try:
            await self._let_others()  # one read may contain many small parts
            await self.loop.sock_sendall(self.socket, data)
        except OSError as error:
            raise LinkError(error.strerror or "the connection was reset") from None
        self._touch()

    def is_quiet(self) -> bool:
        """Whether the other side has neither closed nor sent anything that was not asked for."""
        try:
            self.socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            pass
        return False

    async def finish(self) -> None:
        """Say that no more comes, and wait a moment for the other side: a reset could destroy what was sent last."""
        try:
            async with asyncio.timeout(_CLOSE_S):
                await self._say_end()
                self.socket.shutdown(socket.SHUT_WR)
                left = _CLOSE_BYTES
                while left > 0 and (data := await self.loop.sock_recv(self.socket, STRETCH)):
                    left -= len(data)
        except (OSError, TimeoutError, LinkError, LinkLimitReached):
            pass

    async def _say_end(self) -> None:
        """Nothing is said over a plain socket but its end."""

    def close(self) -> None:
        self.socket.close()


class _Scratch(threading.local):
    """Where a thread reads and decrypts. A reader uses the bytes before another can read, so all may share it."""

    of_thread: _Scratch

    def __init__(self) -> None:
        self.wire, self.view = memoryview(bytearray(STRETCH)), memoryview(bytearray(STRETCH))


_Scratch.of_thread = _Scratch()


class TlsLink(Link):
    """Bytes in TLS; ``handshake`` comes first."""

    def start(self, context: ssl.SSLContext, *, server_name: str | None = None) -> None:
        """Be the client of ``server_name``, whose certificate must be valid for it; None: be the server."""
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_name is None, server_hostname=server_name
        )
        # Typed as if it always returned the bytes; with a buffer it returns how many there are.
        self._read_into = cast("Callable[[int, memoryview], int]", self._tls.read)

    async def handshake(self, turn: asyncio.Lock | None = None) -> None:
        """Raise LinkError, or SSLError where a certificate is the reason. ``turn``: held for each
        stretch of computing by one connection of a sandbox at a time, so many of them don't hold up the others."""
        while True:
            try:
                async with turn or nullcontext():
                    await asyncio.sleep(0)
                    self._tls.do_handshake()
            except ssl.SSLWantReadError:
                await self._flush()
                await self._feed()
            except ssl.SSLError:
                await self._flush()  # the alert
                raise
            else:
                await self._flush()
                return

    async def read(self) -> bytes | memoryview:
        while True:
            stretch = _Scratch.of_thread.view
            count = self._decrypted(stretch)
            if count:
                return stretch[:count]
            if count is None:
                return b""
            await self._flush()
            await self._feed()

    def _decrypted(self, stretch: memoryview) -> int | None:
        """Return how many bytes there are in the stretch, as many as fit; None: the other side said its end."""
        count = 0
        try:
            while count < STRETCH:
                more = self._read_into(STRETCH - count, stretch[count:])
                if not more:
                    return count or None
                count += more
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            return count or None
        except ssl.SSLError as error:
            raise LinkError(f"TLS was interrupted: {error.reason or 'no close_notify'}") from None
        return count

    async def write(self, data: bytes) -> None:
        if not data:
            return
        try:
            self._tls.write(data)
        except ssl.SSLError as error:
            raise LinkError(f"TLS was interrupted: {error.reason}") from None
        await self._flush()

    async def _feed(self) -> None:
        data = await self._receive()
        if data:
            self._incoming.write(data)
        else:
            self._incoming.write_eof()

    async def _flush(self) -> None:
        """Two tasks may write: what one has sent in part must be finished before the other's bytes."""
        if self._outgoing.pending:
            async with self._writes:
                data = self._outgoing.read()
                if data:
                    await self._send(data)

    async def _say_end(self) -> None:
        self._write_end()
        await self._flush()

    def _write_end(self) -> None:
        try:
            self._tls.unwrap()
        except ssl.SSLError:
            pass

    def close(self) -> None:
        """Say the end if that is possible at once: else the other side could think that somebody cut the connection."""
        if not self._writes.locked():
            self._write_end()
            try:
                self.socket.send(self._outgoing.read())
            except OSError:
                pass
        self.socket.close()
