"""A list that grows while the sandbox runs: sockets for it are made outside, of a spare pair from inside."""

from __future__ import annotations

import os
import socket

import pytest
from tests.patience import eventually
from tests.unit.egress.world import OTHER, PUBLIC, World, echo, http, in_world, needs_ip, read_all, response

from ringfence.egress.spare_sockets import SpareSockets
from ringfence.model.network_rule import NetworkRule

pytestmark = [pytest.mark.system, pytest.mark.privileges, needs_ip]
ASK = b"GET / HTTP/1.1\r\nHost: %b\r\n\r\n"


def _rules(*entries: str) -> list[NetworkRule]:
    return [NetworkRule.of(entry) for entry in entries]


@in_world
def test_what_comes_to_the_list_has_an_address_and_who_is_taken_off_has_none(world: World) -> None:
    world.answers |= {"api.example.com": [PUBLIC], "late.example.com": [OTHER]}
    world.server(8080, http, OTHER)
    world.server(9000, echo, OTHER)
    guest = world.guest("api.example.com:8080")
    assert guest.resolve("late.example.com") is None
    guest.registration.change(_rules("api.example.com:8080", "late.example.com:8080", f"{OTHER}:9000"))
    link = guest.to("late.example.com", 8080)
    link.sendall(ASK % b"late.example.com:8080")
    assert response(link).startswith(b"HTTP/1.1 200")
    with guest.connect(OTHER, 9000) as raw:
        raw.sendall(b"said")
        assert raw.recv(10) == b"said"
    address = guest.resolve("late.example.com")
    guest.registration.change(guest.rules)
    assert read_all(link) == b"", "what only the rule allowed has ended"
    assert guest.resolve("late.example.com") is None
    for place in ((address, 8080), (OTHER, 9000)):
        with pytest.raises(ConnectionRefusedError):
            guest.connect(str(place[0]), place[1])
    guest.registration.change(_rules("late.example.com:8080"))
    assert guest.resolve("late.example.com") == address, "it has its address again"
    with guest.to("late.example.com", 8080) as link:
        link.sendall(ASK % b"late.example.com:8080")
        assert response(link).startswith(b"HTTP/1.1 200")
    told = [event for event in guest.events(5) if event["protocol"] != "dns"]
    assert {event["decision"] for event in told} == {"allowed", "ended"}


@in_world
def test_a_name_that_came_late_is_held_to_as_any_other(world: World) -> None:
    world.answers |= {"api.example.com": [PUBLIC], "late.example.com": [PUBLIC], "inside.example.com": ["10.1.2.3"]}
    heard = world.server(8080, http)
    guest = world.guest("api.example.com:8080")
    guest.registration.change(_rules("api.example.com:8080", "late.example.com:8080", "inside.example.com:8080"))
    with guest.to("late.example.com", 8080) as link:
        link.sendall(ASK % b"api.example.com:8080")
        assert b" 421 " in read_all(link)
    with guest.to("inside.example.com", 8080) as link:
        link.sendall(ASK % b"inside.example.com:8080")
        assert b" 403 " in read_all(link)
    assert [event["decision"] for event in guest.events(2)] == ["refused", "refused"]
    assert all(each.getsockname()[0] == PUBLIC for each in heard if each.fileno() >= 0)


@in_world
def test_a_network_that_comes_takes_the_places_of_others_and_gives_them_back(world: World) -> None:
    world.answers |= {"api.example.com": [PUBLIC]}
    world.server(9000, echo)
    guest = world.guest("api.example.com:9000")
    for entries in (["api.example.com:9000", "93.184.216.0/24:9000"], ["api.example.com:9000"]) * 2:
        guest.registration.change(_rules(*entries))
        with guest.to("api.example.com", 9000) as link:
            link.sendall(b"said\n")
            assert link.recv(10) == b"said\n"
        if len(entries) > 1:
            with guest.connect(OTHER, 9000) as link:
                link.sendall(b"said")
                assert link.recv(10) == b"said"
        else:
            with pytest.raises(ConnectionRefusedError):
                guest.connect(OTHER, 9000)
    assert "refused" not in {event["decision"] for event in guest.events(6)}


@in_world
def test_lists_that_change_again_and_again_leave_nothing_open(world: World) -> None:
    guest = world.guest("api.example.com:9000")

    def sockets() -> int:
        guest.registration.change(_rules("api.example.com:9000"))
        folder = f"/proc/{guest.registration.pid}/fd"
        return sum(os.readlink(f"{folder}/{name}").startswith("socket:") for name in os.listdir(folder))

    guest.resolve("api.example.com")
    eventually(lambda: sockets() > 6)
    before = sockets()
    for number in range(100):
        guest.registration.change(_rules(f"n{number}.example.com:8000-8001", "[2606:2800::7]:4430"))
    assert sockets() == before
    assert guest.events(0) == []


@in_world
def test_a_stranger_where_the_pair_meets_gets_nothing(world: World) -> None:
    """The guest connects to it first: what is made is made of the pair's own connection."""
    spares = SpareSockets()
    pair = [socket.socket() for _ in range(2)]
    for each in pair:
        spares.add(each)
    pair[1].bind(("127.64.0.3", 0))
    pair[1].listen(4)
    strangers = [socket.create_connection(pair[1].getsockname()) for _ in range(3)]
    made = spares.listening(socket.AF_INET, "127.0.0.1", 9100)
    with socket.create_connection(("127.0.0.1", 9100)) as asks:
        accepted, asker = made.accept()
        assert asker == asks.getsockname()
        accepted.close()
    for stranger in strangers:
        stranger.settimeout(30)
        assert read_all(stranger) == b""
    made.close()
    with pytest.raises(OSError, match="assign"):
        SpareSockets().listening(socket.AF_INET, "127.0.0.1", 9100)
    spares.close()
    assert not len(spares)


@in_world
def test_who_keeps_the_pair_from_meeting_is_waited_for_once(world: World) -> None:
    """The guest fills the queue where they meet."""
    hears, calls = socket.socket(), socket.socket()
    hears.bind(("127.64.0.3", 0))
    spares = SpareSockets()
    spares.add(calls)
    spares.add(hears)
    before, strangers = socket.socket.listen, []

    def listen_and_be_flooded(link: socket.socket, most: int) -> None:
        before(link, most)
        for _ in range(most + 2):
            stranger = socket.socket()
            stranger.setblocking(False)
            stranger.connect_ex(link.getsockname())
            strangers.append(stranger)

    socket.socket.listen = listen_and_be_flooded  # type: ignore[method-assign, assignment]
    try:
        with pytest.raises(TimeoutError):
            spares.listening(socket.AF_INET, "127.0.0.1", 9100)
    finally:
        socket.socket.listen = before  # type: ignore[method-assign]
    assert spares.disturbed
    spares.listening(socket.AF_INET, "127.0.0.1", 9100).close()
    for each in (*strangers, calls, hears):
        each.close()
