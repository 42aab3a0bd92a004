"""Tells a protocol by the client's first bytes. Pure, never lenient: what some server takes for HTTP is HTTP here."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from ringfence.egress import client_hello
from ringfence.egress.client_hello import Hello, Malformed
from ringfence.model.record import record

if TYPE_CHECKING:
    from ringfence.egress.answers import Protocol

MOST_BYTES = 65536
_MOST_EMPTY = 64
"""Bytes of blanks before the first word. Some servers skip more, so it is still HTTP, which is not passed on."""
_BLANK = b" \t\r\n\x0b\x0c\x1c\x1d\x1e\x1f\x85\xa0"
"""What servers skip before a request or between its words: those in Python skip all that Python takes for a blank."""
_TOKEN = frozenset(b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
_METHODS = (b"GET", b"POST", b"PUT", b"HEAD", b"DELETE", b"PATCH", b"OPTIONS", b"TRACE", b"CONNECT", b"PRI")
_VERSION = b"HTTP/"
_CONTROL = bytes(frozenset(range(0x20)) - frozenset(_BLANK))
_PROXY, _PROXY_2 = b"PROXY ", b"\r\n\r\n\0"
"""How the PROXY protocol begins in its two versions. Servers take what follows it for the connection itself."""


class Spoken(Enum):
    """The protocols that are told apart."""

    UNKNOWN = "unknown"
    """More bytes are needed."""
    TLS = "tls"
    HTTP = "http"
    LINE = "line"
    """The beginning of a line in which the client pauses: most likely no HTTP, but it could still become some."""
    PROXIED = "proxied"
    """The PROXY protocol comes first, and hides what is spoken."""
    OTHER = "tcp"

    @property
    def protocol(self) -> Protocol:
        """As in an event."""
        if self is Spoken.TLS:
            return "tls"
        return "http" if self is Spoken.HTTP else "tcp"


def spoken(data: bytes) -> tuple[Spoken, Hello | Malformed | None]:
    """Return what the bytes begin, and of TLS what its first message says.

    >>> spoken(b"GET / HTTP/1.1\\r\\n")[0]
    <Spoken.HTTP: 'http'>
    """
    hello = client_hello.sni_of(data)
    if isinstance(hello, Hello | Malformed):
        return Spoken.TLS, hello
    if hello is client_hello.NEED_MORE:
        return Spoken.UNKNOWN, None
    if data.startswith(_PROXY_2):
        return Spoken.PROXIED, None
    text = data.lstrip(_BLANK)
    return (_text(text) if len(data) - len(text) <= _MOST_EMPTY else Spoken.HTTP), None


def _text(data: bytes) -> Spoken:
    """Servers skip empty lines and blanks, and differ in what may separate the words of the first line."""
    if not data:
        return Spoken.UNKNOWN
    if data.startswith(_PROXY):
        return Spoken.PROXIED
    line, newline, _ = data.partition(b"\n")
    if newline or len(data) >= MOST_BYTES:
        return Spoken.HTTP if not newline or _VERSION in line.upper() or _is_old(line, line) else Spoken.OTHER
    if line[0] not in _TOKEN:
        return Spoken.OTHER
    # At once, not byte by byte: a client that sends single bytes has the whole line looked at for each of them.
    if len(line.translate(None, _CONTROL)) != len(line) and not line.upper().startswith(_METHODS):
        return Spoken.OTHER
    return Spoken.UNKNOWN


def _is_old(first: bytes, line: bytes) -> bool:
    """Whether a line that begins with ``first`` is a request of HTTP/0.9 to a proxy: it has no version, but a host."""
    return first.startswith(b"GET") and b"://" in line


def spoken_in_all(data: bytes) -> tuple[Spoken, Hello | Malformed | None]:
    """The same of a client that will send no more: its line has ended, too."""
    return spoken(data + b"\n") if data else spoken(data)


def begins_line(data: bytes) -> bool:
    """Whether bytes of a yet unknown protocol are a part of a line, and hardly a request."""
    line = data.lstrip(_BLANK).upper()
    likely = line.startswith(_METHODS) or _VERSION in line
    return bool(line) and not likely and client_hello.sni_of(data) is not client_hello.NEED_MORE


class FirstLine:
    """Watches the first line of a client that paused in it. No server takes a line without ``HTTP/`` for HTTP."""

    def __init__(self) -> None:
        self._before = self._first = b""
        self._begun = self.ended = False

    def take(self, data: bytes) -> bool:
        """Whether the next bytes may go on to the server."""
        rest = data if self._begun else data.lstrip(_BLANK)
        self._begun = self._begun or bool(rest)
        line, newline, _ = (self._before + rest).partition(b"\n")
        self.ended = self._begun and bool(newline)
        self._before = line[-len(_VERSION) :]
        self._first = (self._first + rest)[: len(_PROXY)]
        return _VERSION not in line.upper() and self._first != _PROXY and not _is_old(self._first, line)


@record
class Words:
    """The first bytes that a client sends."""

    data: bytes
    kind: Spoken
    hello: Hello | Malformed | None = None


def other_server(hello: Hello | Malformed | None, name: str, *, unnamed: bool = False) -> str:
    """Return why a first TLS message is not for this name; empty: it is. ``unnamed``: it need not name a server."""
    if not isinstance(hello, Hello):
        return f"the TLS client of {name} sends a first message that can't be read; if it is not TLS, list the address"
    if unnamed and (hello.ech or hello.name is None):
        return ""
    if hello.ech:
        return f"the TLS client of {name} encrypts the name of its server (ECH); switch that off in the client"
    if hello.name is None:
        return f"the TLS client of {name} names no server (SNI); use the name, or list the address"
    if hello.name != name:
        return f"the connection is to {name}, but its TLS client asks for {hello.name}"
    return ""
