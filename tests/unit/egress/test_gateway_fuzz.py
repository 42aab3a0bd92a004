"""Malformed messages for a running gateway: it goes on, holds no more, and reaches nobody who is not listed."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import h11
import pytest
from tests.patience import eventually
from tests.unit.egress.mutations import mutated, pieces
from tests.unit.egress.test_egress_fuzz import (
    CONNECT,
    HTTP,
    HTTP_WORDS,
    NAME,
    SOCKS,
    SOCKS_WORDS,
    TLS,
    TLS_WORDS,
    names_that_openssl_sees,
)
from tests.unit.egress.test_gateway_attacks import is_served
from tests.unit.egress.world import OTHER, PRIVATE, PUBLIC, RESOLVER, Guest, World, echo, in_world, needs_ip

pytestmark = [pytest.mark.system, pytest.mark.privileges, pytest.mark.unmeasured, needs_ip]

SEED = 16
AT_ONCE = 4
PATIENCE_S = 2.0
ORDINARY, SOAK = 250, 100_000
_QUERY = struct.pack("!6H", 7, 0x100, 1, 0, 0, 0) + b"\3api\7example\3com\0" + struct.pack("!2H", 1, 1)
QUESTION = len(_QUERY).to_bytes(2, "big") + _QUERY
ENTRANCES: dict[str, tuple[list[bytes], list[bytes], Callable[[Guest], tuple[str, int]]]] = {
    "http": ([each.replace(b":443", b":80") for each in HTTP], HTTP_WORDS, lambda guest: (_address(guest), 80)),
    "connect": (CONNECT + HTTP, HTTP_WORDS, lambda _: ("127.64.0.2", 3128)),
    "socks5": (SOCKS, SOCKS_WORDS, lambda _: ("127.64.0.2", 3128)),
    "tls": (TLS, TLS_WORDS, lambda guest: (_address(guest), 443)),
}


def _address(guest: Guest) -> str:
    address = guest.resolve(NAME)
    assert address is not None
    return address


class Heard:
    """A server that keeps what it is told, says a little and closes."""

    def __init__(self) -> None:
        self.all: list[bytes] = []

    def serve(self, link: socket.socket) -> None:
        link.settimeout(0.05)
        found = b""
        try:
            while data := link.recv(1 << 18):
                found += data
                link.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        except OSError:
            pass
        self.all.append(found)


def send(guest: Guest, place: tuple[str, int], case: tuple[int, bytes]) -> None:
    """Whether the gateway answers, resets or closes is its choice."""
    number, data = case
    with guest.connect(*place) as link:
        link.settimeout(PATIENCE_S)
        try:
            for piece in pieces(data, number):
                link.sendall(piece)
            link.shutdown(socket.SHUT_WR)
            while link.recv(65536):
                pass
        except OSError:
            pass


def attack(world: World, protocol: str, count: int) -> None:
    samples, words, entrance = ENTRANCES[protocol]
    world.answers |= {NAME: [PUBLIC], "evil.example": [OTHER]}
    plain, tls, elsewhere = Heard(), Heard(), Heard()
    for port, heard in ((80, plain), (443, tls), (8080, elsewhere)):
        world.server(port, heard.serve, PUBLIC)
    others = [world.server(port, elsewhere.serve, OTHER) for port in (80, 443)]
    guest = world.guest(NAME)
    place = entrance(guest)
    pid = guest.registration.pid
    sizes: list[int] = []

    with ThreadPoolExecutor(AT_ONCE) as threads:
        for part in range(4):
            cases = mutated(samples, words, seed=SEED + part, count=count // 4)
            list(threads.map(partial(send, guest, place), cases))
            guest.registration.receive()  # what is told is fetched, as a caller does
            sizes.append(_resident_kib(pid))
    assert plain.all or tls.all, "what is valid goes through"
    assert [len(each) for each in others] == [0, 0] and elsewhere.all == []
    for told in plain.all:
        assert hosts_heard(told) <= {NAME.encode(), f"{NAME}:80".encode()}, told[:2000]
    for told in tls.all:
        assert {str(name).lower().removesuffix(".") for name in names_that_openssl_sees(told)} <= {NAME}, told[:2000]
    guest.registration.change(guest.rules)
    assert not guest.registration.lost and guest.registration.pid == pid
    assert sizes[3] - sizes[1] < 16 * 1024, sizes
    assert not any("gateway failed" in event["reason"] for event in guest.events(0))
    if os.access(f"/proc/{pid}/fd", os.R_OK):
        assert eventually(lambda: len(os.listdir(f"/proc/{pid}/fd")) < 60)


def _resident_kib(pid: int) -> int:
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        return int(next(line.split()[1] for line in file if line.startswith("VmRSS:")))


def hosts_heard(told: bytes) -> set[bytes]:
    """Return the hosts of all requests that a server reads in it; the last one may be cut off."""
    hosts: set[bytes] = set()
    while told:
        server = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 20)
        server.receive_data(told)
        while not isinstance(event := server.next_event(), h11.EndOfMessage):
            if event is h11.NEED_DATA:
                return hosts
            if isinstance(event, h11.Request):
                hosts |= {value for name, value in event.headers if name == b"host"}
        told = server.trailing_data[0]
    return hosts


@in_world
def test_malformed_http_reaches_nobody_else(world: World) -> None:
    attack(world, "http", ORDINARY)


@in_world
def test_malformed_connect_reaches_nobody_else(world: World) -> None:
    attack(world, "connect", ORDINARY)


@in_world
def test_malformed_socks_reaches_nobody_else(world: World) -> None:
    attack(world, "socks5", ORDINARY)


@in_world
def test_malformed_tls_reaches_nobody_else(world: World) -> None:
    attack(world, "tls", ORDINARY)


@pytest.mark.soak
@in_world
def test_much_malformed_http_reaches_nobody_else(world: World) -> None:
    attack(world, "http", SOAK)


@pytest.mark.soak
@in_world
def test_much_malformed_connect_reaches_nobody_else(world: World) -> None:
    attack(world, "connect", SOAK)


@pytest.mark.soak
@in_world
def test_much_malformed_socks_reaches_nobody_else(world: World) -> None:
    attack(world, "socks5", SOAK)


@pytest.mark.soak
@in_world
def test_much_malformed_tls_reaches_nobody_else(world: World) -> None:
    attack(world, "tls", SOAK)


def mixed(world: World, count: int) -> None:
    """What belongs at one entrance comes to each of them, and the resolver's questions come to all."""
    world.answers[NAME] = [PUBLIC]
    world.server(80, echo, PUBLIC)
    world.server(443, echo, PUBLIC)
    world.server(9000, echo, PRIVATE)
    guest, other = world.guest(NAME), world.guest(f"{PRIVATE}:9000")
    places = [*dict.fromkeys(entrance(guest) for _, _, entrance in ENTRANCES.values()), (RESOLVER, 53)]
    samples, words = [*HTTP, *CONNECT, *SOCKS, *TLS, QUESTION], [*HTTP_WORDS, *SOCKS_WORDS, *TLS_WORDS]
    pid, sizes = guest.registration.pid, []
    for part in range(4):
        for number, data in mutated(samples, words, seed=SEED + part, count=count // 4):
            send(guest, places[number % len(places)], (number, data))
        guest.registration.receive()
        sizes.append(_resident_kib(pid))
    is_served(other)
    assert not guest.registration.lost and guest.registration.pid == pid
    assert sizes[3] - sizes[1] < 16 * 1024, sizes


@in_world
def test_malformed_messages_of_all_kinds_at_all_entrances_hold_up_nobody(world: World) -> None:
    mixed(world, ORDINARY)


@pytest.mark.soak
@in_world
def test_many_malformed_messages_of_all_kinds_hold_up_nobody(world: World) -> None:
    mixed(world, SOAK)
