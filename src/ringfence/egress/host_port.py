"""Brings ``host:port``, as guests write it in HTTP and SOCKS5, to one spelling that can be compared, or refuses it.

An address has many spellings (decimal, octal, hexadecimal, short, mapped into IPv6), and programs differ in which ones
they accept. Only the plain spelling is read; anything that could be an address in another spelling is refused
(``model/host_text``).
"""

from __future__ import annotations

import ipaddress

from ringfence.model.host_text import LAST_PORT, asked_host, is_address
from ringfence.model.record import record

_DIGITS = frozenset("0123456789")


class BadHost(Exception):
    """It is no host, or no host and port; the text says why."""


@record
class HostPort:
    host: str
    """A name in lower case without a final dot, or an address in its plain spelling."""
    port: int | None = None
    """None: no port is written."""
    is_address: bool = False

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port is None else f"{host}:{self.port}"


def host_port(text: str) -> HostPort:
    """Read ``name``, ``name:80``, ``192.0.2.1``, ``[2001:db8::1]:80`` and their like.

    >>> str(host_port("API.Example.COM.:443"))
    'api.example.com:443'
    """
    if text.startswith("["):
        inside, bracket, rest = text.partition("]")
        if not bracket or ":" not in inside or (rest and not rest.startswith(":")):
            raise BadHost("brackets hold an IPv6 address, and a port follows them")
        host, colon, port = f"{inside}]", rest[:1], rest[1:]
    else:
        host, colon, port = text.partition(":")
    host = canonical_host(host)
    return HostPort(host=host, port=_port(port) if colon else None, is_address=is_address(host))


def canonical_host(text: str) -> str:
    """Return a name in lower case without a final dot, or an address in its plain spelling."""
    try:
        return asked_host(text)
    except ValueError as error:
        raise BadHost(str(error)) from None


def canonical_address(packed: bytes) -> str:
    """Return the plain spelling of an address of 4 or 16 bytes; an IPv4-mapped one becomes its IPv4 address."""
    address = ipaddress.ip_address(packed)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def _port(text: str) -> int:
    if not text or not _DIGITS.issuperset(text) or len(text) > 5 or text[0] == "0" or int(text) > LAST_PORT:
        raise BadHost(f"its port is not a number from 1 to {LAST_PORT}")
    return int(text)
