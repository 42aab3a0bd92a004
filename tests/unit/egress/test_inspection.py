"""Connections whose requests are looked at, in one event loop: guest, gateway and server over socket pairs."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import pytest

from ringfence.egress.authority import Authority
from ringfence.egress.inspection import Terms, inspect, verifying
from ringfence.egress.links import Link, LinkError, LinkLimitReached, TlsLink
from ringfence.egress.request_rules import InspectedRule, Secret

NAME = "a.example"
SECRET = Secret(header="x-api-key", value=b"s3cret")
OWN, REAL = Authority(), Authority()
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"
Part = Callable[[Link], Awaitable[object]]


class Counted:
    """A gauge without a limit, unless it has one."""

    def __init__(self, most: int = 1 << 40) -> None:
        self.most, self.bytes = most, 0

    def room(self) -> int:
        return self.most - self.bytes

    def add(self, count: int) -> None:
        self.bytes += count

    def reason(self) -> str:
        return "the limit of this test is reached"


class Ended(NamedTuple):
    """How a connection ended, in the words of its event."""

    decision: str = "allowed"
    reason: str = ""


class World:
    """What the gateway's part is given, and what came of it."""

    def __init__(self, rule: InspectedRule, server: Part, *, real: Authority = REAL, served: str = NAME) -> None:
        self.rule, self.server, self.real, self.served = rule, server, real, served
        self.out, self.back = Counted(), Counted()
        self.opened = 0
        self.ended = Ended()
        self.tasks: list[asyncio.Task[object]] = []

    async def connect(self) -> socket.socket:
        self.opened += 1
        ours, theirs = pair()
        self.tasks.append(asyncio.create_task(self._serve(theirs)))
        return ours

    async def _serve(self, link: socket.socket) -> None:
        tls = TlsLink(link)
        tls.start(self.real.context_for(self.served))
        try:
            await tls.handshake()
            await self.server(tls)
        except (ssl.SSLError, LinkError):
            pass
        finally:
            await tls.finish()
            tls.close()

    def settle(self, decision: str, reason: str) -> None:
        self.ended = Ended(decision, reason)

    def terms(self, asked_port: int, connect: Callable[[], Awaitable[socket.socket | str]] | None) -> Terms:
        return Terms(rule=self.rule, asked_port=asked_port, authority=OWN, trust=verifying(REAL.pem()),
                     connect=connect or self.connect, out=self.out, back=self.back, touch=lambda: None,
                     turn=asyncio.Lock(), settle=self.settle)  # fmt: skip


def pair() -> tuple[socket.socket, socket.socket]:
    ends = socket.socketpair()
    for end in ends:
        end.setblocking(False)
    return ends


def play(
    guest: Part,
    server: Part,
    rule: InspectedRule | None = None,
    *,
    tls: bool = True,
    world: World | None = None,
    connect: Callable[[], Awaitable[socket.socket | str]] | None = None,
) -> Ended:
    """Have all three play; return how the gateway's part ended."""
    played = world or World(rule or InspectedRule(name=NAME, inject=SECRET), server)

    async def both() -> Ended:
        inside, outside = pair()
        task = asyncio.create_task(gateway(outside, played.terms(443 if tls else 80, connect), tls=tls))
        link: Link = Link(inside)
        if tls:
            link = TlsLink(inside)
            context = ssl.create_default_context(cadata=OWN.pem())
            link.start(context, server_name=NAME)
            await link.handshake()
        await guest(link)
        link.close()
        await task
        for each in played.tasks:
            await each
        return played.ended

    return asyncio.run(both())


async def gateway(client: socket.socket, terms: Terms, *, tls: bool) -> None:
    """What a connection does with its client."""
    try:
        await inspect(client, b"", terms, tls=tls)
    finally:
        client.close()


async def until(link: Link, mark: bytes) -> bytes:
    """Read until what was read ends with the mark, or nothing more comes."""
    found = b""
    while not found.endswith(mark):
        try:
            data = await link.read()
        except LinkError:
            break
        if not data:
            break
        found += data
    return found


def says(request: bytes, seen: list[bytes], mark: bytes = b"") -> Part:
    """A guest that sends a request, and keeps what it gets up to a mark."""

    async def guest(link: Link) -> None:
        await link.write(request)
        seen.append(await until(link, mark or b"\0never"))

    return guest


