"""A network list as a whole: all that is wrong is told, what it may come to is bounded, and what is listened for."""

from __future__ import annotations

import pytest

from ringfence.errors import PolicyError
from ringfence.model import network_list
from ringfence.model.network_list import listened, read_rules


def refused(*values: object) -> PolicyError:
    with pytest.raises(PolicyError) as caught:
        read_rules(values)
    return caught.value


def heard(*values: object) -> dict[str, tuple[int, ...]]:
    return dict(listened(read_rules(values)))


def test_every_wrong_entry_is_told_with_its_place_and_key() -> None:
    error = refused("a.example", "a..b", {"host": "b", "ports": 0, "paths": ["x"]}, 5, "c:0")
    assert {each.field for each in (error, *error.more)} == {"network"}
    assert [each.problem.partition(":")[0] for each in (error, *error.more)] == [
        "'a..b' has an empty label; write one dot between two words", "entry 3, ports", "entry 3, paths",
        "5 is not a host; write a name, an address, or a mapping with host", "'c",
    ]  # fmt: skip


def test_the_same_entry_twice_is_one() -> None:
    assert [str(rule) for rule in read_rules(["a", "A.", "b", "a:80,443", "a:8080"])] == ["a", "b", "a:8080"]


def test_entries_for_one_host_and_port_must_not_contradict() -> None:
    plain, inspected = "a.example:443", {"host": "a.example", "ports": [443, 8443], "methods": ["GET"]}
    assert "appears twice" in refused(plain, inspected).problem
    assert len(read_rules(["a.example:80", inspected, "*.example:443"])) == 3


def test_a_policy_has_a_bounded_number_of_ports() -> None:
    assert len(read_rules(["10.0.0.0/8:1-256"])) == 1
    assert "257 ports in all" in refused("10.0.0.0/8:1-200", "10.0.0.0/8:200-257").problem
    assert "65,535 ports" in refused("10.0.0.0/8:1-65535").problem
    assert read_rules([f"{host}:1-200" for host in "abcd"])  # the same ports


def test_a_policy_has_a_bounded_number_of_listening_sockets() -> None:
    room = network_list.MAX_LISTENERS - network_list.ALWAYS_LISTENING
    assert len(read_rules([f"n{number}:443" for number in range(room)])) == room
    assert "1,025 listening" in refused(*(f"n{number}:443" for number in range(room)), "x:1").problem
    assert "2,051 listening" in refused("*.example:1-256").problem
    assert read_rules(["*.example:1-100", "10.0.0.0/8:1-100"])  # all of IPv4 is listened on anyway


def test_a_list_has_a_bounded_number_of_entries() -> None:
    assert "more than 1,024 entries" in refused(*(f"n{number}:1" for number in range(1025))).problem


def test_what_is_listened_for() -> None:
    assert heard("a.example", "10.0.0.1:5", "[::1]:6") == {"a.example": (80, 443), "10.0.0.1": (5,), "::1": (6,)}
    assert heard("a:80", "a:443") == {"a": (80, 443)}


def test_a_name_is_heard_on_the_ports_of_the_wildcards_above_it() -> None:
    assert heard("a.b.example:1", "*.b.example:2", "*.example:3", "b.example:4", "x.test:5") == {
        "a.b.example": (1, 2, 3), "*.b.example": (2, 3), "*.example": (3,), "b.example": (3, 4), "x.test": (5,),
    }  # fmt: skip


def test_a_network_is_heard_on_every_address_and_spares_the_others_that_port() -> None:
    assert heard("a:5432", "b:80", "10.1.2.0/24:5432", "192.168.0.0/16:5432", "10.9.9.9:5432") == {
        "b": (80,), "0.0.0.0": (5432,),
    }  # fmt: skip
    assert heard("a:7", "[2001:db8::/32]:7", "[::1]:7") == {"a": (7,), "::": (7,)}
