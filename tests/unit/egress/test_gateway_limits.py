"""Limits of a sandbox's network: connections, bytes and times; and that one sandbox does not hold up another."""

from __future__ import annotations

import os
import random
import resource
import socket
import threading
import time
from pathlib import Path

import pytest
from tests.patience import eventually
from tests.unit.egress.world import PRIVATE, PUBLIC, Guest, World, echo, http, in_world, needs_ip, read_all, response

pytestmark = [pytest.mark.system, pytest.mark.privileges, pytest.mark.unmeasured, needs_ip]
SERVER = f"{PRIVATE}:9000"


def memory_kb(pid: int) -> int:
    rows = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(row.split()[1]) for row in rows if row.startswith("VmRSS"))


def is_closed(link: socket.socket) -> bool:
    """Whether the other side has closed it, by an end or a reset."""
    try:
        return link.recv(1) == b""
    except ConnectionError:
        return True


def speaks(guest: Guest) -> bool:
    """Whether a connection is carried: one that is not may be reset before it is known to be there."""
    try:
        with guest.connect(PRIVATE, 9000) as link:
            link.sendall(b"x")
            return link.recv(1) == b"x"
    except ConnectionError:
        return False


@in_world
def test_so_many_connections_at_once_and_no_more(world: World) -> None:
    world.server(9000, echo, PRIVATE)
    guest = world.guest(SERVER, limits={"connections": 3})
    links = [guest.connect(PRIVATE, 9000) for _ in range(3)]
    for link in links:
        link.sendall(b"x")
        assert link.recv(1) == b"x"
    assert not speaks(guest)
    links.pop().close()
    assert eventually(lambda: speaks(guest))
    refused = [event for event in guest.events(2) if event["decision"] == "refused"]
    assert refused and "as many as its policy allows at once" in refused[0]["reason"]
    assert refused[0]["address"] == PRIVATE and refused[0]["port"] == 9000


@in_world
def test_so_many_connections_in_a_second(world: World) -> None:
    world.server(9000, echo, PRIVATE)
    guest = world.guest(SERVER, limits={"connections_per_second": 2})
    carried = 0
    for _ in range(40):  # more than a busy machine does in many seconds would be needed to have all carried
        carried += speaks(guest)
    assert 2 <= carried < 40
    assert any("in a second" in event["reason"] for event in guest.events(40))


@in_world
def test_bytes_of_a_sandbox_and_of_a_rule(world: World) -> None:
    world.server(9000, echo, PRIVATE)
    guest = world.guest({"host": PRIVATE, "ports": [9000], "max_bytes_out": 100}, limits={"bytes_out": 5000})
    with guest.connect(PRIVATE, 9000) as link:
        link.sendall(b"x" * 60)
        assert len(link.recv(60, socket.MSG_WAITALL)) == 60
    with guest.connect(PRIVATE, 9000) as link:
        link.sendall(b"x" * 60)
        assert len(read_all(link)) <= 40
    events = guest.events(2)
    assert sum(event["bytes_out"] for event in events) == 100
    assert events[1]["decision"] == "ended" and "max_bytes_out" in events[1]["reason"]
    other = world.guest(SERVER, limits={"bytes_in": 1000})
    with other.connect(PRIVATE, 9000) as link:
        link.sendall(b"x" * 3000)
        assert len(read_all(link)) <= 1000
    (event,) = other.events()
    assert event["bytes_in"] == 1000 and "received" in event["reason"]


@in_world
def test_idle_and_total_times(world: World) -> None:
    world.server(9000, echo, PRIVATE)
    guest = world.guest(SERVER, limits={"idle_s": 0.3})
    with guest.connect(PRIVATE, 9000) as link:
        link.sendall(b"x")
        assert link.recv(1) == b"x"
        assert is_closed(link)
    (event,) = guest.events()
    assert event["decision"] == "ended" and "no byte passed for 0.3 s" in event["reason"]
    other = world.guest(SERVER, limits={"total_s": 0.5})
    with other.connect(PRIVATE, 9000) as link:
        try:
            while True:
                link.sendall(b"x")
                if not link.recv(1):
                    break
                time.sleep(0.02)
        except ConnectionError:
            pass
    assert "as long as a connection may" in other.events()[0]["reason"]


