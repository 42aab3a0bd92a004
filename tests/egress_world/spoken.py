"""Servers of two raw protocols: PostgreSQL, where the client begins, and SMTP, where the server does."""

from __future__ import annotations

import asyncio
import struct

POSTGRES, SMTP = 15432, 2525
_SSL_REQUEST = 80877103
_TEXT_OID = 25


async def postgres(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
    """Let everybody in, and answer each query with one row: the query itself."""
    first = await _startup(reader, writer)
    writer.write(_message(b"R", struct.pack("!I", 0)) + _message(b"Z", b"I"))
    while True:
        kind, size = struct.unpack("!cI", await reader.readexactly(5))
        body = await reader.readexactly(size - 4)
        if kind != b"Q":
            return first
        column = struct.pack("!h", 1) + b"said\0" + struct.pack("!IhIhih", 0, 0, _TEXT_OID, -1, -1, 0)
        query = body.rstrip(b"\0")
        row = struct.pack("!hI", 1, len(query)) + query
        writer.write(
            _message(b"T", column) + _message(b"D", row) + _message(b"C", b"SELECT 1\0") + _message(b"Z", b"I")
        )
        await writer.drain()


async def _startup(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
    """Refuse encryption as often as it is asked for; return what the client says of itself."""
    while True:
        size, code = struct.unpack("!II", await reader.readexactly(8))
        rest = await reader.readexactly(size - 8)
        if code != _SSL_REQUEST:
            return rest.replace(b"\0", b" ").decode("latin-1")
        writer.write(b"N")


def _message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!I", len(body) + 4) + body


async def smtp(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
    """Greet, and agree to everything."""
    writer.write(b"220 world.example.com greets first\r\n")
    first = ""
    while line := await reader.readline():
        first = first or line.decode("latin-1").strip()
        word = line.split()[0].upper() if line.split() else b""
        writer.write({b"QUIT": b"221 goodbye\r\n", b"HELP": b"214 help yourself\r\n"}.get(word, b"250 yes\r\n"))
        await writer.drain()
        if word == b"QUIT":
            break
    return first
