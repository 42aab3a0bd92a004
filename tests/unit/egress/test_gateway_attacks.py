"""One sandbox against the others of its caller: what it does to the gateway that they share must not hold them up."""

from __future__ import annotations

import os
import re
import resource
import socket
import ssl
import struct
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.patience import eventually
from tests.unit.egress.test_gateway_kinds import certificate
from tests.unit.egress.test_gateway_limits import memory_kb
from tests.unit.egress.world import PRIVATE, PUBLIC, SILENCE, Guest, World, echo, http, in_world, needs_ip, response

pytestmark = [pytest.mark.system, pytest.mark.privileges, pytest.mark.unmeasured, needs_ip]
NAME = "api.example.com"
GET = f"GET / HTTP/1.1\r\nHost: {NAME}\r\n\r\n".encode()


def swallow(link: socket.socket) -> None:
    """A server that reads and says nothing."""
    while link.recv(1 << 20):
        pass


def pour(link: socket.socket, data: bytes, over: threading.Event) -> None:
    """Send the same again and again, as fast as it is taken."""
    link.settimeout(1)
    while not over.is_set():
        try:
            link.sendall(data)
        except TimeoutError:
            pass
        except OSError:
            return


def in_background(work: Callable[..., object], *arguments: object) -> None:
    threading.Thread(target=work, args=arguments, daemon=True).start()


def is_served(guest: Guest) -> None:
    """A neighbour's connection is carried; the timeout of its socket says that it is not."""
    with guest.connect(PRIVATE, 9000) as link:
        for _ in range(5):
            link.sendall(b"hello")
            assert link.recv(5) == b"hello"


@in_world
def test_requests_without_end_leave_the_others_their_turn(world: World) -> None:
    """Neither the client nor the server ever lets the gateway wait."""
    world.answers[NAME] = [PUBLIC]
    world.server(80, swallow, PUBLIC)
    world.server(9000, echo, PRIVATE)
    guest, other = world.guest(NAME), world.guest(f"{PRIVATE}:9000")
    over = threading.Event()
    in_background(pour, guest.to(NAME, 80), GET * 4000, over)
    is_served(other)
    over.set()


