"""The gateway's way out: a name is resolved once, each address is checked, and only checked addresses are connected to.

Nothing is remembered from one connection to the next: what a resolver answers later counts for later connections.
"""

from __future__ import annotations

import asyncio
import errno
import os
import select
import socket
import threading
from queue import SimpleQueue
from struct import Struct
from typing import TYPE_CHECKING

from ringfence.egress.addresses import TargetKind
from ringfence.egress.host_port import HostPort

if TYPE_CHECKING:
    from ringfence.egress.connection import Connection

RESOLVERS, OF_EACH = 16, 2
"""How many names are resolved at a time, for all sandboxes and for one, whose name servers may be silent."""
_STACK_BYTES = 1 << 20
_MOST_ADDRESSES = 16
"""Addresses of one name, in order: each costs a look-up in the kernel's routes, and an answer may have thousands."""
RESOLVE_S, CONNECT_S = 10.0, 15.0
_WIDE, _ALL_WIDE, _NARROW = 16, 64, 128
_NARROW_BYTES, _NARROWEST_BYTES = 1 << 17, 1 << 14
_EACH_S = 6.0
"""How long one of several addresses may take."""

Address = tuple[int, str, tuple[str | int, ...]]
"""Family, the address as text, and what connect takes."""

_Question = tuple[str, int, "asyncio.Future[list[Address]]", asyncio.Semaphore]


CLOSED = "the sandbox was closed"


class Unreachable(Exception):
    """The name or the address can't be reached; the text says why."""

    decision, status = "ended", 502


class Refused(Exception):
    """It may not be reached, or not so; the text says why and what to do. ``status`` is that of an HTTP response."""

    decision = "refused"

    def __init__(self, reason: str, status: int = 403) -> None:
        super().__init__(reason)
        self.status = status


