"""The gateway's loop in a thread of the test, so that coverage sees it; what it is as a process is tested beside this.

Threads have network namespaces of their own: one is the gateway's, with its servers, and one the guests'.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import struct
import threading
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from tests.patience import eventually
from tests.unit.egress.test_gateway_kinds import certificate
from tests.unit.egress.tls_hellos import real_hello
from tests.unit.egress.world import NEWNET, _bound, check, echo, http, libc, read_all, response

from ringfence.egress import client, gateway, proxy_entry, told, upstream
from ringfence.egress.addresses import SPARES, AddressPlan
from ringfence.egress.connection import Connection
from ringfence.egress.relay import Pump
from ringfence.egress.sandbox_side import SandboxSide
from ringfence.errors import SetupError
from ringfence.kernel.mount import namespaces
from ringfence.model.network_rule import NetworkRule
from ringfence.transport import passing

pytestmark = [pytest.mark.system, pytest.mark.root]
ACCESS_DENIED = bytes((0x15, 3, 3, 0, 2, 2, 49))


class Inside:
    """A gateway, and sandboxes of it, in this thread's namespace."""

    def __init__(self) -> None:
        self.door, theirs = passing.channel()
        os.set_blocking(theirs, False)
        self.life = os.pidfd_open(os.getpid())
        self.thread = threading.Thread(target=lambda: asyncio.run(self._serve(theirs)))
        self.thread.start()
        self.made: list[client.Registration] = []
        self.outside = own_namespace()
        check(libc.unshare(NEWNET))
        namespaces.loopback_up()
        self.guests = own_namespace()

    def serve(self, port: int, how: Callable[[socket.socket], None]) -> None:
        check(libc.setns(self.outside, NEWNET))
        try:
            serve(port, how)
        finally:
            check(libc.setns(self.guests, NEWNET))

    async def _serve(self, door: int) -> None:
        self.gateway = gateway.Gateway(door, self.life)
        await self.gateway.serve()

    def guest(self, *rules: Any, **more: Any) -> client.Registration:
        parsed = [NetworkRule.of(rule) for rule in rules]
        made = client.Registration(SimpleNamespace(pid=os.getpid(), door=self.door))  # type: ignore[arg-type]
        self.made.append(made)
        made.change(parsed, **more)
        sockets = [_bound(*row) for row in (*AddressPlan.of(parsed).rows, *SPARES)]
        for start in range(0, len(sockets), 8):
            passing.send(made.listeners, passing.SOCKETS, [each.fileno() for each in sockets[start : start + 8]])
        passing.send(made.listeners, passing.LAST_SOCKET, [])
        made.handed_over()
        for each in sockets:
            each.close()
        return made

    def events(self, made: client.Registration, count: int = 1) -> list[Any]:
        found: list[Any] = []
        eventually(lambda: found.extend(made.receive()) or len(found) >= count, told=lambda: found)
        return sorted([*found, *made.close()], key=lambda event: float(event["time_s"]))

    def close(self) -> None:
        for made in self.made:
            made.close()
        os.close(self.door)
        self.thread.join(30)
        assert not self.thread.is_alive()
        for descriptor in (self.life, self.outside, self.guests):
            os.close(descriptor)


def own_namespace() -> int:
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def serve(port: int, how: Callable[[socket.socket], None]) -> None:
    listening = socket.create_server(("127.0.0.1", port), backlog=64)

    def loop() -> None:
        while True:
            link = listening.accept()[0]
            threading.Thread(target=quietly, args=(how, link), daemon=True).start()

    threading.Thread(target=loop, daemon=True).start()


def quietly(how: Callable[[socket.socket], None], link: socket.socket) -> None:
    try:
        with link:
            how(link)
    except OSError:
        pass


def to(address: str, port: int) -> socket.socket:
    return socket.create_connection((address, port), 30)


def get(host: str, more: str = "") -> bytes:
    return f"GET / HTTP/1.1\r\nHost: {host}\r\n{more}\r\n".encode()


@pytest.fixture
def inside(monkeypatch: pytest.MonkeyPatch):
    """Run the body of a test in a thread with a namespace of its own."""
    monkeypatch.setattr(gateway, "forbid_processes", lambda: None)

    def lookup(name: str, port: int) -> list[upstream.Address]:
        if name.startswith("gone"):
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [upstream.literal("127.0.0.1", port)]

    monkeypatch.setattr(upstream, "lookup", lookup)

    def run(body: Callable[[Inside], None]) -> None:
        problems: list[BaseException] = []

        def work() -> None:
            try:
                check(libc.unshare(NEWNET))
                namespaces.loopback_up()
                there = Inside()
                try:
                    body(there)
                finally:
                    there.close()
            except BaseException as error:
                problems.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        if problems:
            raise problems[0]

    return run


