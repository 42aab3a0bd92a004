"""What a sandbox has asked for when it ends: all of it is decided, named and told, however busy the gateway was."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from tests.patience import eventually
from tests.unit.egress.world import PRIVATE, PUBLIC, RESOLVER, SILENCE, Guest, World, echo, in_world, needs_ip

from ringfence.egress import ending
from ringfence.egress.sniffing import MOST_BYTES, Spoken
from ringfence.egress.told import MOST_TEXT
from ringfence.errors import SetupError
from ringfence.kernel.proc import procfs
from ringfence.model.network_rule import NetworkRule

pytestmark = [pytest.mark.system, pytest.mark.privileges, pytest.mark.unmeasured]
RESET = struct.pack("ii", 1, 0)
HELLO = b"\x05\x01\x00"


def connect_to(name: str) -> bytes:
    return f"CONNECT {name}:443 HTTP/1.1\r\nHost: {name}:443\r\n\r\n".encode()


def socks_to(name: str) -> bytes:
    return b"\x05\x01\x00\x03" + bytes((len(name),)) + name.encode() + b"\x01\xbb"


def query(name: str) -> bytes:
    labels = b"".join(bytes((len(label),)) + label.encode() for label in name.split("."))
    return struct.pack("!6H", 7, 0x100, 1, 0, 0, 0) + labels + b"\0" + struct.pack("!2H", 1, 1)


def reset(link: socket.socket) -> None:
    link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    link.close()


@contextmanager
def busy(guest: Guest) -> Iterator[None]:
    """The gateway does nothing meanwhile, and hears of the sandbox's end before it goes on."""
    os.kill(guest.registration.pid, signal.SIGSTOP)
    eventually(lambda: procfs.is_stopped(guest.registration.pid))
    try:
        yield
        guest.registration._send({"op": "close"})
    finally:
        os.kill(guest.registration.pid, signal.SIGCONT)


def refused(events: list[dict[str, object]]) -> set[object]:
    assert all(event["decision"] == "refused" for event in events), events
    return {event["name"] for event in events}


@needs_ip
@in_world
def test_requests_that_wait_when_the_sandbox_ends_are_decided(world: World) -> None:
    """More than are accepted in one turn; the kernel has answered for the gateway, and the guest is gone."""
    guest = world.guest("api.example.com")
    names = [f"evil-{number}.example.net" for number in range(150)]
    with busy(guest):
        for name in names:
            link = guest.proxy()
            link.sendall(connect_to(name))
            link.close()
    assert refused([dict(event) for event in guest.registration.close()]) == {*names}
    assert guest.registration.totals is not None and guest.registration.totals["uncounted"] == 0


@needs_ip
@in_world
def test_questions_that_wait_when_the_sandbox_ends_are_told(world: World) -> None:
    guest = world.guest("api.example.com")
    with world.at(guest.namespace):
        link = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    names = [f"evil-{number}.example.net" for number in range(100)]
    with link, busy(guest):
        for name in names:
            link.sendto(query(name), (RESOLVER, 53))
    assert refused([dict(event) for event in guest.registration.close()]) == {*names}


@needs_ip
@in_world
def test_questions_for_which_there_was_no_room_are_counted(world: World) -> None:
    """The record must not claim to be complete without them."""
    guest = world.guest("api.example.com")
    with world.at(guest.namespace):
        link = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with link, busy(guest):
        for number in range(5000):
            link.sendto(query(f"evil-{number}.example.net"), (RESOLVER, 53))
    told = guest.registration.close()
    assert guest.registration.totals is not None and guest.registration.totals["uncounted"] > 0
    assert len(told) + guest.registration.totals["uncounted"] == 5000


@needs_ip
@in_world
def test_nothing_new_is_connected_to_once_the_sandbox_has_ended(world: World) -> None:
    """What one turn takes may come before the word of the end; the rest may not."""
    accepted = world.server(9000, echo, PRIVATE)
    guest = world.guest(f"{PRIVATE}:9000")
    with busy(guest):
        for _ in range(80):
            with guest.connect(PRIVATE, 9000) as link:
                link.sendall(b"too late")
    events = guest.registration.close()
    late = [event for event in events if event["decision"] == "ended"]
    assert len(events) == 80 and len(late) >= 16 and len(accepted) <= 64
    assert all("closed" in event["reason"] and event["bytes_out"] == 0 for event in late)


