"""Plain HTTP to a name: every request is read, checked for its host and written anew; responses pass unread.

Responses need not be read: they come from the one server that was checked. The first response is read only where a
client asks for a WebSocket, since what follows is not HTTP. No other upgrade is passed on: in HTTP/2 over plain TCP
nobody would check the hosts.
"""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

import h11

from ringfence.egress.http_head import MAX_HEAD_BYTES, BadRequest, Headers, RequestHead, RequestReader, end_to_end
from ringfence.egress.relay import LimitReached, receive
from ringfence.egress.sniffing import FirstLine
from ringfence.egress.upstream import Refused, Unreachable

if TYPE_CHECKING:
    from ringfence.egress.connection import Connection

_READ_BYTES = 1 << 16


class Requests:
    """The requests of one connection, read one by one."""

    def __init__(self, connection: Connection, first: bytes) -> None:
        self.connection = connection
        self.loop = asyncio.get_running_loop()
        self.reader = RequestReader()
        self.reader.receive(first)
        self.received = first
        self.keeps = True
        """``received``: all that was read until the first head was complete."""

    async def next_head(self) -> RequestHead | None:
        """Return the next request's head; None: the client sends no more."""
        event = await self._event()
        self.keeps = False
        return event if isinstance(event, RequestHead) else None

    async def _event(self) -> object:
        await asyncio.sleep(0)  # one read may contain thousands, and others have their turn too
        try:
            while (event := self.reader.next_event()) is h11.NEED_DATA:
                data = await receive(self.loop, self.connection.client, _READ_BYTES)
                self.connection.touch()
                self.reader.receive(data)
                if self.keeps:
                    self.received += data
            return event
        except BadRequest as bad:
            raise Refused(f"the request is not passed on: {bad}", bad.status) from None

    async def send(self, head: RequestHead, more: Headers) -> None:
        """Send a request as it was read: the head, with these headers too, then its body."""
        headers = [(b"Host", str(head.host).encode("ascii")), *end_to_end(head.headers), *more]
        lines = [f"{head.method} {head.path} HTTP/{head.version}".encode("ascii")]
        lines += [name + b": " + value for name, value in headers]
        await self.connection.send_up(b"\r\n".join(lines) + b"\r\n\r\n")
        chunked = bool(head.values(b"transfer-encoding"))
        while isinstance(event := await self._event(), h11.Data):
            data = bytes(event.data)
            if data:
                await self.connection.send_up(b"%x\r\n%b\r\n" % (len(data), data) if chunked else data)
        if chunked:
            await self.connection.send_up(b"0\r\n\r\n")

    async def first_response(self, server: socket.socket) -> bool:
        """Pass the head of the first response on; return whether a WebSocket begins with it."""
        head = b""
        while b"\r\n\r\n" not in head:
            data = await self.loop.sock_recv(server, _READ_BYTES)
            head += data
            if not data or len(head) > MAX_HEAD_BYTES + _READ_BYTES:
                raise Unreachable(f"{self.connection.name} sends no response to a request for a WebSocket")
        if len(head) > self.connection.into.room():
            raise LimitReached(self.connection.into.reason())
        self.connection.into.add(len(head))
        await self.loop.sock_sendall(self.connection.client, head)
        return head.split(b"\r\n", 1)[0].split(b" ")[1:2] == [b"101"]


def check_host(head: RequestHead, name: str, port: int) -> None:
    """Refused if a request on a connection to this name is for another host."""
    if head.method == "CONNECT":
        raise Refused(f"{name} is not a proxy for others: CONNECT is not passed on")
    if head.host.host != name or head.host.port not in (None, port):
        raise Refused(f"the connection is to {name}:{port}, but a request on it is for {head.host}", 421)


def _is_last(head: RequestHead) -> bool:
    """Whether the client says that no other request follows."""
    words = {word.strip().lower() for value in head.values(b"connection") for word in value.split(b",")}
    return b"close" in words or head.version == "1.0"


def _is_websocket(head: RequestHead) -> bool:
    return head.upgrade and [value.lower() for value in head.values(b"upgrade")] == [b"websocket"] and not head.has_body


async def carry(connection: Connection, server: socket.socket, first: bytes, name: str, port: int) -> None:
    """Carry all requests of a connection to ``server``, which is ``name``, and the responses back."""
    requests = Requests(connection, first)
    while (head := await requests.next_head()) is not None:
        check_host(head, name, port)
        if _is_websocket(head) and connection.down is None:
            await requests.send(head, [(b"Connection", b"Upgrade"), (b"Upgrade", b"websocket")])
            if await requests.first_response(server):
                await connection.pass_on(requests.reader.waiting)
                return
            connection.begin_down(server)
            continue
        connection.begin_down(server)
        last = _is_last(head)
        await requests.send(head, [(b"Connection", b"close")] if last else [])
        if last:
            break
    await _finish(connection, server)


async def carry_one(connection: Connection, server: socket.socket, requests: Requests, head: RequestHead) -> None:
    """Carry a single request of a client that uses us as a proxy; its next one may be for another host."""
    connection.begin_down(server)
    await requests.send(head, [(b"Connection", b"close")])
    await _finish(connection, server)


async def _finish(connection: Connection, server: socket.socket) -> None:
    """Wait for the rest of the responses. What the client still sends goes nowhere; its end is passed on."""

    async def until_client_ends() -> None:
        try:
            while await receive(connection.loop, connection.client, _READ_BYTES):
                pass
            server.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # the other direction ends by that too

    if connection.down is None:
        return
    watching = asyncio.ensure_future(until_client_ends())
    try:
        await connection.down.finished
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)  # before the socket that it watches is closed


async def pass_line(connection: Connection, server: socket.socket, data: bytes) -> None:
    """Pass a client's first line on as it comes, unless it becomes a request, whose host would have to be checked."""
    connection.begin_down(server)
    line = FirstLine()
    while data and not line.ended:
        if not line.take(data):
            raise Refused(
                f"the client of {connection.name} paused within the first line of its request over HTTP"
                " or of the PROXY protocol;"
                " send that line at once, or list the address"
            )
        await connection.send_up(data)
        data = b"" if line.ended else await receive(connection.loop, connection.client, _READ_BYTES)
    await connection.pass_on(b"")