def test_names_are_held_to_what_is_said(inside: Any) -> None:
    def body(there: Inside) -> None:
        there.serve(80, http)
        there.serve(443, echo)
        guest = there.guest("api.example.com", "127.0.0.1:80,443", "gone.example.com")
        with to("127.64.1.0", 80) as link:
            for _ in range(2):
                link.sendall(get("api.example.com"))
                assert response(link).startswith(b"HTTP/1.1 200")
            link.sendall(get("other.example.com"))
            assert read_all(link).startswith(b"HTTP/1.1 421")
        with to("127.64.1.0", 80) as link:
            link.sendall(
                b"POST / HTTP/1.1\r\nHost: api.example.com\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
            )
            assert response(link).startswith(b"HTTP/1.1 200")
        with to("127.64.1.0", 80) as link:  # of HTTP/2 in the clear nobody would see the hosts
            more = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: x\r\n"
            link.sendall(get("api.example.com", more))
            told = response(link)
            assert b"200 OK" in told and b"h2c" not in told and b"HTTP2-Settings" not in told
        with to("127.64.1.0", 80) as link:
            link.sendall(get("api.example.com", "Connection: close\r\n"))
            assert b"200 OK" in read_all(link)
        with to("127.64.1.0", 443) as link:
            first = real_hello("api.example.com")
            link.sendall(first)
            assert link.recv(65536) == first
        for data in (real_hello("x.example.com"), real_hello(None), b"\x16\x03\x01\0\x01\0"):
            with to("127.64.1.0", 443) as link:
                link.sendall(data)
                assert read_all(link) == ACCESS_DENIED
        with to("127.64.1.0", 443) as link:
            link.sendall(b"\0raw")
            assert read_all(link) == b""
        with to("127.64.1.1", 80) as link:
            link.sendall(get("gone.example.com"))
            assert read_all(link).startswith(b"HTTP/1.1 502")
        decisions = [event["decision"] for event in there.events(guest, 10)]
        assert decisions == ["refused"] + ["allowed"] * 4 + ["refused"] * 4 + ["ended"]

    inside(body)


def test_the_proxy_port(inside: Any) -> None:
    def body(there: Inside) -> None:
        there.serve(80, http)
        there.serve(9000, echo)
        guest = there.guest("api.example.com:80,9000", "127.0.0.1:80,9000")
        for request, expected in (
            (b"CONNECT api.example.com:9000 HTTP/1.0\r\n\r\n", b"HTTP/1.1 200 Connection established\r\n\r\n"),
            (b"CONNECT evil.example.com:443 HTTP/1.0\r\n\r\n", b"HTTP/1.1 403"),
            (b"GET http://api.example.com/ HTTP/1.1\r\nHost: api.example.com\r\n\r\n", b"HTTP/1.1 200"),
            (get("api.example.com"), b"HTTP/1.1 403"),
            (b"rubbish\r\n\r\n", b"HTTP/1.1 400"),
            (b"\x05\x01\0", b"\x05\0"),
            (b"\x05\x01\x02", b"\x05\xff"),
            (b"\x05\x01\0\x05\x01\0\x01\x7f\0\0\x01\x23\x28", b"\x05\0\x05\0"),
            (b"\x05\x01\0\x05\x01\0\x01\x7f\0\0\x02\x23\x28", b"\x05\0\x05\x02"),
        ):
            with to("127.64.0.2", 3128) as link:
                link.sendall(request)
                link.shutdown(socket.SHUT_WR) if request[:1] == b"\x05" else None
                got = link.recv(65536)
                while len(got) < len(expected):
                    got += link.recv(65536)
                assert got.startswith(expected), (request, got)
        to("127.64.0.2", 3128).close()
        assert len(there.events(guest, 10)) == 10

    inside(body)


