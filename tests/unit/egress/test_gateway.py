"""The gateway as a process: what it carries, what it refuses and how it says so."""

from __future__ import annotations

import socket
import ssl
import time

import pytest
from tests.patience import eventually
from tests.unit.egress.world import (
    METADATA,
    OTHER,
    PRIVATE,
    PUBLIC,
    World,
    echo,
    http,
    in_world,
    needs_ip,
    read_all,
    response,
)

pytestmark = [pytest.mark.system, pytest.mark.privileges, needs_ip]


def get(host: str, path: str = "/", more: str = "") -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: {host}\r\n{more}\r\n".encode()


def hello(name: str) -> bytes:
    """The first message of Python's own TLS client."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context()
    context.check_hostname = bool(name)
    context.verify_mode = ssl.CERT_NONE if not name else ssl.CERT_REQUIRED
    tls = context.wrap_bio(incoming, outgoing, server_hostname=name or None)
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


ACCESS_DENIED = bytes((0x15, 3, 3, 0, 2, 2, 49))


# ---- what is allowed


@in_world
def test_a_listed_name_is_reached_and_told_of(world: World) -> None:
    world.answers["api.example.com"] = [PUBLIC]
    world.server(80, http, PUBLIC)
    guest = world.guest("api.example.com")
    with guest.to("api.example.com", 80) as link:
        link.sendall(get("api.example.com", "/hello"))
        assert b"GET /hello HTTP/1.1\r\nHost: api.example.com" in response(link)
    (event,) = guest.events()
    assert event["decision"] == "allowed" and event["protocol"] == "http"
    assert (event["name"], event["address"], event["port"]) == ("api.example.com", PUBLIC, 80)
    assert event["rule"] == "api.example.com" and event["bytes_out"] and event["bytes_in"] > 60
    assert guest.registration.totals == {
        "connections": 1, "refused": 0, "uncounted": 0, "bytes_out": event["bytes_out"], "bytes_in": event["bytes_in"],
    }  # fmt: skip


@in_world
def test_tls_passes_through_as_it_is(world: World) -> None:
    world.answers["api.example.com"] = [PUBLIC]
    world.server(443, echo, PUBLIC)
    guest = world.guest("api.example.com")
    with guest.to("api.example.com", 443) as link:
        first = hello("api.example.com")
        link.sendall(first)
        assert link.recv(65536) == first
        link.sendall(b"\x17\x03\x03 whatever")
        link.shutdown(socket.SHUT_WR)
        assert read_all(link) == b"\x17\x03\x03 whatever"
    (event,) = guest.events()
    assert event["decision"] == "allowed" and event["protocol"] == "tls"
    assert event["bytes_out"] == event["bytes_in"] == len(first) + 12


@in_world
def test_a_server_that_speaks_first_is_heard_at_once(world: World) -> None:
    def greet(link: socket.socket) -> None:
        link.sendall(b"220 ready\r\n")
        echo(link)

    world.answers["db.example.com"] = [PUBLIC]
    world.server(5432, greet, PUBLIC)
    guest = world.guest("db.example.com:5432")
    with guest.to("db.example.com", 5432) as link:
        assert link.recv(64) == b"220 ready\r\n"
        link.sendall(b"\0\0\0\x08\x04\xd2\x16\x2f")
        assert link.recv(64) == b"\0\0\0\x08\x04\xd2\x16\x2f"
    assert guest.events()[0]["protocol"] == "tcp"


@in_world
def test_a_client_that_ends_no_line_is_answered_too(world: World) -> None:
    world.answers["db.example.com"] = [PUBLIC]
    world.server(9000, echo, PUBLIC)
    guest = world.guest("db.example.com:9000")
    with guest.to("db.example.com", 9000) as link:
        for said in (b"ping", b"pong", b"end\nGET", b" / HTTP/1.1\r\n"):
            link.sendall(said)
            assert link.recv(64) == said
    assert guest.events()[0]["decision"] == "allowed"


@in_world
def test_a_line_that_becomes_a_request_while_it_passes_does_not_reach_the_server(world: World) -> None:
    got: list[bytes] = []

    def serve(link: socket.socket) -> None:
        got.append(link.recv(64))
        link.sendall(b"go on")
        got.append(read_all(link))

    world.answers["db.example.com"] = [PUBLIC]
    world.server(9000, serve, PUBLIC)
    guest = world.guest("db.example.com:9000")
    with guest.to("db.example.com", 9000) as link:
        link.sendall(b"QUERY / HT")
        assert link.recv(64) == b"go on"
        link.sendall(b"TP/1.1\r\nHost: other.example.com\r\n\r\n")
        read_all(link)
    event = guest.events()[0]
    assert event["decision"] == "refused" and "paused within the first line" in event["reason"]
    assert eventually(lambda: got[1:]) == [b""] and got[0] == b"QUERY / HT"


@in_world
def test_a_listed_address_is_reached_as_itself(world: World) -> None:
    world.server(9000, echo, PRIVATE)
    guest = world.guest(f"{PRIVATE}:9000")
    with guest.connect(PRIVATE, 9000) as link:
        link.sendall(get("anything.example.org"))
        assert b"anything" in link.recv(999)
    assert guest.events()[0]["address"] == PRIVATE


@in_world
def test_half_a_close_is_passed_on_in_both_directions(world: World) -> None:
    def count(link: socket.socket) -> None:
        link.sendall(b"%d" % len(read_all(link)))

    world.server(9000, count, PRIVATE)
    guest = world.guest(f"{PRIVATE}:9000")
    with guest.connect(PRIVATE, 9000) as link:
        link.sendall(b"x" * 300_000)
        link.shutdown(socket.SHUT_WR)
        assert read_all(link) == b"300000"
    assert guest.events()[0]["bytes_out"] == 300_000


@in_world
def test_a_request_with_a_body_arrives_whole(world: World) -> None:
    got: list[bytes] = []

    def serve(link: socket.socket) -> None:
        data = b""
        while not data.endswith(b"END\r\n0\r\n\r\n") and not data.endswith(b"END"):
            data += link.recv(1 << 20)
        got.append(data)
        link.sendall(b"HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n")
        echo(link)

    world.answers["api.example.com"] = [PUBLIC]
    world.server(80, serve, PUBLIC)
    guest = world.guest("api.example.com")
    body = b"b" * 200_000 + b"END"
    with guest.to("api.example.com", 80) as link:
        link.sendall(b"PUT /x HTTP/1.1\r\nHost: api.example.com\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        assert response(link).startswith(b"HTTP/1.1 204")
    assert got[0].endswith(b"\r\n\r\n" + body)
    with guest.to("api.example.com", 80) as link:
        link.sendall(b"PUT /x HTTP/1.1\r\nHost: api.example.com\r\nTransfer-Encoding: chunked\r\n\r\n")
        link.sendall(b"3\r\nabc\r\n5\r\ndeEND\r\n0\r\n\r\n")
        assert response(link).startswith(b"HTTP/1.1 204")
    assert got[1].endswith(b"0\r\n\r\n") and b"deEND" in got[1]


@in_world
def test_a_websocket_becomes_plain_bytes(world: World) -> None:
    def serve(link: socket.socket) -> None:
        assert b"Upgrade: websocket\r\n" in link.recv(65536)
        link.sendall(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\nfirst")
        echo(link)

    world.answers["api.example.com"] = [PUBLIC]
    world.server(80, serve, PUBLIC)
    guest = world.guest("api.example.com")
    with guest.to("api.example.com", 80) as link:
        link.sendall(get("api.example.com", more="Connection: Upgrade\r\nUpgrade: websocket\r\n"))
        head = link.recv(999)
        assert head.startswith(b"HTTP/1.1 101") and head.endswith(b"first")
        link.sendall(get("other.example.com"))
        assert b"other" in link.recv(999)


# ---- what is refused


@in_world
def test_an_unlisted_name_does_not_exist(world: World) -> None:
    guest = world.guest("api.example.com")
    assert guest.resolve("evil.example.net") is None
    assert guest.resolve("evil.example.net") is None
    (event,) = guest.events()
    assert (event["decision"], event["protocol"], event["name"]) == ("refused", "dns", "evil.example.net")
    assert "evil.example.net" not in world.asked


@pytest.mark.parametrize("second", ["other.example.com", "api.example.com:81", "93.184.216.35"])
def test_a_later_request_for_another_host_is_refused(second: str) -> None:
    @in_world
    def run(world: World) -> None:
        world.answers["api.example.com"] = [PUBLIC]
        accepted = world.server(80, http, PUBLIC)
        guest = world.guest("api.example.com")
        with guest.to("api.example.com", 80) as link:
            link.sendall(get("api.example.com"))
            assert response(link).startswith(b"HTTP/1.1 200")
            link.sendall(get(second, "/secret"))
            refused = read_all(link)
        assert refused.startswith(b"HTTP/1.1 421 ") and b"api.example.com:80" in refused
        (event,) = guest.events()
        assert event["decision"] == "refused" and second in event["reason"]
        assert len(accepted) == 1

    run()


@in_world
def test_a_first_request_for_another_host_goes_nowhere(world: World) -> None:
    got: list[bytes] = []
    world.answers["api.example.com"] = [PUBLIC]
    world.server(80, lambda link: got.append(read_all(link)), PUBLIC)
    guest = world.guest("api.example.com")
    for request in (
        get("other.example.com"),
        b"GET http://other.example.com/ HTTP/1.1\r\nHost: api.example.com\r\n\r\n",
        b"CONNECT other.example.com:443 HTTP/1.1\r\nHost: other.example.com:443\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\r\n" + get("other.example.com"),
        b"GET / HTTP/1.1\r\nHost: api.example.com\r\nHost: other.example.com\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: api.example.com\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"GET\t/\tHTTP/1.1\r\nHost: other.example.com\r\n\r\n",
    ):
        with guest.to("api.example.com", 80) as link:
            link.sendall(request)
            assert read_all(link).startswith((b"HTTP/1.1 4", b"HTTP/1.1 5")), request
    assert {event["decision"] for event in guest.events(8)} == {"refused"}
    assert b"".join(got) == b""


@in_world
def test_tls_for_another_name_is_refused_by_an_alert(world: World) -> None:
    got: list[bytes] = []
    world.answers["api.example.com"] = [PUBLIC]
    world.server(443, lambda link: got.append(read_all(link)), PUBLIC)
    guest = world.guest("api.example.com")
    for first in (hello("other.example.com"), hello("")):
        with guest.to("api.example.com", 443) as link:
            link.sendall(first)
            assert read_all(link) == ACCESS_DENIED
    with guest.to("api.example.com", 443) as link:
        link.sendall(b"SSH-2.0-x\r\n")
        assert read_all(link) == b""
    reasons = [event["reason"] for event in guest.events(3)]
    assert "other.example.com" in reasons[0] and "SNI" in reasons[1] and "neither TLS nor HTTP" in reasons[2]
    assert b"".join(got) == b""


@in_world
def test_who_waits_before_he_speaks_is_held_to_the_name_too(world: World) -> None:
    got: list[bytes] = []

    def serve(link: socket.socket) -> None:
        link.sendall(b"hello")
        got.append(read_all(link))

    world.answers["db.example.com"] = [PUBLIC]
    world.server(8080, serve, PUBLIC)
    guest = world.guest("db.example.com:8080")
    with guest.to("db.example.com", 8080) as link:
        assert link.recv(64) == b"hello"
        time.sleep(0.5)
        link.sendall(get("other.example.com"))
        read_all(link)
    assert guest.events()[0]["decision"] == "refused"
    assert eventually(lambda: got) == [b""]


@in_world
def test_a_name_that_leads_to_an_address_that_is_not_public_is_refused(world: World) -> None:
    addresses = {"metadata": METADATA, "private": PRIVATE, "local": "127.0.0.1", "own": "93.184.216.1"}
    accepted = [world.server(80, http, address) for address in (METADATA, PRIVATE)]
    guest = world.guest(*(f"{name}.example.com" for name in addresses))
    for name, address in addresses.items():
        world.answers[f"{name}.example.com"] = [address]
        with guest.to(f"{name}.example.com", 80) as link:
            link.sendall(get(f"{name}.example.com"))
            told = read_all(link)
            assert told.startswith(b"HTTP/1.1 403") and address.encode() in told
    assert {event["decision"] for event in guest.events(4)} == {"refused"}
    assert accepted == [[], []]


@in_world
def test_a_name_that_moves_is_resolved_once_for_each_connection(world: World) -> None:
    world.answers["api.example.com"] = [PUBLIC, METADATA, OTHER]
    accepted = world.server(80, http, METADATA)
    world.server(80, http, PUBLIC)
    world.server(80, http, OTHER)
    guest = world.guest("api.example.com")
    for expected in (b"HTTP/1.1 200", b"HTTP/1.1 403", b"HTTP/1.1 200"):
        with guest.to("api.example.com", 80) as link:
            link.sendall(get("api.example.com"))
            assert response(link).startswith(expected)
    assert world.asked == ["api.example.com"] * 3
    assert [event["address"] for event in guest.events(3)] == [PUBLIC, "", OTHER]
    assert accepted == []


@in_world
def test_of_several_addresses_only_those_are_used_that_are_allowed(world: World) -> None:
    world.answers["api.example.com"] = [f"{METADATA},{PRIVATE},{PUBLIC}"]
    accepted = world.server(80, http, METADATA)
    world.server(80, http, PUBLIC)
    guest = world.guest("api.example.com")
    with guest.to("api.example.com", 80) as link:
        link.sendall(get("api.example.com"))
        assert response(link).startswith(b"HTTP/1.1 200")
    assert guest.events()[0]["address"] == PUBLIC and accepted == []


@in_world
def test_a_server_that_does_not_answer_is_told_as_that(world: World) -> None:
    world.answers["api.example.com"] = [PUBLIC]
    guest = world.guest("api.example.com", "gone.example.com")
    with guest.to("api.example.com", 80) as link:
        link.sendall(get("api.example.com"))
        told = read_all(link)
    assert told.startswith(b"HTTP/1.1 502") and b"Connection refused" in told
    first = hello("gone.example.com")
    with guest.to("gone.example.com", 443) as link:
        link.sendall(first)
        assert read_all(link)[:2] == b"\x15\x03"
    events = guest.events(2)
    assert [event["decision"] for event in events] == ["ended", "ended"]
    assert "could not be resolved" in events[1]["reason"]


# ---- the proxy port


def connect_to(target: str) -> bytes:
    return f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode()


@in_world
def test_the_proxy_port_decides_alike(world: World) -> None:
    world.answers |= {"api.example.com": [PUBLIC], "other.example.com": [OTHER]}
    world.server(443, echo, PUBLIC)
    guest = world.guest("api.example.com")
    with guest.proxy() as link:
        link.sendall(connect_to("api.example.com:443"))
        assert link.recv(999).startswith(b"HTTP/1.1 200 ")
        first = hello("api.example.com")
        link.sendall(first)
        assert link.recv(65536) == first
    with guest.proxy() as link:
        link.sendall(connect_to("api.example.com:443") + hello("other.example.com"))
        assert read_all(link).endswith(ACCESS_DENIED)
    for target in ("other.example.com:443", "api.example.com:22", "10.1.2.3:443", "127.0.0.1:443"):
        with guest.proxy() as link:
            link.sendall(connect_to(target))
            told = read_all(link)
            assert told.startswith(b"HTTP/1.1 403") and b"network" in told, (target, told)
    decisions = [(event["protocol"], event["decision"]) for event in guest.events(6)]
    assert decisions == [("connect", "allowed"), ("connect", "refused")] + [("connect", "refused")] * 4
    assert "other.example.com" not in world.asked


@in_world
def test_plain_requests_to_the_proxy_port(world: World) -> None:
    world.answers["api.example.com"] = [PUBLIC]
    world.server(80, http, PUBLIC)
    guest = world.guest("api.example.com")
    with guest.proxy() as link:
        link.sendall(b"GET http://api.example.com/a?b HTTP/1.1\r\nHost: api.example.com\r\nProxy-Connection: x\r\n\r\n")
        told = read_all(link)
    assert b"GET /a?b HTTP/1.1\r\nHost: api.example.com" in told and b"Proxy-Connection" not in told
    for request in (
        get("api.example.com"),
        b"GET http://other.example.com/ HTTP/1.1\r\nHost: other.example.com\r\n\r\n",
    ):
        with guest.proxy() as link:
            link.sendall(request)
            assert read_all(link).startswith(b"HTTP/1.1 403")
    assert [event["decision"] for event in guest.events(3)] == ["allowed", "refused", "refused"]


@in_world
def test_socks_at_the_proxy_port(world: World) -> None:
    world.answers["db.example.com"] = [PUBLIC]
    world.server(5432, echo, PUBLIC)
    guest = world.guest("db.example.com:5432", f"{PRIVATE}:9000")
    world.server(9000, echo, PRIVATE)

    def ask(target: bytes) -> tuple[bytes, socket.socket]:
        link = guest.proxy()
        link.sendall(b"\x05\x01\x00")
        assert link.recv(2) == b"\x05\x00"
        link.sendall(b"\x05\x01\x00" + target)
        return link.recv(10), link

    def by_name(name: bytes, port: int) -> bytes:
        return b"\x03" + bytes([len(name)]) + name + port.to_bytes(2, "big")

    for target in (by_name(b"db.example.com", 5432), b"\x01" + socket.inet_aton(PRIVATE) + (9000).to_bytes(2, "big")):
        reply, link = ask(target)
        with link:
            assert reply[1] == 0
            link.sendall(b"\0data")
            assert link.recv(64) == b"\0data"
    for target in (by_name(b"evil.example.com", 5432), by_name(b"db.example.com", 22), by_name(b"10.1.2.3", 80)):
        reply, link = ask(target)
        with link:
            assert reply[1] == 2 and link.recv(1) == b""
    assert [event["decision"] for event in guest.events(5)] == ["allowed"] * 2 + ["refused"] * 3