class Resolver:
    """A few threads that ask the system's resolver. They start before the gateway gives up the right to make more."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.questions: SimpleQueue[_Question] = SimpleQueue()
        before = threading.stack_size(_STACK_BYTES)
        for number in range(RESOLVERS):
            threading.Thread(target=self._work, name=f"resolver-{number}", daemon=True).start()
        threading.stack_size(before)

    def _work(self) -> None:
        while True:
            name, port, answer, share = self.questions.get()
            found: list[Address] | Exception
            try:
                found = [] if answer.cancelled() else lookup(name, port)
            except (OSError, UnicodeError, MemoryError) as error:
                found = error
            try:
                self.loop.call_soon_threadsafe(_settle, answer, found, share)
            except RuntimeError:
                return  # the gateway ends

    async def addresses(self, name: str, port: int, share: asyncio.Semaphore) -> list[Address]:
        """Return the addresses of the name, asked for now; Unreachable where there are none. ``share``: the sandbox's
        part of the threads; a thread stays in use until it has an answer, even if nobody waits for it."""
        try:
            async with asyncio.timeout(RESOLVE_S):
                await share.acquire()
                answer: asyncio.Future[list[Address]] = self.loop.create_future()
                self.questions.put((name, port, answer, share))
                return await answer
        except TimeoutError:
            raise Unreachable(f"{name} could not be resolved within {RESOLVE_S:g} s") from None
        except (OSError, UnicodeError, MemoryError) as error:
            problem = error.strerror if isinstance(error, OSError) else "it is not a name that can be looked up"
            raise Unreachable(f"{name} could not be resolved: {problem}") from None


def _settle(
    answer: asyncio.Future[list[Address]], found: list[Address] | Exception, share: asyncio.Semaphore
) -> None:
    share.release()
    if answer.done():
        return
    if isinstance(found, Exception):
        answer.set_exception(found)
    else:
        answer.set_result(found)


def lookup(name: str, port: int) -> list[Address]:
    """Ask the system's resolver; each address once, in its order, and not too many of them."""
    # As bytes: a text would be converted once more, by other rules than the policy's.
    rows = socket.getaddrinfo(name.encode("ascii"), port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    found: dict[Address, None] = {}
    for family, _, _, _, place in rows:
        if family in (socket.AF_INET, socket.AF_INET6):
            found[int(family), str(place[0]), tuple(place)] = None  # type: ignore[arg-type]
    return list(found)[:_MOST_ADDRESSES]


def literal(address: str, port: int) -> Address:
    """Return an address that was given as an address; no resolver is asked."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return family, address, (address, port, 0, 0) if family == socket.AF_INET6 else (address, port)


def buffer_bytes(own: int, all_of_them: int) -> int:
    """How much each buffer of the next connection holds; 0: the kernel decides, and may choose 32 MiB.

    A client that asks for much and reads nothing fills memory that the kernel counts for everybody: so only a few
    connections of a sandbox get that much, and the more there are, the less each gets. ``own``: those that the sandbox
    has, ``all_of_them``: those of all sandboxes.
    """
    if own < _WIDE and all_of_them < _ALL_WIDE:
        return 0
    return _NARROW_BYTES if own < _NARROW else _NARROWEST_BYTES


def narrow(link: socket.socket, size: int) -> None:
    """Give both buffers of a socket this size, for good; 0: leave them to the kernel."""
    if size:
        link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, size)
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)


async def connect(
    addresses: list[Address], buffers: int = 0, begun: socket.socket | OSError | None = None
) -> tuple[socket.socket, str]:
    """Connect to the first that answers, and to no other than these: they were checked. Unreachable says why not.

    Returned is the connection with its address, as a server that has reset it by then can't be asked. ``buffers``: how
    much each holds, as ``buffer_bytes`` says it. ``begun``: what ``begin`` gave for the first, or the error it raised.
    """
    loop = asyncio.get_running_loop()
    give_up, problem = loop.time() + CONNECT_S, "there is no address"
    for family, text, place in addresses:
        left = give_up - loop.time()
        if left <= 0:
            problem = f"no address answered within {CONNECT_S:g} s"
            break
        try:
            if isinstance(begun, OSError):
                raise begun
            link = begun if begun is not None else begin((family, text, place), buffers)
            return await _connected(loop, link, place, min(_EACH_S, left)), text
        except (OSError, TimeoutError) as error:
            problem = f"{text} does not answer: {_told(error)}"
        begun = None
    raise Unreachable(problem)


def _told(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno is not None:
        return os.strerror(error.errno)
    return f"no answer within {_EACH_S:g} s"


def begin(address: Address, buffers: int = 0) -> socket.socket:
    """Begin to connect, without waiting for an answer; OSError where a refusal has come already."""
    family, _, place = address
    link = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC, socket.IPPROTO_TCP)
    try:
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        narrow(link, buffers)
        code = link.connect_ex(place)
        if code not in (0, errno.EINPROGRESS):
            raise OSError(code, os.strerror(code))
    except BaseException:
        link.close()
        raise
    return link


def is_connected(link: socket.socket) -> bool:
    """Return whether the other side has answered by now, as one on this host has; OSError: it refused."""
    poller = select.poll()
    poller.register(link, select.POLLOUT)
    if not poller.poll(0):
        return False
    code = link.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if code:
        raise OSError(code, os.strerror(code))
    return True


def begin_at_once(connection: Connection) -> None:
    """Do what needs no waiting in the turn of the loop that accepts a connection: connect to a listed address, and send
    what the client has said by then. The connection's task finds that done later, or decides anew; so errors are not
    reported here."""
    if connection.target.kind is not TargetKind.ADDRESS or connection.side.closing:
        return
    host = connection.target.host
    try:
        rule = connection.decide(HostPort(host=host, is_address=True), connection.port)
        if not rule.needs_inspection:
            _connect(connection, literal(host, connection.port))
    except Refused:
        pass
    except OSError as error:
        connection.begun = error


def _connect(connection: Connection, address: Address) -> None:
    link = connection.begun = begin(address, connection.buffer_bytes)
    try:
        if not is_connected(link):
            return
    except OSError:
        link.close()
        raise
    connection.server, connection.begun = link, None
    connection.reached(address[1])  # before a byte moves: from then on nothing takes it for one that never began
    connection.begin_both(link)


async def _connected(
    loop: asyncio.AbstractEventLoop, link: socket.socket, place: tuple[str | int, ...], within_s: float
) -> socket.socket:
    """Wait for the answer to what was begun."""
    try:
        if not is_connected(link):
            async with asyncio.timeout(within_s):
                await loop.sock_connect(link, place)
    except BaseException:
        link.close()
        raise
    return link


_HEADER, _ROUTE, _ATTRIBUTE = Struct("=IHHII"), Struct("=8BI"), Struct("=HH")
_GET_ROUTE, _NEW_ROUTE, _REQUEST, _DESTINATION = 26, 24, 1, 1
_UNICAST = 1
_ERROR = 2
_KERNEL = (0, 0)
_ONE_SECOND = Struct("@ll").pack(1, 0)


class _Routes(threading.local):
    """The way to the kernel's routes. It stays open, for it is asked for each connection."""

    def __init__(self) -> None:
        self.owner = self.number = 0
        self.link: socket.socket | None = None

    def ask(self, question: bytes) -> bytes:
        """Return the kernel's answer to this question, and to no other."""
        link, self.number = self._link(), (self.number + 1) & 0xFFFFFFFF
        length = _HEADER.size + len(question)
        try:
            link.sendto(_HEADER.pack(length, _GET_ROUTE, _REQUEST, self.number, 0) + question, _KERNEL)
            while True:
                answer, sender = link.recvfrom(8192)
                if sender[0] == _KERNEL[0] and _HEADER.unpack_from(answer)[3] == self.number:
                    return answer
        except OSError:
            self.link = None
            raise

    def _link(self) -> socket.socket:
        """A link that was inherited by fork may belong to another network namespace."""
        if self.link is None or self.owner != os.getpid():
            self.link = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0)
            self.link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _ONE_SECOND)
            self.owner = os.getpid()
        return self.link


_routes = _Routes()


def is_own(address: str) -> bool:
    """Whether the kernel would keep a connection to this address on this host, by its routes of this moment.

    That is more than a list of interfaces says: addresses of local routes count, and late ones are not missed.
    Broadcast and the like, to which nobody can connect, count too.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    packed = socket.inet_pton(family, address.partition("%")[0])
    attribute = _ATTRIBUTE.pack(_ATTRIBUTE.size + len(packed), _DESTINATION) + packed
    route = _ROUTE.pack(family, len(packed) * 8, 0, 0, 0, 0, 0, 0, 0)
    answer = _routes.ask(route + attribute)
    kind: int = _HEADER.unpack_from(answer)[1]
    if kind == _ERROR:
        return False  # no route: nothing is reached either
    leads: int = _ROUTE.unpack_from(answer, _HEADER.size)[7]
    return kind != _NEW_ROUTE or leads != _UNICAST