def test_who_does_not_ask_the_proxy_in_time_is_ended_and_told_of(inside: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of our own deadline is an OSError too, and was taken for a client that is gone."""
    monkeypatch.setattr(proxy_entry, "_ASK_S", 0.05)

    def body(there: Inside) -> None:
        guest = there.guest("api.example.com")
        for begun in (b"", b"CONNECT api.", bytes((5, 1))):
            with to("127.64.0.2", 3128) as link:
                link.sendall(begun)
                assert read_all(link) == b""
        for event in there.events(guest, 3):
            assert event["decision"] == "ended" and "no complete request to the proxy within 0.05 s" in event["reason"]

    inside(body)


def test_names_addresses_and_the_resolver(inside: Any) -> None:
    def greet(link: socket.socket) -> None:
        link.sendall(b"hello")
        echo(link)

    def ask(name: bytes) -> bytes:
        labels = b"".join(bytes([len(label)]) + label for label in name.split(b"."))
        return struct.pack("!6H", 7, 0x100, 1, 0, 0, 0) + labels + b"\0" + struct.pack("!2H", 1, 1)

    def body(there: Inside) -> None:
        there.serve(9000, greet)
        there.serve(80, http)
        guest = there.guest("*.example.com:80,9000", "127.0.0.1:80,9000", "db.example.net:9000")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as link:
            link.settimeout(30)
            for number in range(9):
                link.sendto(ask(b"n%d.example.com" % number), ("127.64.0.1", 53))
                answer = link.recv(512)
            link.sendto(ask(b"evil.example.org"), ("127.64.0.1", 53))
            assert link.recv(512)[3] & 15 == 3
        shared = socket.inet_ntoa(answer[-4:])
        with to("127.64.0.1", 53) as link:
            query = ask(b"n0.example.com")
            link.sendall(struct.pack("!H", len(query)) + query)
            assert socket.inet_ntoa(link.recv(512)[-4:]).startswith("127.64.1.")
            link.sendall(b"\0\1x")
            assert link.recv(1) == b""
        with to(shared, 80) as link:
            link.sendall(get("n8.example.com", "Connection: close\r\n"))
            assert b"Host: n8.example.com" in read_all(link)
        with to(shared, 80) as link:
            link.sendall(real_hello("evil.example.org"))
            assert read_all(link) == ACCESS_DENIED
        with to(shared, 80) as link:
            link.sendall(b"\0raw")
            assert read_all(link) == b""
        with to("127.64.1.8", 9000) as link:
            assert link.recv(5) == b"hello"
            link.sendall(b"\0x")
            assert link.recv(2) == b"\0x"
        with to("127.64.1.8", 9000) as link:
            assert link.recv(5) == b"hello"
            link.sendall(get("evil.example.org"))
            said = read_all(link)  # no echo: the server has not heard it
            assert b"HTTP/1.1 421 ringfence: " in said and b"GET / " not in said
        events = there.events(guest, 6)
        assert [event["protocol"] for event in events] == ["dns", "http", "tls", "tcp", "tcp", "http"]

    inside(body)


def test_limits_and_changes(inside: Any) -> None:
    def body(there: Inside) -> None:
        there.serve(9000, echo)
        rule = {"host": "127.0.0.1", "ports": [9000], "max_bytes_out": 10}
        guest = there.guest(rule, limits={"connections": 2, "total_s": 20, "connections_per_second": 1000})
        with to("127.0.0.1", 9000) as link, to("127.0.0.1", 9000) as other:
            for each in (link, other):
                each.sendall(b"abc")
                assert each.recv(3) == b"abc"
            try:
                assert to("127.0.0.1", 9000).recv(1) == b""
            except ConnectionError:
                pass
            link.sendall(b"defghijkl")
            assert len(read_all(link)) <= 4
            guest.change([NetworkRule.of("other.example.com")], authorities="#" * 500_000)
            assert read_all(other) == b""
        with pytest.raises(SetupError, match="sideways"):
            guest.change([], limits={"sideways": 1})
        guest.change([NetworkRule.of("127.0.0.1:9000")], limits={"idle_s": 0.2})
        with to("127.0.0.1", 9000) as link:
            assert read_all(link) == b""
        reasons = [event["reason"] for event in there.events(guest, 4)]
        assert any("at once" in reason for reason in reasons) and any("taken away" in reason for reason in reasons)
        assert any("max_bytes_out" in reason for reason in reasons) and any("no byte" in reason for reason in reasons)
        assert guest.totals is not None and guest.totals["bytes_out"] == 10

    inside(body)


def test_a_list_that_changes(inside: Any) -> None:
    def body(there: Inside) -> None:
        there.serve(9000, echo)
        guest = there.guest("127.0.0.1:9000", "*.example.com:9001")
        (side,) = there.gateway.sides
        for entries in (["api.example.com:9000"], ["127.0.0.0/8:9000", "[::2]:9000"], ["127.0.0.1:9000"]):
            guest.change([NetworkRule.of(entry) for entry in entries])
            assert {made.getsockname()[:2] for made in side.sockets} >= {row[1:3] for row in side.plan.rows}
        with socket.create_server(("0.0.0.0", 9100)):
            guest.change([NetworkRule.of("late.example.com:9100")])
        (told,) = there.events(guest)
        assert told["decision"] == "refused" and "use the proxy" in told["reason"]

    inside(body)


def test_of_a_crowd_nobody_has_much_under_way(inside: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream, "_WIDE", 1)
    monkeypatch.setattr(upstream, "_NARROW", 3)

    def body(there: Inside) -> None:
        there.serve(9000, echo)
        guest = there.guest("127.0.0.1:9000")
        links = [to("127.0.0.1", 9000) for _ in range(4)]
        for link in links:
            link.sendall(b"x")
            assert link.recv(1) == b"x"
        (side,) = there.gateway.sides
        eventually(lambda: len(side.live) == len(links))
        both = [(each.client, each.server) for each in side.live.values()]
        options = (socket.SO_SNDBUF, socket.SO_RCVBUF)
        sizes = [{link.getsockopt(socket.SOL_SOCKET, option) for link in pair if link for option in options}
                 for pair in both]  # fmt: skip
        narrow, narrowest = {2 * upstream._NARROW_BYTES}, {2 * upstream._NARROWEST_BYTES}
        assert sizes[1:] == [narrow, narrow, narrowest] and not sizes[0] & (narrow | narrowest), sizes
        for link in links:
            link.close()
        there.events(guest, 4)

    inside(body)


def test_a_sandbox_has_one_number_of_clients_accepted_in_a_turn_however_many_sockets_it_has(
    inside: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn, accepted, begin = 0, Counter[int](), SandboxSide.begin

    def count_turns(loop: asyncio.AbstractEventLoop) -> None:
        nonlocal turn
        turn += 1
        loop.call_soon(count_turns, loop)

    def begin_and_count(side: SandboxSide, client: socket.socket) -> None:
        accepted[turn] += 1
        begin(side, client)

    monkeypatch.setattr(SandboxSide, "begin", begin_and_count)

    def body(there: Inside) -> None:
        guest, waits = there.guest("127.0.0.1:9000-9003"), threading.Event()
        there.gateway.loop.call_soon_threadsafe(waits.wait, 30)
        there.gateway.loop.call_soon_threadsafe(count_turns, there.gateway.loop)
        links = [to("127.0.0.1", 9000 + number % 4) for number in range(200)]
        waits.set()
        there.events(guest, 200)
        for link in links:
            link.close()
        assert max(accepted.values()) <= 64 and accepted.total() == 200, accepted

    inside(body)


def test_an_inspected_rule(inside: Any) -> None:
    pem, context = certificate("api.example.com")

    def body(there: Inside) -> None:
        there.serve(443, lambda link: http(context.wrap_socket(link, server_side=True)))
        rule = {"host": "api.example.com", "methods": ["GET"], "inject": {"header": "x-key", "from_env": "KEY"}}
        guest = there.guest(rule, "127.0.0.1:443", secrets={"KEY": "v4lue"}, authorities=pem)
        trust = ssl.create_default_context(cadata=guest.ca)
        with trust.wrap_socket(to("127.64.1.0", 443), server_hostname="api.example.com") as link:
            link.sendall(get("api.example.com", "Connection: close\r\n"))
            assert b"x-key: v4lue" in response(link)
        with to("127.64.1.0", 80) as link:
            link.sendall(b"DELETE / HTTP/1.1\r\nHost: api.example.com\r\n\r\n")
            assert read_all(link).startswith(b"HTTP/1.1 403")
        with to("127.64.1.0", 443) as link:
            link.sendall(b"\0raw")
            assert read_all(link) == b""
        with pytest.raises(SetupError, match="KEY"):
            guest.change([NetworkRule.of(rule)])
        assert [event["decision"] for event in there.events(guest, 3)] == ["allowed", "refused", "refused"]

    inside(body)


def test_who_may_only_speak_plainly_on_port_80_keeps_its_connection_when_the_list_changes(inside: Any) -> None:
    """It is held to the rule of port 443 before it has said a word, and afterwards."""
    pem, context = certificate("api.example.com")
    rule = NetworkRule.of({"host": "api.example.com", "ports": [443], "methods": ["GET"]})

    def body(there: Inside) -> None:
        there.serve(443, lambda link: http(context.wrap_socket(link, server_side=True)))
        guest = there.guest(rule, "127.0.0.1:443", authorities=pem)
        (side,) = there.gateway.sides
        first_lists = [rule, NetworkRule.of("127.0.0.1:443")]
        with to("127.64.1.0", 80) as plain, to("127.64.1.0", 80) as tls:
            eventually(lambda: sum(each.only_plain for each in side.live.values()) == 2)
            guest.change([*first_lists, NetworkRule.of("other.example.com")], authorities=pem)
            plain.sendall(get("api.example.com"))
            assert response(plain).startswith(b"HTTP/1.1 200")
            guest.change(first_lists, authorities=pem)
            plain.sendall(get("api.example.com"))
            assert response(plain).startswith(b"HTTP/1.1 200")
            tls.sendall(real_hello("api.example.com"))
            assert read_all(tls) == ACCESS_DENIED
        eventually(lambda: not side.live)
        with to("127.64.1.0", 80) as link:
            eventually(lambda: sum(each.only_plain for each in side.live.values()) == 1)
            guest.change([NetworkRule.of("api.example.com:443"), NetworkRule.of("127.0.0.1:443")])
            assert read_all(link) == b""
        reasons = {(event["decision"], event["reason"][:40]) for event in there.events(guest, 3)}
        assert ("ended", "the rule that allowed it was taken away"[:40]) in reasons and len(reasons) == 3

    inside(body)


def test_what_is_begun_at_once_ends_with_a_task_that_never_had_its_turn(
    inside: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = SandboxSide.begin

    def begin_and_cancel(side: SandboxSide, client: socket.socket) -> None:
        begin(side, client)
        next(iter(side.live)).cancel("the rule was taken away")

    monkeypatch.setattr(SandboxSide, "begin", begin_and_cancel)

    def body(there: Inside) -> None:
        there.serve(7000, echo)
        guest = there.guest("127.0.0.1:7000")
        with to("127.0.0.1", 7000) as link:
            assert read_all(link) == b""
        (event,) = there.events(guest)
        assert (event["decision"], event["address"], event["port"]) == ("ended", "127.0.0.1", 7000)
        edges = there.gateway.edges
        assert not edges._from and not edges._to
        assert there.gateway.connections == 0

    inside(body)


def test_an_address_is_connected_to_once_whatever_it_answers(inside: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[upstream.Address] = []
    begin = upstream.begin
    monkeypatch.setattr(upstream, "begin", lambda address, buffers=0: begun.append(address) or begin(address, buffers))

    def body(there: Inside) -> None:
        there.serve(7000, echo)
        guest = there.guest("127.0.0.1:7000,7001")
        with to("127.0.0.1", 7000) as link:
            link.sendall(b"hello")
            assert link.recv(5) == b"hello"
        with to("127.0.0.1", 7001) as link:  # nobody is there
            link.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert read_all(link).startswith(b"HTTP/1.1 502")
        served, refused = there.events(guest, 2)
        assert (served["decision"], refused["decision"]) == ("allowed", "ended")
        assert "Connection refused" in refused["reason"]
        assert [address[2][1] for address in begun] == [7000, 7001]

    inside(body)


def test_each_visit_has_room_for_as_many_events_and_what_had_none_is_counted(
    inside: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(told, "MOST_REFUSED", 3)

    def visit(guest: client.Registration, count: int) -> tuple[int, int]:
        for number in range(count):
            with to("127.64.0.2", 3128) as link:
                name = f"evil-{number}.example:443"
                link.sendall(f"CONNECT {name} HTTP/1.1\r\nHost: {name}\r\n\r\n".encode())
                assert read_all(link).startswith(b"HTTP/1.1 403")
        guest.count(30, visit_ends=True)
        assert guest.counts is not None
        return len(guest.receive()), guest.counts["uncounted"]

    def body(there: Inside) -> None:
        guest = there.guest("api.example.com")
        assert [visit(guest, count) for count in (2, 5, 1, 4)] == [(2, 0), (3, 2), (1, 2), (3, 3)]

    inside(body)


# ---- the first words of a client


@pytest.mark.parametrize("said", [b"G", b"\r\n", b"\x16\x03", b"ping"])
def test_a_client_that_ends_before_its_protocol_is_known_is_refused_and_told_of(inside: Any, said: bytes) -> None:
    """What is told of it is believed: else the record would be given up, and with it the network."""

    def body(there: Inside) -> None:
        guest = there.guest("*.example.com:9000", {"host": "api.example.net", "methods": ["GET"]})
        for address, port in (("127.64.1.7", 9000), ("127.64.1.8", 443)):  # many names share the first
            with to(address, port) as link:
                link.sendall(said)
                link.shutdown(socket.SHUT_WR)
                assert read_all(link) == b""
        events = there.events(guest, 2)
        assert [(event["decision"], event["protocol"]) for event in events] == [("refused", "tcp")] * 2
        assert guest.totals is not None and not guest.lost

    inside(body)


def test_no_words_in_front_of_a_request_hide_its_host_on_any_port(inside: Any) -> None:
    def body(there: Inside) -> None:
        there.serve(9000, echo)
        guest = there.guest("db.example.net:9000", "127.0.0.1:9000")
        for front in (b" ", b"\xa0", b"\x0c", b"PROXY UNKNOWN\r\n", b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0"):
            with to("127.64.1.0", 9000) as link:
                for part in (front, get("evil.example.org")):
                    link.sendall(part)
                assert b"Host: evil" not in read_all(link)  # no echo: the server has not heard it
        for whole in (b"GET http://evil.example.org/\r\n", b"GET http://evil.example.org/ HTTP/1.0"):
            with to("127.64.1.0", 9000) as link:
                link.sendall(whole)
                link.shutdown(socket.SHUT_WR)
                assert not read_all(link).startswith(b"GET")
        with to("127.64.1.0", 9000) as link:
            link.sendall(b"ping")
            link.shutdown(socket.SHUT_WR)
            assert read_all(link) == b"ping"
        events = there.events(guest, 8)
        assert [event["decision"] for event in events] == ["refused"] * 7 + ["allowed"]
        assert "PROXY protocol" in events[4]["reason"]

    inside(body)


# ---- a server that resets


def _unread(link: socket.socket) -> bytes:
    try:
        return link.recv(64, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return b""


@pytest.mark.parametrize("reset", [False, True])
def test_what_a_server_got_and_said_before_it_reset_is_in_the_record(
    inside: Any, monkeypatch: pytest.MonkeyPatch, reset: bool
) -> None:
    """It is connected to, and both say a word, in the turn that accepts the client; in that turn it is gone too."""
    begin_both, said = Connection.begin_both, threading.Event()

    def begin_and_lose(connection: Connection, server: socket.socket) -> object:
        if not said.is_set():
            eventually(lambda: _unread(connection.client) and _unread(server))
            said.set()
        pumps = begin_both(connection, server)
        if reset:
            eventually(lambda: not _has_peer(server))
        return pumps

    def answer(link: socket.socket) -> None:
        link.sendall(b"hello")
        said.wait(30)
        assert link.recv(3) == b"ask"
        if reset:
            link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        else:
            read_all(link)

    monkeypatch.setattr(Connection, "begin_both", begin_and_lose)

    def body(there: Inside) -> None:
        there.serve(7000, answer)
        guest = there.guest("127.0.0.1:7000")
        with to("127.0.0.1", 7000) as link:
            link.sendall(b"ask")
            assert link.recv(5) == b"hello"
        (event,) = there.events(guest)
        assert (event["decision"], event["address"]) == ("allowed", "127.0.0.1"), event
        assert (event["bytes_out"], event["bytes_in"]) == (3, 5)
        assert guest.totals == {"connections": 1, "refused": 0, "uncounted": 0, "bytes_out": 3, "bytes_in": 5}
        edges = there.gateway.edges
        assert not edges._from and not edges._to

    inside(body)


def _has_peer(link: socket.socket) -> bool:
    try:
        link.getpeername()
    except OSError:
        return False
    return True


def test_a_connection_is_closed_and_told_of_whatever_becomes_of_its_pumps(
    inside: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_up = Pump.give_up

    def give_up_and_fail(pump: Pump) -> None:
        give_up(pump)
        raise OSError

    def body(there: Inside) -> None:
        there.serve(7000, echo)
        guest = there.guest("127.0.0.1:7000")
        with to("127.0.0.1", 7000) as link:
            link.sendall(b"ask")
            assert link.recv(3) == b"ask"
            monkeypatch.setattr(Pump, "give_up", give_up_and_fail)
            link.shutdown(socket.SHUT_WR)
            assert read_all(link) == b""
        (event,) = there.events(guest)
        assert (event["bytes_out"], event["bytes_in"]) == (3, 3)

    inside(body)
