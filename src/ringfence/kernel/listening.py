"""Sockets of a network namespace that somebody outside it accepts on, and the routes that lead every address to them.

A socket belongs to the network namespace that it was made in, whoever holds it later. With a local default route on the
loopback («AnyIP») every address there is can be bound, and leads to whoever listens there, or nowhere. Runs in a new
network namespace, before capabilities are dropped; it decides nothing about who may be reached.
"""

from __future__ import annotations

import _socket
import errno
import os
from _collections_abc import Iterator
from struct import Struct, pack

from ringfence.transport import passing

TYPE_CHECKING = False
if TYPE_CHECKING:
    Row = tuple[str, int, str]
    """Address, port, and ``tcp``, ``udp`` or ``spare``: one of TCP that is not bound."""

# How many connections may wait for the gateway; the kernel caps this at net.core.somaxconn.
_BACKLOG = 1024

# linux/netlink.h and linux/rtnetlink.h
_HEAD, _ROUTE, _CODE = Struct("=IHHII"), Struct("=8BI"), Struct("=i")
_NEW_ROUTE, _ERROR = 24, 2
_REQUEST, _ACKNOWLEDGE, _EXCLUSIVE, _CREATE = 0x1, 0x4, 0x200, 0x400
_TABLE_LOCAL, _BY_US, _SCOPE_HOST, _LOCAL, _OUT_INTERFACE = 255, 4, 254, 2, 4
_ROUTE_NETLINK = 0
_LOOPBACK = 1
"""The number of its interface, in every network namespace."""
_ANSWER_BYTES = 4096
_KINDS = {"tcp": _socket.SOCK_STREAM, "spare": _socket.SOCK_STREAM, "udp": _socket.SOCK_DGRAM}
IPV6_FREEBIND = 78
"""A route makes an IPv4 address one of ours; binding an IPv6 address takes this as well."""
_NOBODY = pack("=H14x", _socket.AF_UNSPEC)
_ABSENT = (errno.EAFNOSUPPORT, errno.EOPNOTSUPP, errno.ENODEV, errno.EINVAL, errno.EACCES, errno.EPERM)
"""What the kernel says where it has no IPv6, or where that is switched off."""


def lead_everywhere_here(*, ipv6: bool) -> None:
    """Make every address one of this host. ``ipv6``: IPv6 is required; otherwise the kernel may lack it."""
    link = _socket.socket(_socket.AF_NETLINK, _socket.SOCK_RAW | _socket.SOCK_CLOEXEC, _ROUTE_NETLINK)
    try:
        _add_route(link, _socket.AF_INET, _LOOPBACK)
        try:
            _add_route(link, _socket.AF_INET6, _LOOPBACK)
        except OSError as error:
            if ipv6 or error.errno not in _ABSENT:
                raise
    finally:
        link.close()


def _add_route(link: _socket.socket, family: int, interface: int) -> None:
    link.send(route_message(family, interface))
    answer = link.recv(_ANSWER_BYTES)
    kind, code = _HEAD.unpack_from(answer)[1], _CODE.unpack_from(answer, _HEAD.size)[0]
    if kind != _ERROR:
        raise OSError(errno.EPROTO, "the kernel did not acknowledge a new route")
    if code and -code != errno.EEXIST:
        raise OSError(-code, os.strerror(-code))


def route_message(family: int, interface: int) -> bytes:
    """Return the request for a local default route, as ``ip route add local default dev lo`` sends it."""
    route = _ROUTE.pack(family, 0, 0, 0, _TABLE_LOCAL, _BY_US, _SCOPE_HOST, _LOCAL, 0)
    route += pack("=HHI", 8, _OUT_INTERFACE, interface)
    flags = _REQUEST | _ACKNOWLEDGE | _CREATE | _EXCLUSIVE
    return _HEAD.pack(_HEAD.size + len(route), _NEW_ROUTE, flags, 1, 0) + route


def has_ipv6() -> bool:
    """Return whether this kernel has IPv6 at all."""
    try:
        _socket.socket(_socket.AF_INET6, _socket.SOCK_STREAM, 0).close()
    except OSError:
        return False
    return True


def sockets(rows: list[Row]) -> Iterator[list[int]]:
    """Make a socket for each row, in their order, in groups that fit into one message; the taker closes its group."""
    waiting: list[int] = []
    for address, port, kind in rows:
        if kind == "spare" and ":" in address and not has_ipv6():
            continue
        waiting.append(_made(_KINDS[kind], address, port, bound=kind != "spare"))
        if len(waiting) == passing.MAX_DESCRIPTORS:
            yield waiting
            waiting = []
    if waiting:
        yield waiting


def disconnect(descriptor: int) -> None:
    """Reset a TCP socket to a new one's state, whether it was connected or listened; Python has no such address."""
    from ringfence.kernel import syscalls

    syscalls.call("connect", descriptor, _NOBODY, len(_NOBODY))


def _made(kind: int, address: str, port: int, *, bound: bool) -> int:
    """A guest that bound the same port would share it with us: so no SO_REUSEPORT, and for UDP no SO_REUSEADDR."""
    family = _socket.AF_INET6 if ":" in address else _socket.AF_INET
    made = _socket.socket(family, kind | _socket.SOCK_CLOEXEC | _socket.SOCK_NONBLOCK, 0)
    try:
        if family == _socket.AF_INET6:
            made.setsockopt(_socket.IPPROTO_IPV6, _socket.IPV6_V6ONLY, 1)
            made.setsockopt(_socket.IPPROTO_IPV6, IPV6_FREEBIND, 1)
        if kind == _socket.SOCK_STREAM:
            made.setsockopt(_socket.SOL_SOCKET, _socket.SO_REUSEADDR, 1)
        if bound:
            made.bind((address, port))
        if bound and kind == _socket.SOCK_STREAM:
            made.listen(_BACKLOG)
    except OSError as error:
        made.close()
        raise OSError(error.errno, f"{address} port {port}: {error.strerror}") from error
    return made.detach()
