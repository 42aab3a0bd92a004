"""Which sockets listen for a list, and which name each address stands for, both ways."""

from __future__ import annotations

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.egress.addresses import INET, INET6, AddressPlan, TargetKind
from ringfence.model.network_list import MAX_LISTENERS, read_rules

ALWAYS = [(INET, "127.64.0.1", 53, "udp"), (INET, "127.64.0.1", 53, "tcp"), (INET, "127.64.0.2", 3128, "tcp")]


def plan(*entries: object) -> AddressPlan:
    return AddressPlan.of(read_rules(entries))


def test_the_families_are_the_kernels() -> None:
    assert (INET, INET6) == (socket.AF_INET, socket.AF_INET6)


def test_each_name_has_an_address_of_its_own_and_listens_on_its_ports() -> None:
    made = plan("a.example:443", "b.example", "a.example:8443")
    assert [*made.rows[:3]] == ALWAYS
    assert [*made.rows[3:]] == [
        (INET, "127.64.1.0", 443, "tcp"), (INET, "127.64.1.0", 8443, "tcp"),
        (INET, "127.64.1.1", 80, "tcp"), (INET, "127.64.1.1", 443, "tcp"),
    ]  # fmt: skip
    assert (made.address_of("a.example"), made.address_of("b.example")) == ("127.64.1.0", "127.64.1.1")
    assert made.address_of("c.example") is made.address_of("x.a.example") is None
    target = made.target("127.64.1.1", 443)
    assert (target.kind, target.host) == (TargetKind.NAME, "b.example")


def test_addresses_are_listened_on_as_themselves_and_networks_on_all_of_their_family() -> None:
    made = plan("10.1.2.3:5432", "[2001:db8::1]:443", "10.1.0.0/16:9", "[fd00::/8]:7", "a:9", "a:5")
    assert [*made.rows[3:]] == [
        (INET, "10.1.2.3", 5432, "tcp"), (INET6, "2001:db8::1", 443, "tcp"), (INET, "0.0.0.0", 9, "tcp"),
        (INET6, "::", 7, "tcp"), (INET, "127.64.1.0", 5, "tcp"),
    ]  # fmt: skip
    for address in ("10.1.2.3", "10.1.9.9", "2001:db8::1", "127.0.0.1", "127.63.255.255", "127.65.0.0"):
        target = made.target(address, 9)
        assert (target.kind, target.host) == (TargetKind.ADDRESS, address)
    assert made.target("127.64.1.0", 9).host == "a"


def test_a_network_on_our_own_ports_takes_their_place() -> None:
    made = plan("10.0.0.0/8:53,3128")
    assert [*made.rows] == [ALWAYS[0], (INET, "0.0.0.0", 53, "tcp"), (INET, "0.0.0.0", 3128, "tcp")]
    assert made.target("127.64.0.1", 53).kind is TargetKind.DNS
    assert made.target("127.64.0.2", 3128).kind is TargetKind.PROXY
    assert made.target("127.64.0.2", 53).kind is made.target("127.64.0.1", 3128).kind is TargetKind.NOTHING


def test_sub_domains_of_a_wildcard_get_addresses_as_they_are_asked_for_and_share_the_last() -> None:
    made = plan("*.example:443", "z")
    assert len(made.rows) == 3 + 8 + 2 and made.address_of("z") == "127.64.1.8"
    assert made.target("127.64.1.0", 443).kind is TargetKind.NOTHING
    given_out = [made.address_of(f"n{number}.example") for number in range(12)]
    assert given_out == [f"127.64.1.{number}" for number in range(7)] + ["127.64.1.7"] * 5
    assert [made.address_of(f"n{number}.example") for number in range(12)] == given_out
    assert made.target("127.64.1.6", 443).host == "n6.example"
    shared = made.target("127.64.1.7", 443)
    assert (shared.kind, shared.host) == (TargetKind.SHARED, "*.example")
    assert made.address_of("example") is made.address_of("*.example") is None
    assert {made.rows[place][1] for place in range(3, 11)} == {f"127.64.1.{number}" for number in range(8)}