@in_world
def test_a_body_without_end_leaves_the_others_their_turn(world: World) -> None:
    world.answers[NAME] = [PUBLIC]
    world.server(80, swallow, PUBLIC)
    world.server(9000, echo, PRIVATE)
    guest, other = world.guest(NAME), world.guest(f"{PRIVATE}:9000")
    over = threading.Event()
    link = guest.to(NAME, 80)
    link.sendall(f"POST / HTTP/1.1\r\nHost: {NAME}\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
    in_background(pour, link, b"1\r\nx\r\n" * 40_000, over)
    is_served(other)
    over.set()


@in_world
def test_questions_without_end_leave_the_others_their_turn(world: World) -> None:
    world.server(9000, echo, PRIVATE)
    guest, other = world.guest(NAME), world.guest(f"{PRIVATE}:9000")
    over = threading.Event()
    labels = b"".join(bytes([len(label)]) + label.encode() for label in NAME.split("."))
    query = struct.pack("!6H", 7, 0x100, 1, 0, 0, 0) + labels + b"\0" + struct.pack("!2H", 1, 1)
    link = guest.connect("127.64.0.1", 53)
    in_background(swallow, link)
    in_background(pour, link, (len(query).to_bytes(2, "big") + query) * 2000, over)
    is_served(other)
    over.set()


@in_world
def test_names_without_an_answer_leave_the_others_the_resolver(world: World) -> None:
    names = [f"n{number}.silent.example.net" for number in range(60)]
    world.answers |= {name: [SILENCE] for name in names} | {NAME: [PUBLIC]}
    world.server(80, http, PUBLIC)
    guest, other = world.guest("*.silent.example.net"), world.guest(NAME)
    links = [guest.proxy() for _ in names]
    for name, link in zip(names, links, strict=True):
        link.sendall(f"CONNECT {name}:443 HTTP/1.1\r\nHost: {name}:443\r\n\r\n".encode())
    with other.to(NAME, 80) as link:
        link.sendall(GET)
        assert response(link).startswith(b"HTTP/1.1 200")


@in_world
def test_of_a_name_with_hundreds_of_addresses_only_the_first_are_looked_at(world: World) -> None:
    """Each costs a look at the routes, during which nobody else is served."""
    from ringfence.egress.upstream import lookup

    world.answers[NAME] = [",".join([*(f"10.9.{number >> 8}.{number & 255}" for number in range(400)), PUBLIC])]
    assert 1 <= len(lookup(NAME, 80)) <= 16


@in_world
def test_a_sandbox_with_all_the_connections_there_are_leaves_the_others_some(world: World) -> None:
    # The worker may have many open already, and plays guest and server: two more for each of the connections below.
    limit = 2 * len(os.listdir("/proc/self/fd")) + 600
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    world.server(9000, echo, PRIVATE)
    guest, other = world.guest(f"{PRIVATE}:9000"), world.guest(f"{PRIVATE}:9000")
    held = []
    for _ in range(limit // 5):
        try:
            held.append(guest.connect(PRIVATE, 9000))
        except ConnectionError:  # all that it may have; as a rule it is told a moment later
            break
    assert len(held) > 20
    for link in held[:20]:
        link.sendall(b"x")
        assert link.recv(1) == b"x"
    is_served(other)


@in_world
def test_inspected_bodies_that_nobody_takes_are_held_in_little_memory(world: World) -> None:
    """So much for a connection that the thousands there may be have room in what a gateway may have."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(8192, resource.getrlimit(resource.RLIMIT_NOFILE)[1]),) * 2)
    pem, context = certificate(NAME)
    world.answers[NAME] = [PUBLIC]
    over = threading.Event()

    def take_nothing(link: socket.socket) -> None:
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        with context.wrap_socket(link, server_side=True):
            over.wait(60)

    world.server(443, take_nothing, PUBLIC)
    guest = world.guest({"host": NAME, "methods": ["POST"]}, authorities=pem)
    head = f"POST / HTTP/1.1\r\nHost: {NAME}\r\nContent-Length: 100000000\r\n\r\n".encode()
    trust = ssl.create_default_context(cadata=guest.registration.ca)
    links = [trust.wrap_socket(guest.to(NAME, 443), server_hostname=NAME) for _ in range(200)]
    before = memory_kb(guest.registration.pid)
    for link in links:
        link.sendall(head)
    for link in links:
        link.settimeout(0.05)
        try:
            link.sendall(b"x" * 8_000_000)
        except TimeoutError:
            pass
    assert memory_kb(guest.registration.pid) - before < len(links) * 400
    over.set()


def held(world: World) -> list[int]:
    """How many bytes of kernel memory each connection of the gateway to a server holds, the most first."""
    with world.at(world.here):
        told = subprocess.run(["ss", "-tmnH"], capture_output=True, text=True, check=True).stdout
    found = re.findall(r"skmem:\(r(\d+),rb\d+,t(\d+),tb\d+,f\d+,w(\d+)", told)
    return sorted((sum(map(int, row)) for row in found), reverse=True)


@in_world
def test_answers_that_nobody_takes_hold_little_of_the_kernels_memory(world: World) -> None:
    """The kernel has one limit for the TCP of the whole host. Who reads for a while has windows made wide, and then
    stops reading: each connection would hold what the kernel allows for one, 6 MiB as it comes."""
    with world.at(world.here):
        Path("/proc/sys/net/ipv4/tcp_rmem").write_text("4096 131072 8388608")
    over = threading.Event()

    def pour_out(link: socket.socket) -> None:
        while not over.is_set():
            link.sendall(bytes(1 << 20))

    world.server(9000, pour_out, PRIVATE)
    guest, links = world.guest(f"{PRIVATE}:9000"), []
    for _ in range(40):
        link, left = guest.connect(PRIVATE, 9000), 8 << 20
        while left > 0:
            left -= len(link.recv(1 << 20))
        links.append(link)
    eventually(lambda: len(held(world)) == 40 and held(world)[0] > 1 << 20, told=lambda: held(world))
    wide, others = held(world)[:16], held(world)[16:]
    assert max(others) < 600_000 < wide[0], (wide, others)
    over.set()


@in_world
def test_a_flood_of_refusals_does_not_hide_what_was_allowed(world: World) -> None:
    world.server(9000, echo, PRIVATE)
    guest = world.guest(f"{PRIVATE}:9000", limits={"connections": 2})
    told: list[object] = []
    with world.at(guest.namespace):
        link = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    link.settimeout(30)
    for number in range(11_000):
        query = struct.pack("!6H", 7, 0x100, 1, 0, 0, 0) + b"\x06n%05d\0" % number + struct.pack("!2H", 1, 1)
        link.sendto(query, ("127.64.0.1", 53))
        link.recv(512)
        told += guest.registration.receive() if number % 500 == 0 else []
    is_served(guest)
    told += guest.events(1)
    assert any(event["decision"] == "allowed" for event in told)  # type: ignore[index]
    assert guest.registration.totals is not None
    assert len(told) + guest.registration.totals["uncounted"] == guest.registration.totals["refused"] + 1