@needs_ip
@in_world
def test_words_for_another_host_count_though_the_server_was_never_reached(world: World) -> None:
    world.answers["api.example.com"] = [SILENCE]
    guest = world.guest("api.example.com:80")
    for host in ("api.example.com", "evil.example.net"):
        with guest.to("api.example.com", 80) as link:
            link.sendall(f"GET / HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    eventually(lambda: guest.registration.count(1) or (guest.registration.counts or {}).get("connections") == 2)
    decisions = sorted((event["decision"], "evil" in event["reason"]) for event in guest.registration.close())
    assert decisions == [("ended", False), ("refused", True)]


@pytest.mark.parametrize("first", [HELLO + socks_to("evil.example.net"), connect_to("evil.example.net")])
def test_a_client_that_is_gone_before_it_is_answered_was_refused_all_the_same(first: bytes) -> None:
    @needs_ip
    @in_world
    def run(world: World) -> None:
        guest = world.guest("api.example.com")
        for _ in range(20):
            link = guest.proxy()
            link.sendall(first)
            reset(link)
        assert refused(guest.events(20)) == {"evil.example.net"}

    run()


@needs_ip
@in_world
def test_who_asks_for_nothing_was_not_allowed_anything(world: World) -> None:
    guest = world.guest("api.example.com", "*.w.example.com")
    for said in (b"", HELLO, b"CONNECT api.exam"):
        link = guest.proxy()
        link.sendall(said)
        reset(link)
    assert {event["decision"] for event in guest.events(3)} == {"ended"}


@needs_ip
@in_world
def test_many_refusals_at_the_end_all_arrive_with_the_totals(world: World) -> None:
    """More than a socket holds at once."""
    guest = world.guest("api.example.com")
    links = []
    for number in range(400):
        link = guest.proxy()
        link.sendall(connect_to(".".join([f"evil-{number}", *["x" * 60] * 3])))
        links.append(link)
    events = guest.registration.close()
    assert len({event["name"] for event in events}) == 400 and guest.registration.totals is not None
    assert sum(len(str(event)) for event in events) > 200 * MOST_TEXT


@needs_ip
@in_world
def test_a_visit_hears_of_its_refusals_before_the_client_is_gone(world: World) -> None:
    """A program in the background may keep the connection; and each visit hears of each name."""
    guest = world.guest("api.example.com", f"{PUBLIC}:9000")
    guest.registration.change(guest.rules[:1])
    with guest.connect(PUBLIC, 9000), guest.proxy() as kept:
        kept.sendall(connect_to("evil.example.net"))
        assert kept.recv(99).startswith(b"HTTP/1.1 403")
        for _ in range(2):
            assert guest.resolve("evil.example.org") is None
            guest.registration.count(30, visit_ends=True)
        names = sorted(event["name"] or event["address"] for event in guest.registration.receive())
    assert names == [PUBLIC, "evil.example.net", "evil.example.org", "evil.example.org"]


@needs_ip
@in_world
def test_rules_that_can_not_be_taken_change_nothing(world: World) -> None:
    world.server(9000, echo, PUBLIC)
    guest = world.guest(f"{PUBLIC}:9000")
    with pytest.raises(SetupError, match="used up its addresses"):
        guest.registration.change([NetworkRule.of(f"*.n{number}.example.com") for number in range(8300)])
    with guest.connect(PUBLIC, 9000) as link:
        link.sendall(b"x")
        assert link.recv(1) == b"x"


# ---- a refused client


def test_a_refused_client_is_heard_in_turns_and_up_to_a_number_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may always have more to say, in a protocol that is never known."""
    monkeypatch.setattr(ending, "spoken", lambda data: (Spoken.UNKNOWN, None))
    heard: list[bytes] = []
    turns: list[int] = []

    async def always_more(link: object, most: int) -> bytes:
        heard.append(bytes(MOST_BYTES // 8))
        if len(heard) > 100:
            raise ConnectionResetError
        return heard[-1]

    async def refuse() -> None:
        async def another() -> None:
            while True:
                turns.append(len(heard))
                await asyncio.sleep(0)

        other = asyncio.ensure_future(another())
        await ending.learn_to_speak(client)  # type: ignore[arg-type]
        other.cancel()

    client = SimpleNamespace(speaks="tcp", protocol=None, loop=SimpleNamespace(sock_recv=always_more), client=None)
    asyncio.run(refuse())
    assert len(heard) == 8 and turns == [*range(8)] and client.speaks == "tcp"