def answers(response: bytes, seen: list[bytes] | None = None, mark: bytes = b"\r\n\r\n") -> Part:
    """A server that reads up to a mark and answers, until nothing comes."""

    async def server(link: Link) -> None:
        while request := await until(link, mark):
            if seen is not None:
                seen.append(request)
            await link.write(response)

    return server


def request(line: str = "GET /", *headers: str, host: str = NAME) -> bytes:
    return "\r\n".join((f"{line} HTTP/1.1", f"Host: {host}", *headers, "", "")).encode("ascii")


@pytest.mark.parametrize("tls", [True, False])
def test_a_request_reaches_the_server_by_tls_with_the_injected_header(tls: bool) -> None:
    got: list[bytes] = []
    asked: list[bytes] = []
    ended = play(says(request("GET /x", "X-Api-Key: mine", "A: b"), got, b"hi"), answers(OK, asked), tls=tls)
    assert asked == [b"GET /x HTTP/1.1\r\nHost: a.example\r\nA: b\r\nx-api-key: s3cret\r\n\r\n"]
    assert got == [OK] and ended == Ended()


def test_requests_that_follow_each_other_use_one_connection_and_are_each_judged() -> None:
    async def guest(link: Link) -> None:
        for _ in range(3):
            await link.write(request())
            assert await until(link, b"hi") == OK
        await link.write(request(host="b.example"))
        got.append(await until(link, b"\0never"))

    got: list[bytes] = []
    world = World(InspectedRule(name=NAME, inject=SECRET), answers(OK))
    ended = play(guest, world.server, world=world)
    assert world.opened == 1 and b"421" in got[0] and b"s3cret" not in got[0]
    assert ended.decision == "refused" and "b.example" in ended.reason
    assert world.out.bytes and world.back.bytes


def test_requests_sent_at_once_are_answered_in_order() -> None:
    got: list[bytes] = []
    seen: list[bytes] = []
    last = request("GET /3", "Connection: close")
    play(says(request("GET /1") + request("GET /2") + last, got), answers(OK, seen))
    assert [each.split(b" ")[1] for each in seen] == [b"/1", b"/2", b"/3"]
    assert got[0].count(b"200 OK") == 3


def test_a_refused_request_opens_no_connection_and_is_told_in_words() -> None:
    got: list[bytes] = []
    world = World(InspectedRule(name=NAME, methods=("GET",), inject=SECRET), answers(OK))
    ended = play(says(request("DELETE /x"), got), world.server, world=world)
    assert world.opened == 0 and got[0].startswith(b"HTTP/1.1 403 ")
    assert b'add "DELETE" to methods of a.example in network' in got[0]
    assert ended == Ended(decision="refused", reason=ended.reason) and "DELETE" in ended.reason


BODIES = [
    ("Content-Length: 5", b"hello", b"hello"),
    ("Transfer-Encoding: chunked", b"3\r\nhel\r\n2;x=y\r\nlo\r\n0\r\nT: x\r\n\r\n", b"0\r\n\r\n"),
]


@pytest.mark.parametrize(("header", "body", "end"), BODIES)
def test_bodies_pass_in_both_ways_of_framing(header: str, body: bytes, end: bytes) -> None:
    got: list[bytes] = []
    seen: list[bytes] = []
    play(says(request("POST /", header) + body, got, b"hi"), answers(OK, seen, end))
    assert got == [OK] and seen[0].endswith(b"hello" if end == b"hello" else b"lo\r\n0\r\n\r\n")
    assert b"T: x" not in seen[0]


def test_large_bodies_pass_whole_in_both_directions() -> None:
    body = bytes(range(256)) * 8192

    async def server(link: Link) -> None:
        found = await until(link, b"end")
        await link.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        echoed = found[found.index(b"\r\n\r\n") + 4 :]
        await link.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(echoed), echoed))

    async def guest(link: Link) -> None:
        sending = asyncio.create_task(link.write(request("POST /", f"Content-Length: {len(body) + 3}") + body + b"end"))
        got.append(await until(link, b"0\r\n\r\n"))
        await sending

    got: list[bytes] = []
    assert play(guest, server) == Ended()
    reader = got[0].split(b"\r\n\r\n", 1)[1]
    assert reader.count(b"\xfd\xfe\xff") == 8192


