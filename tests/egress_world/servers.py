"""The servers of the world, in a namespace of their own: HTTP, TLS, raw TCP, UDP and DNS, at every address there is.

Each writes down who came. TLS has a certificate for every name, of an authority that the world's callers know of.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import ssl
import struct
import subprocess
import sys
import tempfile

from tests.egress_world import API, API6, EVIL, FLIPS, FOLDER, METADATA, PRIVATE, RESOLVER, more_names, spoken

HTTP, TLS, RAW, QUIET = (80, 8080, 3128), (443, 8443), (22, 25, 5432, 6379, 9000), (7777,)
HEARD: list[tuple[str, int, str]] = []


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def main() -> None:
    print("in", flush=True)
    sys.stdin.readline()
    _ip("link", "set", "lo", "up")
    _ip("addr", "add", "198.18.0.2/30", "dev", "far")
    _ip("-6", "addr", "add", "fd00:ffff::2/64", "dev", "far", "nodad")
    _ip("link", "set", "far", "up")
    for address in (API, EVIL, PRIVATE, METADATA, RESOLVER):
        _ip("addr", "add", f"{address}/32", "dev", "lo")
    for address in (API6, "fd12:3456::7"):
        _ip("-6", "addr", "add", f"{address}/128", "dev", "lo", "nodad")
    asyncio.run(_serve())


async def _serve() -> None:
    loop = asyncio.get_running_loop()
    for ports, serve, context in ((HTTP, _http, None), (TLS, _http, _context()), (RAW, _raw, None)):
        for port in ports:
            await asyncio.start_server(_noting(serve), None, port, ssl=context)
    for port, speak in ((spoken.POSTGRES, spoken.postgres), (spoken.SMTP, spoken.smtp)):
        await asyncio.start_server(_noting(speak), None, port)
    for address in (API, EVIL, METADATA, PRIVATE, RESOLVER):
        await loop.create_datagram_endpoint(lambda at=address: Datagrams(at, 53), local_addr=(address, 53))
        await loop.create_datagram_endpoint(lambda at=address: Datagrams(at, 443), local_addr=(address, 443))
    await asyncio.start_server(_noting(_raw), None, 53)
    print("up", flush=True)
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while await reader.readline():
        await asyncio.sleep(0.05)
        told, HEARD[:] = list(HEARD), []
        print(json.dumps(told), flush=True)


def _noting(serve):  # type: ignore[no-untyped-def]
    async def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        where = writer.get_extra_info("sockname")
        place = len(HEARD)
        HEARD.append((str(where[0]).removeprefix("::ffff:"), where[1], ""))
        try:
            first = await serve(reader, writer)
            if place < len(HEARD):
                HEARD[place] = (*HEARD[place][:2], first)
        except asyncio.IncompleteReadError as cut:
            if place < len(HEARD):
                HEARD[place] = (*HEARD[place][:2], cut.partial[:200].decode("latin-1"))
        except (OSError, ValueError):
            pass
        finally:
            writer.close()

    return begin


async def _http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
    """One answer after the other on one connection: what was asked, of whom."""
    first = ""
    while True:
        head = await reader.readuntil(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines[1:] if ": " in line)
        await reader.readexactly(int(headers.get("content-length", "0")))
        first = first or f"{lines[0]} host={headers.get('host', '')}"
        asked = json.dumps({"asked": lines[0], "headers": headers}).encode()
        status, body = _reply(lines[0].split()[1], asked)
        writer.write(b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n" % (status, len(body)) + body)
        await writer.drain()
        if headers.get("connection") == "close":
            return first


def _reply(target: str, asked: bytes) -> tuple[bytes, bytes]:
    """Return status and body: so many bytes where a query says so, a file of the world's directory, or what was
    asked."""
    path, _, size = target.partition("?bytes=")
    if size:
        return b"200 OK", bytes(int(size))
    served = os.path.join(os.environ.get(FOLDER, "/nonexistent"), "served")
    names = path.partition("?")[0].strip("/")
    place = os.path.join(served, names)
    place = os.path.join(place, "index.html") if os.path.isdir(place) else place
    if os.path.isfile(place):
        with open(place, "rb") as file:
            return b"200 OK" + (b"\r\nContent-Type: text/html" if place.endswith(".html") else b""), file.read()
    missing = bool(names) and os.path.isdir(os.path.join(served, names.partition("/")[0]))
    return (b"404 Not Found", b"") if missing else (b"200 OK", asked)


async def _raw(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
    """Say who is there, and send back what comes."""
    writer.write(b"raw server\n")
    first = ""
    while data := await reader.read(4096):
        first = first or data[:100].decode("latin-1")
        writer.write(data)
        await writer.drain()
    return first


class Datagrams(asyncio.DatagramProtocol):
    """DNS where it is DNS; who sent anything at all is written down."""

    def __init__(self, address: str, port: int) -> None:
        self.address, self.port, self.flipped = address, port, 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def datagram_received(self, data: bytes, peer: tuple[str, int]) -> None:
        HEARD.append((self.address, self.port, data[:80].decode("latin-1")))
        if self.address == RESOLVER and self.port == 53:
            self.transport.sendto(self._answer(data), peer)  # type: ignore[attr-defined]

    def _answer(self, query: bytes) -> bytes:
        """For one name another address every time, first a good one; for every other there is none."""
        labels, place = [], 12
        while query[place]:
            labels.append(query[place + 1 : place + 1 + query[place]].decode().lower())
            place += query[place] + 1
        kind = struct.unpack_from("!H", query, place + 1)[0]
        question = query[12 : place + 5]
        known = ".".join(labels) == FLIPS
        head = query[:2] + struct.pack("!5H", 0x8180 if known else 0x8183, 1, int(known and kind == 1), 0, 0)
        if not (known and kind == 1):
            return head + question
        self.flipped += 1
        address = API if self.flipped % 2 else PRIVATE
        record = b"\xc0\x0c" + struct.pack("!2HIH", 1, 1, 0, 4) + bytes(map(int, address.split(".")))
        return head + question + record


def _context() -> ssl.SSLContext:
    """A self-signed certificate for any of the names."""
    every = ("*.example.com", "*.example.org", "*.example.net", "*.pypi.example.org", *more_names())
    names = ",".join(f"DNS:{name}" for name in every)
    with tempfile.TemporaryDirectory() as folder:
        key, certificate = os.path.join(folder, "key"), os.path.join(folder, "certificate")
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", certificate,
                        "-days", "2", "-subj", "/CN=world", "-addext", f"subjectAltName={names}"],
                       check=True, stderr=subprocess.DEVNULL, env=os.environ | {"HOME": folder})  # fmt: skip
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        if FOLDER in os.environ:
            shutil.copy(certificate, os.path.join(os.environ[FOLDER], "authority.pem"))
    return context


if __name__ == "__main__":
    main()
