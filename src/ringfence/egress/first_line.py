"""A client that pauses in the first line of what it says to a name: most likely no HTTP, but it could become some.

The line passes as it comes. The connection is refused before an ``HTTP/`` in it is whole: a request would be held to
the name. No server takes for HTTP what has none there.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from ringfence.egress import relay
from ringfence.egress.sniffing import MOST_BYTES, VERSION
from ringfence.egress.upstream import Refused

if TYPE_CHECKING:
    from ringfence.egress.connection import Connection


class FirstLine:
    """Looks over the line, piece by piece."""

    def __init__(self) -> None:
        self._before = b""
        self._begun = self.ended = False

    def take(self, data: bytes) -> bool:
        """Whether the next bytes may go on to the server."""
        rest = data if self._begun else data.lstrip(b"\r\n")
        self._begun = self._begun or bool(rest)
        line, newline, _ = (self._before + rest).partition(b"\n")
        self.ended = self._begun and bool(newline)
        self._before = line[-len(VERSION) :]
        return VERSION not in line.upper()


async def carry(connection: Connection, server: socket.socket, data: bytes) -> None:
    """Pass on what the client has said, the rest of the line, and then everything."""
    connection.begin_down(server)
    line = FirstLine()
    while data and not line.ended:
        if not line.take(data):
            raise Refused(
                f"the client of {connection.name} paused within the first line of its request over HTTP;"
                " send that line at once, or list the address"
            )
        await connection.send_up(data)
        data = b"" if line.ended else await relay.receive(connection.loop, connection.client, MOST_BYTES)
    await connection.pass_on(b"")