def test_a_million_sub_domains_take_no_memory() -> None:
    made = plan("*.example")
    for number in range(20_000):
        made.address_of(f"{number}.example")
    assert len(made._address) == 7


def test_the_nearest_wildcard_gives_the_address() -> None:
    made = plan("*.example:1", "*.b.example:2", "a.b.example:3")
    assert made.address_of("x.b.example") == "127.64.1.8" and made.address_of("x.example") == "127.64.1.0"
    assert made.address_of("a.b.example") == "127.64.1.16"
    listened = {(address, port) for _, address, port, _ in made.rows}
    assert {("127.64.1.8", 1), ("127.64.1.8", 2), ("127.64.1.16", 1), ("127.64.1.16", 3)} <= listened


def test_other_rules_move_nobody_and_take_the_name_from_who_is_gone() -> None:
    before = plan("a", "b", "*.example", "*.gone")
    for name in ("x.example", "y.example", "x.gone"):
        before.address_of(name)
    after = before.changed(read_rules(["*.example", "new", "b"]))
    assert {row for row in after.rows if row[1] != "127.64.1.18"} <= set(before.rows)
    for name in ("b", "x.example", "y.example"):
        assert after.address_of(name) == before.address_of(name)
    assert after.address_of("a") is after.address_of("x.gone") is None
    assert after.address_of("new") == "127.64.1.18", "one that nobody had"
    assert {row[2] for row in after.rows if row[1] == "127.64.1.18"} == {80, 443}
    for address in ("127.64.1.0", before.address_of("x.gone")):
        assert after.target(str(address), 443).kind is TargetKind.NOTHING
    assert after.address_of("z.example") == before.address_of("z.example") != before.address_of("x.example")
    back = after.changed(read_rules(["a", "y.example", "*.example"]))
    assert back.address_of("a") == "127.64.1.0" and back.target("127.64.1.0", 80).host == "a"
    assert back.address_of("y.example") == before.address_of("y.example")


def test_an_address_is_never_given_to_another_name() -> None:
    made = plan("a")
    for number in range(300):
        made = made.changed(read_rules(["a", f"n{number}", "*.example"][: 2 + number % 2]))
        assert made.address_of(f"n{number}") not in (None, made.address_of("a"))
    assert len(set(made._hosts.values())) == len(made._hosts) == 302
    made._hosts["z"] = 65535
    with pytest.raises(ValueError, match="used up its addresses"):
        made.changed(read_rules(["one.more"]))


HOSTS = ["a.example", "b.example", "*.example", "*.b.example", "10.0.0.1", "10.0.0.0/8", "[::1]", "[fd00::/8]", "c"]


@pytest.mark.slow
@given(st.lists(st.tuples(st.sampled_from(HOSTS), st.sampled_from(["80", "443", "53", "3128", "1-4"])), min_size=1))
def test_no_two_rows_want_the_same_and_every_name_is_heard_on_its_ports(pairs: list[tuple[str, str]]) -> None:
    rules = read_rules([f"{host}:{ports}" for host, ports in pairs])
    made = AddressPlan.of(rules)
    assert AddressPlan.of(rules).rows == made.rows and len(made.rows) <= MAX_LISTENERS
    tcp = {(address, port) for _, address, port, kind in made.rows if kind == "tcp"}
    assert len(tcp) == len(made.rows) - 1
    everywhere = {port for address, port in tcp if address == "0.0.0.0"}
    assert not [row for row in tcp if row[1] in everywhere and row[0] != "0.0.0.0" and ":" not in row[0]]
    for rule in rules:
        for port in (port for first, last in rule.ports for port in range(first, last + 1)):
            name = rule.host.replace("*", "q")
            address = rule.host if rule.is_address else made.address_of(name)
            assert rule.is_network or (address, port) in tcp or port in everywhere or ("::", port) in tcp
            assert rule.is_address or made.target(str(address), 1).host in (name, rule.host)