@in_world
def test_a_thousand_connections_at_once(world: World) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(8192, resource.getrlimit(resource.RLIMIT_NOFILE)[1]),) * 2)
    waiting = threading.Event()

    def serve(link: socket.socket) -> None:
        data = link.recv(64)
        waiting.wait(60)
        link.sendall(data)

    threading.stack_size(256 * 1024)
    world.server(9000, serve, PRIVATE)
    guest = world.guest(SERVER)
    links = [guest.connect(PRIVATE, 9000, timeout=60) for _ in range(1000)]
    for number, link in enumerate(links):
        link.sendall(b"%d" % number)
    memory = memory_kb(guest.registration.pid)
    waiting.set()
    for number, link in enumerate(links):
        assert link.recv(64) == b"%d" % number
        link.close()
    events = guest.events(1000)
    assert len(events) == 1000 and {event["decision"] for event in events} == {"allowed"}
    assert memory < 200_000


@in_world
def test_a_slow_reader_does_not_hold_others(world: World) -> None:
    def flood(link: socket.socket) -> None:
        try:
            for _ in range(4096):
                link.sendall(b"x" * 65536)
        except OSError:
            pass

    world.server(9000, flood, PRIVATE)
    world.server(9001, echo, PRIVATE)
    guest, other = world.guest(SERVER), world.guest(f"{PRIVATE}:9001")
    slow = [guest.connect(PRIVATE, 9000) for _ in range(20)]
    time.sleep(0.5)
    for who in (other, other):
        with who.connect(PRIVATE, 9001) as link:
            for _ in range(50):
                link.sendall(b"quick")
                assert link.recv(5) == b"quick"
    assert memory_kb(guest.registration.pid) < 200_000
    for link in slow:
        link.close()
    guest.events(20)


@in_world
def test_it_does_not_grow_and_leaks_no_descriptor(world: World) -> None:
    world.answers["api.example.com"] = [PUBLIC]
    world.server(80, http, PUBLIC)
    world.server(9000, echo, PRIVATE)
    pid = 0

    def rounds(count: int) -> None:
        nonlocal pid
        guest = world.guest("api.example.com", SERVER)
        pid = guest.registration.pid
        for _ in range(count):
            with guest.to("api.example.com", 80) as link:
                link.sendall(b"GET / HTTP/1.1\r\nHost: api.example.com\r\nConnection: close\r\n\r\n")
                response(link)
            with guest.connect(PRIVATE, 9000) as link:
                link.sendall(b"x" * 1000)
                link.recv(10)
            with guest.proxy() as link:
                link.sendall(b"CONNECT evil.example.net:443 HTTP/1.1\r\n\r\n")
                read_all(link)
        guest.events(count * 3)
        os.close(guest.namespace)

    rounds(100)
    before = memory_kb(pid)
    for _ in range(3):
        rounds(100)
    assert memory_kb(pid) < before + 4096
    if os.geteuid() == 0 and os.access(f"/proc/{pid}/fd", os.R_OK):
        assert eventually(lambda: len(os.listdir(f"/proc/{pid}/fd")) < 60)


@in_world
def test_whatever_is_sent_nothing_unlisted_is_reached_and_it_goes_on(world: World) -> None:
    """Rubbish at every entrance: the gateway neither ends nor reaches anybody who is not listed."""
    world.answers["api.example.com"] = [PUBLIC]
    got: list[bytes] = []
    world.server(80, lambda link: got.append(read_all(link)), PUBLIC)
    elsewhere = world.server(443, echo, PUBLIC)
    guest = world.guest("api.example.com:80")
    choice = random.Random(7)
    seeds = [b"GET / HTTP/1.1\r\nHost: evil.example.com\r\n\r\n", b"CONNECT api.example.com:443 HTTP/1.1\r\n\r\n",
             b"\x05\x01\x00\x05\x01\x00\x03\x0fapi.example.com\x01\xbb", b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00",
             b"\0\x1d\0\x07\x01\0\0\x01\0\0\0\0\0\0\x03api\x07example\x03com\0\0\x01\0\x01"]  # fmt: skip
    name = guest.resolve("api.example.com") or ""
    for number in range(400):
        data = bytearray(choice.choice(seeds))
        for _ in range(choice.randrange(6)):
            data[choice.randrange(len(data))] = choice.randrange(256)
        place = choice.choice([(name, 80), ("127.64.0.2", 3128), ("127.64.0.1", 53)])
        with guest.connect(*place) as link:
            try:
                link.sendall(bytes(data[: choice.randrange(1, len(data) + 1)]))
                link.shutdown(socket.SHUT_WR)
                link.settimeout(10 if number % 50 == 0 else 0.02)
                link.recv(4096)
            except (OSError, TimeoutError):
                pass
    guest.registration.change(guest.rules)
    assert not guest.registration.lost and elsewhere == []
    assert not any(b"evil" in data for data in got)
    assert not any("gateway failed" in event["reason"] for event in guest.events(1))
