"""Passes descriptors over a Unix socket (SCM_RIGHTS), straight through the C module.

The ``socket`` module builds its tables of constants at import, which costs a small run more than the
passing itself; its C half has everything that is needed here.
"""

from __future__ import annotations

import _socket
import errno
import os
import stat
import sys
import time
from _collections_abc import Iterable
from struct import Struct, calcsize

MAX_DESCRIPTORS = 8
MOST_UNDER_WAY = 140
_NARROW_BYTES = 53_248
"""The kernel doubles it, and counts at least 768 bytes for each message."""
_ONE = Struct("i")
HEAD_BYTES = 2
"""What says the kind of a message and the number of its descriptors."""
# macOS has no SEQPACKET for Unix sockets; a stream keeps messages with descriptors apart as well.
_KIND = _socket.SOCK_SEQPACKET if sys.platform == "linux" else _socket.SOCK_STREAM


def channel(*, is_narrow: bool = False) -> tuple[int, int]:
    """Two connected descriptors that carry whole messages with descriptors attached. ``is_narrow``: at most
    ``MOST_UNDER_WAY`` are on their way from our end; otherwise the host's settings decide."""
    ours, theirs = _socket.socketpair(_socket.AF_UNIX, _KIND, 0)
    if is_narrow:
        ours.setsockopt(_socket.SOL_SOCKET, _socket.SO_SNDBUF, _NARROW_BYTES)
    return _above_standard(ours.detach()), _above_standard(theirs.detach())


def _above_standard(descriptor: int) -> int:
    """Never 0, 1 or 2, which are free in some daemons: passing «standard input» on to a job must not pass a door."""
    if descriptor > 2:
        return descriptor
    import fcntl

    try:
        return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(descriptor)


LEADER, CLEANER, ZYGOTE, GO, JOB, END, DRAFT = b"l", b"k", b"m", b"g", b"j", b"e", b"d"
"""What a message says beside its descriptors: what they are for; that the receiver may go on; that the leader that
reports through the first is to be ended (closing the second is the answer); or that the file is a draft."""
REGISTER, SOCKETS, LAST_SOCKET = b"r", b"s", b"e"
"""To the gateway: a sandbox, by its two channels; sockets of a sandbox to accept on, and that there are no more."""


def send(door: int, kind: bytes, descriptors: list[int], body: bytes = b"", *, patient: bool = True) -> None:
    """Send copies of the descriptors, with a few words; OSError if the other side is gone, or, if not ``patient``,
    ``TOO_MANY_UNDER_WAY``."""
    rights = Struct(f"{len(descriptors)}i").pack(*descriptors)
    message = kind + bytes((len(descriptors),)) + body
    give_up = time.monotonic() + (_BUSY_WAIT_S if patient else -1.0)
    links: list[_socket.socket] = []
    try:
        # In one call: if a signal handler raises before the object has a name, its finalizer would close the door.
        links.extend(map(_socket.socket, [_socket.AF_UNIX], [_KIND], [0], [door]))
        while not _sent(links[0], message, rights, time.monotonic() > give_up):
            time.sleep(0.002)
    finally:
        for link in links:
            link.detach()


def _sent(link: _socket.socket, message: bytes, rights: bytes, last_try: bool) -> bool:
    try:
        link.sendmsg([message], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)], _NO_SIGNAL)
    except OSError as error:
        # Too many descriptors in flight at once, for the kernel's bound per user and our own limit: it passes with
        # time.
        if error.errno != TOO_MANY_UNDER_WAY or last_try:
            raise
        return False
    return True


def take_no_more(door: int) -> None:
    """Senders from now on see that nobody is there; what was sent before is still received, then the end."""
    link = _socket.socket(_socket.AF_UNIX, _KIND, 0, door)
    try:
        link.shutdown(_socket.SHUT_RD)
    finally:
        link.detach()


def receive(door: int) -> tuple[bytes, list[int]]:
    """The next message and its descriptors, closed on exec; nothing when the other side is gone."""
    kind, descriptors, _ = receive_with_body(door, 0)
    return kind, descriptors


def receive_with_body(door: int, body_bytes: int) -> tuple[bytes, list[int], bytes]:
    """The same, with at most this many bytes of the text sent with it."""
    link = _socket.socket(_socket.AF_UNIX, _KIND, 0, door)
    try:
        room = _socket.CMSG_SPACE(MAX_DESCRIPTORS * calcsize("i"))
        message, ancillary, _, _ = link.recvmsg(HEAD_BYTES + body_bytes, room, _CLOSE_ON_EXEC)
    except ConnectionResetError:
        return b"", [], b""
    finally:
        link.detach()
    rights = b"".join(data for level, kind, data in ancillary if kind == _socket.SCM_RIGHTS)
    found = [number for (number,) in _ONE.iter_unpack(rights[: len(rights) - len(rights) % _ONE.size])]
    if len(message) >= HEAD_BYTES and message[1] != len(found):  # the kernel drops those without room
        for descriptor in found:
            os.close(descriptor)
        return message[:1], [], b""
    for descriptor in found if not _CLOSE_ON_EXEC else ():
        os.set_inheritable(descriptor, False)
    return message[:1], found, message[HEAD_BYTES:]


TOO_MANY_UNDER_WAY = errno.ETOOMANYREFS
_BUSY_WAIT_S = 10.0
_NO_SIGNAL = 0x4000 if sys.platform == "linux" else 0
_CLOSE_ON_EXEC = 0x40000000 if sys.platform == "linux" else 0


def give_pipes(descriptors: Iterable[int], identity: int) -> None:
    """Give a job the pipes that we made for its output: it may open /dev/stdout and /dev/stderr anew. 0: they are its
    own already."""
    for descriptor in descriptors if identity else ():
        if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            os.fchown(descriptor, identity, identity)
