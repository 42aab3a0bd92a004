"""How the server speaks HTTP: uvicorn's protocol, with additions against slow clients and for quick answers."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any, ClassVar, NoReturn

from ringfence.service.answer import KNOWN

try:
    from httptools import HttpParserUpgrade
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol as _Base
except ImportError:
    from uvicorn.protocols.http.h11_impl import H11Protocol as _Base  # type: ignore[assignment]

HEAD_BYTES = 32 << 10
_TOO_LARGE = f"the head of the request has more than {HEAD_BYTES} bytes: send fewer or shorter headers"
_UNREAD_MS = 60_000
_JOINED_BYTES = 64 << 10
_ONCE = frozenset((
    b"host", b"origin", b"authorization", b"content-type", b"idempotency-key", b"last-event-id", b"sec-fetch-site",
    b"mcp-session-id",
))  # fmt: skip
"""Headers that decide something. A proxy before us may take the other one of two."""
STRANGER_S = 5
"""How long a connection may be idle on which nobody has shown a valid token."""


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


class Unmoved:
    """A parser for a server that takes no offer of another protocol (``Upgrade``). Of a request with such an offer
    httptools reads the head alone, and would take the body for the next request: so nothing behind that head is parsed
    on this connection."""

    def __init__(self, parser: Any, on_rest: Callable[[bytes], None]) -> None:
        """``on_rest``: called with what comes behind the head."""
        self._parser, self._on_rest = parser, on_rest
        self._is_over = False

    def feed_data(self, data: bytes) -> None:
        if self._is_over:
            self._on_rest(data)
            return
        try:
            self._parser.feed_data(data)
        except HttpParserUpgrade as offer:
            self._is_over = True
            self._on_rest(data[offer.args[0] :])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._parser, name)


class Patient(_Base):
    """Uvicorn's own protocol, made safe against slow and endless clients: a head must be complete within a limit of
    seconds and bytes, a body must say its size (chunks would be kept without bound), and the kernel drops a client that
    does not read its answer. A request that comes before the answer to the last one is not read, and the connection
    ends with that answer: else requests would be kept without bound, and the one under way would not learn that its
    client is gone. H11 bounds what it keeps by itself.

    Connections are everybody's, and opening one takes no token. Where there are too many, the one that has been idle
    the longest makes room: first of strangers, who have never shown a valid token. A stranger's request is never under
    way for long, because its body is not read."""

    head_s: ClassVar[float] = 10.0
    most: ClassVar[int] = 1024
    """Connections at one time."""
    is_known = False
    idle_since_s = 0.0
    _late: asyncio.TimerHandle | None = None
    _in_head = False
    _head_bytes = 0
    _read_bytes = 0
    """Of the head, as far as the parser has read it: all of it may have come at once."""
    _seen: frozenset[bytes] = frozenset()
    _why = ""
    """What is wrong with the head."""
    _is_early = False
    """A request came before its turn."""
    _left = 0
    """Bytes that are still to come of a body that the parser does not read."""
    _joined: Joined

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if hasattr(self, "parser"):
            self.parser = Unmoved(self.parser, self._on_rest)  # type: ignore[assignment]
        self.transport = self._joined = Joined(transport, self.loop)  # type: ignore[assignment]
        link = transport.get_extra_info("socket")
        if link is not None and hasattr(socket, "TCP_USER_TIMEOUT"):
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNREAD_MS)
        self._late = self.loop.call_later(self.head_s, transport.close)
        self.idle_since_s = self.loop.time()
        if len(self.connections) > self.most:
            self._make_room()

    def _make_room(self) -> None:
        idle = [each for each in self.connections if isinstance(each, Patient) and each is not self and each.is_idle()]
        if idle:
            min(idle, key=lambda each: (each.is_known, each.idle_since_s)).transport.abort()

    def is_idle(self) -> bool:
        """Whether it may be ended for another one. The last answer to a tenant may still be on its way."""
        if self.transport.is_closing() or not (self.cycle is None or self.cycle.response_complete):
            return False
        return not self.is_known or not self.transport.get_write_buffer_size()

    def data_received(self, data: bytes) -> None:
        if self._is_early:
            return
        before, goes_on = self.cycle, self._in_head
        super().data_received(data)
        self._head_bytes = self._head_bytes + len(data) if goes_on and self._in_head else 0
        if self._head_bytes > HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response(_TOO_LARGE)
        if self.cycle is not before:
            self._in_time()
        elif self._late is None and (before is None or before.response_complete):
            self._late = self.loop.call_later(self.head_s, self.transport.close)

    def on_message_begin(self) -> None:
        self._in_head, self._read_bytes, self._seen = True, 0, frozenset()
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + 4)  # with the colon, the space and the end of its line
        known = name.lower()
        if known == b"transfer-encoding":
            self._refuse("a body needs a size: send Content-Length")
        if known in self._seen:
            self._refuse(f"the header {known.decode()} occurs twice: send it once")
        if known in _ONCE:
            self._seen |= {known}
        super().on_header(name, value)

    def _count(self, size: int) -> None:
        self._read_bytes += size
        if self._read_bytes > HEAD_BYTES:
            self._refuse(_TOO_LARGE)

    def _refuse(self, why: str) -> NoReturn:
        self._why = why
        raise ValueError(why)  # the parser reads no further, and ``send_400_response`` is called

    def on_headers_complete(self) -> None:
        self._in_head = False
        if self.cycle is not None and not self.cycle.response_complete:
            self._is_early, self.cycle.keep_alive = True, False
            raise ValueError("a request before the answer to the last one")  # the parser reads no further
        super().on_headers_complete()
        if self.parser.should_upgrade():
            self.cycle.keep_alive = False
            self._left = int(dict(self.headers).get(b"content-length", b"0"))

    def on_message_complete(self) -> None:
        if not self._left:
            super().on_message_complete()

    def _on_rest(self, data: bytes) -> None:
        if self._left and data:
            piece = data[: self._left]
            self._left -= len(piece)
            self.on_body(piece)
            self.on_message_complete()

    def send_400_response(self, msg: str) -> None:
        if not self._is_early:  # else it would end up in the middle of an answer
            super().send_400_response(self._why or msg)

    def on_response_complete(self) -> None:
        self._joined.flush()
        self.idle_since_s = self.loop.time()
        self.is_known = self.is_known or bool(self.cycle.scope.get(KNOWN))
        self.timeout_keep_alive = self.config.timeout_keep_alive if self.is_known else STRANGER_S
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._in_time()
        super().connection_lost(exc)

    def _in_time(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None


def patient(head_s: float, most: int) -> type[asyncio.Protocol]:
    """The protocol class that waits this long for a head, and makes room beyond so many connections: uvicorn makes an
    instance for each."""
    return type("Patient", (Patient,), {"head_s": head_s, "most": most})
