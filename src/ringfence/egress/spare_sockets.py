"""More sockets of a sandbox's network namespace, made outside it: for what came to the list after the sandbox was made.

A socket belongs to the namespace that it was made in, and so does what is accepted on it. One socket of a spare pair
connects to the other; the accepted socket then drops its connection, which leaves a socket that can be bound. So two
sockets are enough for any number, and nobody has to enter the sandbox.
"""

from __future__ import annotations

import errno
import os
import socket

from ringfence.kernel import listening

_BACKLOG = 1024
_MEETING = {socket.AF_INET: "127.64.0.3", socket.AF_INET6: "::1"}
_MEET_S = 0.2
_STRANGERS = 16
"""A guest may connect to where the pair meets, if it guesses the port in time."""


class SpareSockets:
    """What came from a sandbox without an address."""

    def __init__(self) -> None:
        self._pairs: dict[int, list[socket.socket]] = {}
        self.disturbed = False
        """A guest has kept a pair from connecting, which delays everybody that the gateway serves."""

    def add(self, spare: socket.socket) -> None:
        self._pairs.setdefault(spare.family, []).append(spare)

    def __len__(self) -> int:
        return sum(map(len, self._pairs.values()))

    def listening(self, family: int, address: str, port: int) -> socket.socket:
        """Return a new socket that listens there, in the sandbox; OSError where that can't be."""
        pair = self._pairs.get(family, [])
        if len(pair) < 2:
            raise OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))
        try:
            made = _another(*pair[:2])
        except TimeoutError:
            self.disturbed = True
            raise
        try:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                made.setsockopt(socket.IPPROTO_IPV6, listening.IPV6_FREEBIND, 1)
            made.bind((address, port))
            made.listen(_BACKLOG)
        except BaseException:
            made.close()
            raise
        return made

    def close(self) -> None:
        for pair in self._pairs.values():
            for spare in pair:
                spare.close()
        self._pairs.clear()


def _another(calls: socket.socket, hears: socket.socket) -> socket.socket:
    """Return an unbound socket of the sandbox's namespace; the pair can be used again."""
    if not hears.getsockname()[1]:
        hears.bind((_MEETING[socket.AddressFamily(hears.family)], 0))
    for each in (calls, hears):
        each.settimeout(_MEET_S)
    try:
        hears.listen(_STRANGERS)
        calls.connect(hears.getsockname())
        made = _accepted(calls, hears)
        _forget(made)
        return made
    finally:
        for each in (calls, hears):
            _forget(each)


def _accepted(calls: socket.socket, hears: socket.socket) -> socket.socket:
    for _ in range(_STRANGERS):
        made, caller = hears.accept()
        if caller == calls.getsockname():
            return made
        made.close()
    raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))


def _forget(link: socket.socket) -> None:
    """Undo a connection or a listening socket; the kernel keeps an error of that, once."""
    listening.disconnect(link.fileno())
    link.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
