"""How the server speaks HTTP: uvicorn's protocol, with additions against slow clients and for quick answers."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

try:
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol as _Base
except ImportError:
    from uvicorn.protocols.http.h11_impl import H11Protocol as _Base  # type: ignore[assignment]

HEAD_BYTES = 32 << 10
_UNREAD_MS = 60_000
_JOINED_BYTES = 64 << 10


class Joined:
    """A transport that sends everything written in one turn of the loop together: uvicorn writes head and body of an
    answer separately, and each would wake the client."""

    def __init__(self, transport: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._held: list[bytes] = []
        self._bytes = 0

    def write(self, data: bytes) -> None:
        if not self._held:
            self._loop.call_soon(self.flush)  # for a stream, nobody says that this was all for now
        self._held.append(data)
        self._bytes += len(data)
        if self._bytes > _JOINED_BYTES:
            self.flush()

    def flush(self) -> None:
        held, self._held, self._bytes = self._held, [], 0
        if held:
            self._transport.write(held[0] if len(held) == 1 else b"".join(held))

    def close(self) -> None:
        self.flush()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class Patient(_Base):
    """Uvicorn's own protocol, made safe against slow and endless clients: a head must be complete within a limit of
    seconds and bytes, a body must say its size (chunks would be kept without bound), and the kernel drops a client that
    does not read its answer. A request that comes before the answer to the last one is not read, and the connection
    ends with that answer: else requests would be kept without bound, and the one under way would not learn that its
    client is gone. H11 bounds what it keeps by itself."""

    head_s = 10.0
    _late: asyncio.TimerHandle | None = None
    _in_head = False
    _head_bytes = 0
    _is_early = False
    """A request came before its turn."""
    _joined: Joined

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.transport = self._joined = Joined(transport, self.loop)  # type: ignore[assignment]
        link = transport.get_extra_info("socket")
        if link is not None and hasattr(socket, "TCP_USER_TIMEOUT"):
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNREAD_MS)
        self._late = self.loop.call_later(self.head_s, transport.close)

    def data_received(self, data: bytes) -> None:
        if self._is_early:
            return
        before, goes_on = self.cycle, self._in_head
        super().data_received(data)
        self._head_bytes = self._head_bytes + len(data) if goes_on and self._in_head else 0
        if self._head_bytes > HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("The head of the request is too large.")
        if self.cycle is not before:
            self._in_time()
        elif self._late is None and (before is None or before.response_complete):
            self._late = self.loop.call_later(self.head_s, self.transport.close)

    def on_message_begin(self) -> None:
        self._in_head = True
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"transfer-encoding":
            raise ValueError("a body must say its size")  # the parser makes a refusal of it
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head = False
        if self.cycle is not None and not self.cycle.response_complete:
            self._is_early, self.cycle.keep_alive = True, False
            raise ValueError("a request before the answer to the last one")  # the parser reads no further
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        if not self._is_early:  # else it would end up in the middle of an answer
            super().send_400_response(msg)

    def on_response_complete(self) -> None:
        self._joined.flush()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._in_time()
        super().connection_lost(exc)

    def _in_time(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None


def patient(head_s: float) -> type[asyncio.Protocol]:
    """The protocol class that waits this long for a head: uvicorn makes an instance for each connection."""
    return type("Patient", (Patient,), {"head_s": head_s})
