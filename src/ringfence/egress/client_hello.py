"""The first message of a TLS client, read without ending TLS: which name it asks for, and whether it hides another.

Pure: bytes in, a value out, nothing raised. Each call gets all bytes received so far; their size and the number of
records are bounded. Bytes that look like TLS but can't be read to the end are ``Malformed``, never «not TLS»: a server
may be more lenient than this reader and see another name in them.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Final, Literal

from ringfence.model.record import record

MAX_RECORDS = 16
"""A hello of an ordinary client is one record; some cut theirs in two or three."""
MAX_HELLO_BYTES = 4 * 16384
MAX_BYTES = MAX_HELLO_BYTES + MAX_RECORDS * 5
"""More than this is never asked for."""
_RECORD_BYTES = 16384

_ALERT, _HANDSHAKE, _CLIENT_HELLO = 21, 22, 1
_FIRST_BYTES = {_ALERT: (1, 2), _HANDSHAKE: (_CLIENT_HELLO,)}
_RECORD_TYPES = range(20, 25)
_MAJOR_VERSION = 3
_SERVER_NAME, _ALPN, _ENCRYPTED_SERVER_NAME, _ENCRYPTED_HELLO = 0, 16, 0xFFCE, 0xFE0D
_NAME_BYTES = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789-_.")


class Sniffed(Enum):
    """What is known while there is no hello."""

    NEED_MORE = "need more"
    NOT_TLS = "not TLS"


NEED_MORE: Final = Sniffed.NEED_MORE
NOT_TLS: Final = Sniffed.NOT_TLS


@record
class Hello:
    """What a client tells in the clear before anything is encrypted."""

    name: str | None
    """The server's name in lower case, without a final dot; None: the client names none."""
    ech: bool
    """Whether a second, encrypted hello is in it, which may name another server."""
    alpn: tuple[bytes, ...]


@record
class Malformed:
    """It begins like TLS, but no name can be taken from it."""

    problem: str


class _Bad(Exception):
    """Inside this module: the text says what is wrong with the hello."""


class _Short(Exception):
    """Inside this module: the rest has not arrived."""


def sni_of(data: bytes) -> Hello | Malformed | Literal[Sniffed.NEED_MORE, Sniffed.NOT_TLS]:
    """Return what the first bytes of a connection say, or that more of them are needed."""
    if not data:
        return NEED_MORE
    if data[0] not in _RECORD_TYPES:
        return _of_ssl_2(data)
    if len(data) < 2:
        return NEED_MORE  # other protocols begin with such a byte, e.g. with the length of a message
    if data[1] != _MAJOR_VERSION:
        return _of_another_version(data)
    try:
        return _hello(_message(data))
    except _Short:
        return NEED_MORE if len(data) < MAX_BYTES else Malformed(problem=f"it is longer than {MAX_HELLO_BYTES} bytes")
    except _Bad as error:
        return Malformed(problem=error.args[0])


def _of_ssl_2(data: bytes) -> Malformed | Literal[Sniffed.NEED_MORE, Sniffed.NOT_TLS]:
    """Servers of OpenSSL still take a hello of that form as one for TLS. It has no room for a name."""
    form = data[2:4]
    if not data[0] & 0x80 or not bytes((_CLIENT_HELLO, _MAJOR_VERSION)).startswith(form):
        return NOT_TLS
    return Malformed(problem="it has the form of SSL 2, and names no server") if len(form) == 2 else NEED_MORE


def _of_another_version(data: bytes) -> Malformed | Literal[Sniffed.NEED_MORE, Sniffed.NOT_TLS]:
    """Servers in Go do not look at the version of the first record."""
    if data[0] not in _FIRST_BYTES:
        return NOT_TLS
    if len(data) < 6:
        return NEED_MORE
    return Malformed(problem="it has no known TLS version") if data[5] in _FIRST_BYTES[data[0]] else NOT_TLS


