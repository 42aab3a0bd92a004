"""SOCKS5 as a server reads it: no authentication, CONNECT only. Pure: bytes in, a reply and an event out."""

from __future__ import annotations

from enum import IntEnum

from ringfence.egress.host_port import BadHost, HostPort, canonical_address, canonical_host
from ringfence.model.host_text import is_address
from ringfence.model.record import record

FIRST_BYTE = 5
"""Tells a SOCKS5 connection from an HTTP one."""
MAX_BYTES = 2 + 255 + 4 + 1 + 255 + 2
_CONNECT = 1
_IPV4, _NAME, _IPV6 = 1, 3, 4
_LENGTHS = {_IPV4: 4, _IPV6: 16}
_NO_AUTHENTICATION = 0


class SocksReply(IntEnum):
    """What a server answers to a request."""

    SUCCEEDED = 0
    FAILED = 1
    NOT_ALLOWED = 2
    NETWORK_UNREACHABLE = 3
    HOST_UNREACHABLE = 4
    REFUSED = 5
    COMMAND_NOT_SUPPORTED = 7
    ADDRESS_NOT_SUPPORTED = 8


def reply(code: SocksReply) -> bytes:
    """Return the bytes of a reply. The address in it is 0.0.0.0: no client needs the gateway's own."""
    return bytes([FIRST_BYTE, code, 0, _IPV4, 0, 0, 0, 0, 0, 0])


class BadSocks(Exception):
    """A client that goes nowhere: the text says why, ``answer`` is what it gets before the connection is closed."""

    def __init__(self, problem: str, answer: bytes = b"") -> None:
        super().__init__(problem)
        self.answer = answer


@record
class Asked:
    """Where a client wants to go."""

    target: HostPort
    """Always with its port."""


class SocksReader:
    """One client, from its first byte to its request."""

    def __init__(self) -> None:
        self._data = b""
        self._greeted = False
        self._asked = False

    @property
    def waiting(self) -> bytes:
        """What the client sent behind its request, for the server that it asks for."""
        return self._data if self._asked else b""

    def receive(self, data: bytes) -> tuple[bytes, Asked | None]:
        """Return what the client gets now, and its request once it is complete; raise BadSocks and nothing else."""
        self._data += data
        answer = b""
        if not self._greeted:
            answer = self._greeting()
        if not self._greeted or self._asked:
            return answer, None
        return answer, self._request()

    def _greeting(self) -> bytes:
        if self._data[:1] and self._data[0] != FIRST_BYTE:
            raise BadSocks(f"SOCKS version {self._data[0]} is not supported; use socks5h://")
        if len(self._data) < 2 or len(self._data) < 2 + self._data[1]:
            return b""
        methods, self._data = self._data[2 : 2 + self._data[1]], self._data[2 + self._data[1] :]
        if _NO_AUTHENTICATION not in methods:
            raise BadSocks("a user and a password are not supported; use socks5h:// without them", b"\x05\xff")
        self._greeted = True
        return bytes([FIRST_BYTE, _NO_AUTHENTICATION])

    def _request(self) -> Asked | None:
        data = self._data
        if len(data) < 5:
            _check_beginning(data)
            return None
        _check_beginning(data)
        start = 5 if data[3] == _NAME else 4
        end = start + (data[4] if data[3] == _NAME else _LENGTHS[data[3]])
        if len(data) < end + 2:
            return None
        target = _target(data[3], data[start:end], int.from_bytes(data[end : end + 2], "big"))
        self._data, self._asked = data[end + 2 :], True
        return Asked(target=target)


def _check_beginning(data: bytes) -> None:
    if data[:1] not in (b"", b"\x05") or data[2:3] not in (b"", b"\0"):
        raise BadSocks("not a valid SOCKS5 request", reply(SocksReply.FAILED))
    if data[1:2] and data[1] != _CONNECT:
        raise BadSocks("only SOCKS5's CONNECT is supported: no UDP, no BIND", reply(SocksReply.COMMAND_NOT_SUPPORTED))
    if data[3:4] and data[3] not in (_IPV4, _NAME, _IPV6):
        raise BadSocks("an address of an unknown kind", reply(SocksReply.ADDRESS_NOT_SUPPORTED))


def _target(kind: int, host: bytes, port: int) -> HostPort:
    if not port:
        raise BadSocks("port 0 can't be connected to", reply(SocksReply.FAILED))
    if kind != _NAME:
        return HostPort(host=canonical_address(host), port=port, is_address=True)
    try:
        name = canonical_host(host.decode("ascii"))
    except (BadHost, UnicodeDecodeError):
        raise BadSocks("the name is not a host name", reply(SocksReply.FAILED)) from None
    return HostPort(host=name, port=port, is_address=is_address(name))
