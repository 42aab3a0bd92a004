"""The proxy port of a sandbox: HTTP CONNECT, plain HTTP by absolute targets, and SOCKS5, told apart by the first byte.

A target is judged as if the client had connected to its address, and the protocol inside has to match the name.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from ringfence.egress import http_head, plain_http, socks
from ringfence.egress.host_port import HostPort
from ringfence.egress.relay import LimitReached
from ringfence.egress.sniffing import MOST_BYTES
from ringfence.egress.upstream import Refused
from ringfence.errors import is_of_a_call

if TYPE_CHECKING:
    from ringfence.egress.connection import Connection

_ASK_S = 30.0
_ACCESS_DENIED, _INTERNAL_ERROR = 49, 80
"""Alerts of TLS."""
_CONNECTED = b"HTTP/1.1 200 Connection established\r\n\r\n"


@asynccontextmanager
async def _deadline() -> AsyncIterator[None]:
    """How long a client may take to ask. Only our own deadline is caught: a timeout of the kernel's is the client's."""
    try:
        async with asyncio.timeout(_ASK_S):
            yield
    except TimeoutError as error:
        if is_of_a_call(error):
            raise
        raise LimitReached(f"the client sent no complete request to the proxy within {_ASK_S:g} s") from None


async def serve(connection: Connection) -> None:
    """Read what the client asks the proxy for, and carry it."""
    connection.address, connection.port = "", 0
    async with _deadline():
        first = await connection.loop.sock_recv(connection.client, MOST_BYTES)
    if first[:1] == bytes((socks.FIRST_BYTE,)):
        await _socks(connection, first)
    elif first:
        await _http(connection, first)


async def _socks(connection: Connection, data: bytes) -> None:
    connection.protocol = connection.speaks = "socks5"
    reader = socks.SocksReader()
    asked = None
    try:
        async with _deadline():
            while asked is None:
                answer, asked = reader.receive(data)
                if answer:
                    await _say(connection, answer)
                if asked is None:
                    data = await connection.loop.sock_recv(connection.client, MOST_BYTES)
                    if not data:
                        return
    except socks.BadSocks as bad:
        connection.speaks = "tcp"
        if bad.answer:
            await _say(connection, bad.answer)
        raise Refused(str(bad)) from None
    await _tunnel(connection, asked.target, socks.reply(socks.SocksReply.SUCCEEDED), reader.waiting)


async def _say(connection: Connection, answer: bytes) -> None:
    """A client may have said all and gone without waiting for an answer: what it has said is decided all the same."""
    with suppress(ConnectionError):
        await connection.loop.sock_sendall(connection.client, answer)


async def _http(connection: Connection, data: bytes) -> None:
    connection.speaks = "http"
    requests = plain_http.Requests(connection, data)
    async with _deadline():
        head = await requests.next_head()
    if head is None:
        return
    if head.method == "CONNECT":
        connection.protocol = "connect"
        await _tunnel(connection, head.host, _CONNECTED, requests.reader.waiting)
        return
    if not head.is_absolute:
        raise Refused("this is a proxy: it takes CONNECT host:port, and targets such as http://host/path")
    server = await connection.connect(head.host, head.host.port or 80)
    if server is None:
        await connection.carry(None, head.host, head.host.port or 80, requests.received)
    else:
        await plain_http.carry_one(connection, server, requests, head)


async def _tunnel(connection: Connection, target: HostPort, granted: bytes, waiting: bytes) -> None:
    """Connect first: the client shows its protocol only after it was told that the connection stands."""
    port = target.port or 0
    connection.said = waiting
    server = await connection.connect(target, port)
    await _say(connection, granted)
    connection.speaks = "tcp"
    await connection.carry(server, target, port, waiting)


def refusal_text(speaks: str, status: int, reason: str) -> bytes:
    """Return what a client is told in its own protocol; empty: that has no word for it. ``status`` is of HTTP."""
    if speaks == "http":
        return http_head.RequestReader().refuse(status, f"ringfence: {reason}")
    if speaks == "tls":
        return bytes((0x15, 3, 3, 0, 2, 2, _INTERNAL_ERROR if status == 502 else _ACCESS_DENIED))
    if speaks == "socks5":
        return socks.reply(socks.SocksReply.HOST_UNREACHABLE if status == 502 else socks.SocksReply.NOT_ALLOWED)
    return b""