def _message(data: bytes) -> bytes:
    """Return the body of the first handshake message, put together from its records."""
    message = b""
    for fragment in _fragments(data):
        message += fragment
        if message[0] != _CLIENT_HELLO:
            raise _Bad("the first message is not a ClientHello")
        if len(message) < 4:
            continue
        end = 4 + int.from_bytes(message[1:4], "big")
        if end > MAX_HELLO_BYTES:
            raise _Bad(f"it says that it is {end} bytes long")
        if len(message) > end:
            raise _Bad("something follows it in its record")
        if len(message) == end:
            return message[4:]
    raise _Short


def _fragments(data: bytes) -> Iterator[bytes]:
    start = 0
    for _ in range(MAX_RECORDS):
        head = data[start : start + 5]
        if head[:1] and head[0] != _HANDSHAKE:
            raise _Bad("a record of another kind comes before it is complete")
        if head[1:2] and head[1] != _MAJOR_VERSION:
            raise _Bad("it has no known TLS version")
        if len(head) < 5:
            raise _Short
        length = int.from_bytes(head[3:5], "big")
        if not 0 < length <= _RECORD_BYTES:
            raise _Bad(f"a record of {length} bytes")
        body = data[start + 5 : start + 5 + length]
        if len(body) < length:
            raise _Short
        yield body
        start += 5 + length
    raise _Bad(f"it is cut into more than {MAX_RECORDS} records")


class _Fields:
    """Takes fields of a fixed or told length from the front of some bytes."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, count: int) -> bytes:
        taken = self.data[self.at : self.at + count]
        if len(taken) < count:
            raise _Bad("a length in it is wrong")
        self.at += count
        return taken

    def number(self, width: int) -> int:
        return int.from_bytes(self.take(width), "big")

    def vector(self, width: int) -> _Fields:
        return _Fields(self.take(self.number(width)))

    @property
    def left(self) -> int:
        return len(self.data) - self.at


def _hello(body: bytes) -> Hello:
    fields = _Fields(body)
    fields.take(2 + 32)
    session, suites, compression = fields.vector(1), fields.vector(2), fields.vector(1)
    if session.left > 32 or suites.left < 2 or suites.left % 2 or not compression.left:
        raise _Bad("a length in it is wrong")
    extensions = _extensions(fields.vector(2)) if fields.left else {}
    if fields.left:
        raise _Bad("something follows its extensions")
    return Hello(
        name=_name(extensions[_SERVER_NAME]) if _SERVER_NAME in extensions else None,
        ech=not extensions.keys().isdisjoint({_ENCRYPTED_HELLO, _ENCRYPTED_SERVER_NAME}),
        alpn=tuple(_protocols(extensions[_ALPN])) if _ALPN in extensions else (),
    )


def _extensions(fields: _Fields) -> dict[int, _Fields]:
    found: dict[int, _Fields] = {}
    while fields.left:
        number = fields.number(2)
        if number in found:
            raise _Bad(f"extension {number} appears twice in it")
        found[number] = fields.vector(2)
    return found


def _name(extension: _Fields) -> str:
    """Return the one host name. Servers differ in which of several they take, so there must be one."""
    names = extension.vector(2)
    if extension.left or names.left < 4:
        raise _Bad("a length in its server name is wrong")
    if names.number(1) != 0:
        raise _Bad("its server name is not a host name")
    name = names.vector(2).data.lower().removesuffix(b".")
    if names.left:
        raise _Bad("it names more than one server")
    if not 0 < len(name) <= 253 or not _NAME_BYTES.issuperset(name) or b"" in name.split(b"."):
        raise _Bad("its server name is not a host name")
    return name.decode("ascii")


def _protocols(extension: _Fields) -> Iterator[bytes]:
    protocols = extension.vector(2)
    if extension.left or not protocols.left:
        raise _Bad("a length in its list of protocols is wrong")
    while protocols.left:
        protocol = protocols.vector(1).data
        if not protocol:
            raise _Bad("it offers a protocol without a name")
        yield protocol