def test_continue_is_passed_on() -> None:
    async def guest(link: Link) -> None:
        await link.write(request("POST /", "Content-Length: 2", "Expect: 100-continue"))
        assert (await until(link, b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
        await link.write(b"ab")
        assert await until(link, b"hi") == OK

    async def server(link: Link) -> None:
        await until(link, b"\r\n\r\n")
        await link.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        assert await until(link, b"ab") == b"ab"
        await link.write(OK)

    assert play(guest, server) == Ended()


def test_a_server_may_answer_before_it_has_the_body() -> None:
    response = b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n"
    got: list[bytes] = []
    play(says(request("POST /", "Content-Length: 1000") + b"ab", got), answers(response, mark=b"ab"))
    assert got[0].startswith(b"HTTP/1.1 413 ")


def test_why_a_server_takes_no_more_of_a_body_is_passed_on() -> None:
    async def server(link: Link) -> None:
        found = b""
        while b"\r\n\r\n" not in found:  # some of the body may come with it
            found += await link.read()
        link.socket.shutdown(socket.SHUT_RD)
        await asyncio.sleep(0.1)  # until the body can't be sent any more
        await link.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")

    async def guest(link: Link) -> None:
        sending = asyncio.create_task(link.write(request("POST /", "Content-Length: 9000000") + bytes(8_000_000)))
        got.append(await until(link, b"\r\n\r\n"))
        sending.cancel()

    got: list[bytes] = []
    play(guest, server)
    assert got[0].startswith(b"HTTP/1.1 413 ")


def test_a_guest_of_http_1_0_gets_one_response() -> None:
    got: list[bytes] = []
    old = b"GET / HTTP/1.0\r\nHost: a.example\r\n\r\n"
    play(says(old, got), answers(b"HTTP/1.1 103 Early Hints\r\n\r\n" + OK))
    assert got[0].startswith(b"HTTP/1.1 200 ") and got[0].endswith(b"hi")


@pytest.mark.parametrize(("line", "response"), [
    ("HEAD /", b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n"), ("GET /", b"HTTP/1.1 204 No Content\r\n\r\n"),
    ("GET /", b"HTTP/1.1 304 Not Modified\r\nContent-Length: 500\r\n\r\n"),
])  # fmt: skip
def test_responses_without_a_body_end_with_their_head(line: str, response: bytes) -> None:
    async def guest(link: Link) -> None:
        for _ in range(2):
            await link.write(request(line))
            assert await until(link, b"\r\n\r\n") == response

    assert play(guest, answers(response)) == Ended()


def test_a_response_that_ends_with_its_connection_is_framed_for_the_guest() -> None:
    async def server(link: Link) -> None:
        await until(link, b"\r\n\r\n")
        await link.write(b"HTTP/1.0 200 OK\r\n\r\nhello")

    got: list[bytes] = []
    play(says(request(), got, b"0\r\n\r\n"), server)
    assert b"transfer-encoding: chunked" in got[0].lower() and b"hello" in got[0]


def test_a_response_cut_off_is_not_made_whole() -> None:
    async def server(link: Link) -> None:
        await until(link, b"\r\n\r\n")
        await link.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")

    got: list[bytes] = []
    ended = play(says(request(), got), server)
    assert b"hello" in got[0] and not got[0].endswith(b"0\r\n\r\n") and ended.decision == "ended"


def test_a_server_that_closed_is_connected_anew_for_the_next_request() -> None:
    async def server(link: Link) -> None:
        await until(link, b"\r\n\r\n")
        await link.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi")

    async def guest(link: Link) -> None:
        for _ in range(2):
            await link.write(request())
            assert await until(link, b"hi") == OK

    world = World(InspectedRule(name=NAME, inject=SECRET), server)
    assert play(guest, server, world=world) == Ended() and world.opened == 2


UPSTREAM_PROBLEMS = {
    "another authority": ({"real": Authority()}, b"not valid"),
    "another name": ({"served": "b.example"}, b"not valid"),
}


@pytest.mark.parametrize(("change", "told"), UPSTREAM_PROBLEMS.values(), ids=UPSTREAM_PROBLEMS.keys())
def test_a_server_that_is_not_the_real_one_gets_nothing(change: dict[str, object], told: bytes) -> None:
    got: list[bytes] = []
    seen: list[bytes] = []
    rule = InspectedRule(name=NAME, inject=SECRET)
    world = World(rule, answers(OK, seen), **change)  # type: ignore[arg-type]
    ended = play(says(request(), got), world.server, world=world)
    assert got[0].startswith(b"HTTP/1.1 502 ") and told in got[0] and seen == []
    assert ended.decision == "ended" and "certificate" in ended.reason


def test_why_a_server_is_not_reached_is_told() -> None:
    async def nobody() -> str:
        return "192.0.2.1 does not answer"

    got: list[bytes] = []
    ended = play(says(request(), got), answers(OK), connect=nobody)
    assert b"192.0.2.1 does not answer" in got[0] and got[0].startswith(b"HTTP/1.1 502 ")
    assert ended == Ended(decision="ended", reason="a.example can't be reached: 192.0.2.1 does not answer")


@pytest.mark.parametrize("response", [b"SSH-2.0-x\r\n\r\n", b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\n\r\n", b""])
def test_a_server_that_speaks_something_else_is_not_passed_on(response: bytes) -> None:
    async def server(link: Link) -> None:
        await until(link, b"\r\n\r\n")
        await link.write(response)

    got: list[bytes] = []
    ended = play(says(request(), got), server)
    assert got[0].startswith(b"HTTP/1.1 502 ") and ended.decision == "ended" and b"s3cret" not in got[0]


def test_a_limit_of_bytes_ends_the_connection_and_is_told() -> None:
    async def guest(link: Link) -> None:
        await link.write(request("POST /", "Content-Length: 500000") + bytes(100_000))
        assert await until(link, b"\0never") == b""

    world = World(InspectedRule(name=NAME, inject=SECRET), answers(OK, mark=b"never"))
    world.out = Counted(50_000)
    ended = play(guest, world.server, world=world)
    assert ended == Ended(decision="ended", reason="the limit of this test is reached") and world.out.bytes <= 50_000


def test_a_guest_with_authorities_of_its_own_is_told_of_in_words() -> None:
    async def refused() -> Ended:
        inside, outside = pair()
        world = World(InspectedRule(name=NAME, inject=SECRET), answers(OK))
        task = asyncio.create_task(gateway(outside, world.terms(443, None), tls=True))
        link = TlsLink(inside)
        link.start(ssl.create_default_context(cadata=REAL.pem()), server_name=NAME)
        with pytest.raises(ssl.SSLCertVerificationError):
            await link.handshake()
        link.close()
        await task
        return world.ended

    ended = asyncio.run(refused())
    assert ended.decision == "ended" and "SSL_CERT_FILE" in ended.reason


def test_a_guest_that_goes_away_is_no_error() -> None:
    async def guest(link: Link) -> None:
        await link.write(b"GET / HTT")

    assert play(guest, answers(OK)).decision == "refused"

    async def silent(link: Link) -> None:
        pass

    assert play(silent, answers(OK)) == Ended()


def test_a_refusal_is_known_before_the_guest_is_told() -> None:
    """A guest that neither reads nor closes is waited for. Its sandbox may end meanwhile; the refusal still counts."""

    async def refused() -> Ended:
        inside, outside = pair()
        with inside:
            inside.send(request("DELETE /").replace(b"a.example", b"b.example"))
            world = World(InspectedRule(name=NAME, inject=SECRET), answers(OK))
            task = asyncio.create_task(gateway(outside, world.terms(80, None), tls=False))
            while not world.ended.reason:
                await asyncio.sleep(0.001)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            return world.ended

    ended = asyncio.run(refused())
    assert ended.decision == "refused" and "b.example" in ended.reason


def test_connections_that_send_at_once_share_one_limit() -> None:
    """Each finds room before any of them has sent."""
    gauge = Counted(1000)

    async def sends(link: Link) -> int:
        try:
            await link.write(b"x" * 900)
        except LinkLimitReached:
            return 0
        return 900

    async def all_at_once() -> int:
        pairs = [pair() for _ in range(5)]
        return sum(await asyncio.gather(*(sends(Link(ours, out=gauge)) for ours, _ in pairs)))

    assert asyncio.run(all_at_once()) == 900 and gauge.bytes == 900


def test_connections_that_receive_at_once_share_one_limit() -> None:
    gauge = Counted(1000)

    async def receives(link: Link) -> int:
        try:
            return len(await link.read())
        except LinkLimitReached:
            return 0

    async def all_at_once() -> int:
        pairs = [pair() for _ in range(5)]
        waiting = [asyncio.create_task(receives(Link(ours, back=gauge))) for ours, _ in pairs]
        await asyncio.sleep(0.01)
        for _, theirs in pairs:
            theirs.send(b"x" * 900)
        return sum(await asyncio.gather(*waiting))

    assert asyncio.run(all_at_once()) == 900
