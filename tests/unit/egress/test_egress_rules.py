"""Who may be reached: names by the nearest rule, addresses by a rule of their own, and nobody by another spelling."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.egress.rules import Decision, RuleSet
from ringfence.model.network_list import read_rules

OWN = ("127.0.0.1", "10.1.2.7", "198.41.0.4", "fe80::1%eth0", "2600::7")


def ruleset(*entries: object) -> RuleSet:
    return RuleSet.of(read_rules(entries), OWN)


def decided(entries: str, host: str, port: int) -> Decision:
    return ruleset(*entries.split()).decide(host, port)


@pytest.mark.parametrize(
    ("entries", "host", "port", "rule"),
    [
        ("api.example.com", "api.example.com", 443, 0), ("api.example.com", "API.Example.com.", 80, 0),
        ("a.example *.b.example", "x.b.example", 443, 1), ("*.b.example", "y.x.b.example", 443, 0),
        ("*.example *.b.example a.b.example", "a.b.example", 443, 2),  # the nearest decides
        ("*.example *.b.example a.b.example", "c.b.example", 443, 1), ("*.example *.b.example", "c.example", 80, 0),
        ("a.example:443 *.example:8443", "a.example", 8443, 1), ("a:80 a:443", "a", 443, 1),
        ("a:8000-8010", "a", 8010, 0),
        ("xn--bcher-kva.example", "XN--Bcher-Kva.example", 443, 0), ("a_b.example", "A_b.example", 443, 0),
        ("93.184.215.14", "93.184.215.14", 443, 0), ("93.184.0.0/16 93.184.215.0/24", "93.184.215.14", 443, 1),
        ("[2606:2800::1]:443", "[2606:2800:0::1]", 443, 0), ("[2606:2800::/32]", "2606:2800::5", 80, 0),
        ("0.0.0.0/0:443", "1.1.1.1", 443, 0), ("[::/0]:443", "2606::1", 443, 0),
        ("10.1.2.0/24:5432", "10.1.2.3", 5432, 0), ("127.0.0.1:8080", "127.0.0.1", 8080, 0),
        ("127.0.0.0/8:8080", "127.0.0.1", 8080, 0), ("[::1]:9", "::1", 9, 0), ("10.1.2.7:1", "10.1.2.7", 1, 0),
        ("169.254.169.254:80", "169.254.169.254", 80, 0), ("[fd00:ec2::254]:80", "fd00:ec2::254", 80, 0),
        ("0.0.0.0/0 10.0.0.0/8", "10.5.5.5", 443, 1), ("203.0.113.0/24", "203.0.113.9", 443, 0),
        ("[64:ff9b::/96]:443", "64:ff9b::102:304", 443, 0), ("[fd00::/8]:1", "fd12::1", 1, 0),
        ("[2600::7]", "2600::7", 80, 0),
    ],
)  # fmt: skip
def test_what_is_listed_may_be_reached(entries: str, host: str, port: int, rule: int) -> None:
    decision = decided(entries, host, port)
    assert decision.allowed and decision.rule == rule and decision.reason.startswith("listed as ")


@pytest.mark.parametrize(
    ("entries", "host", "port", "reason"),
    [
        ("a.example", "b.example", 443, 'b.example:443 is not in the policy\'s network list; add "b.example:443"'),
        ("a.example", "a.example", 22, 'a.example is listed as a.example, without port 22; add "a.example:22" to'),
        ("0.0.0.0/0", "0.0.0.0", 80, "no rule can open it; ask for another host"),
        ("*.example.org", "example.org", 443, 'add "example.org:443" to network'),
        ("*.example.org", "badexample.org", 443, "is not in the policy's network list"),
        ("*.example.org", "a.example.org.evil.test", 443, "is not in the policy's network list"),
        ("a.example", "a.example.evil.test", 443, "is not in"), ("a.example", "evil.a.example", 443, "is not in"),
        ("a.example", "a.example..", 443, "empty label"), ("a.example", "a.example\0.evil.test", 443, "plain form"),
        ("a.example", "", 443, "plain form"), ("a.example", "a" * 9999, 443, "plain form"),
        ("*.x", "*.x", 443, "plain form"),
        ("a.example", "ａ.example", 443, "plain form"), ("a.example", "a.example:443", 443, "plain form"),
        ("a.example", "a.example/", 443, "plain form"), ("a.example", "[a.example]", 443, "plain form"),
        ("a.example", "a.example", 0, "port 0"), ("a.example", "a.example", 65536, "port 65536"),
        ("a.example", "a.example", -1, "port -1"), ("10.0.0.0/8", "10.0.0.0/8", 443, "plain form"),
        ("a.example", "1.1.1.1", 443, 'add "1.1.1.1:443" to network'),
        ("a.example", "2606::1", 443, 'add "[2606::1]:443"'),
        ("10.0.0.1", "10.0.0.2", 443, 'is not in the policy\'s network list and is private; add "10.0.0.2:443"'),
        ("127.0.0.1", "2130706433", 443, "write 127.0.0.1"), ("127.0.0.1", "0177.0.0.1", 443, "write 127.0.0.1"),
        ("127.0.0.1", "0x7f.1", 443, "write 127.0.0.1"), ("127.0.0.1", "127.1", 443, "write 127.0.0.1"),
        ("10.0.0.1", "::ffff:10.0.0.1", 443, "write 10.0.0.1"), ("[::/0]", "::ffff:7f00:1", 443, "write 127.0.0.1"),
        ("[::/0]", "fe80::1%1", 443, "plain form"), ("10.1.2.0/24", "10.1.2.3", 22, "without port 22"),
    ],
)  # fmt: skip
def test_what_is_not_listed_is_refused_with_what_to_do(entries: str, host: str, port: int, reason: str) -> None:
    decision = decided(entries, host, port)
    assert not decision.allowed and decision.rule is None and reason in decision.reason


SPECIAL = {
    "loopback": ["127.0.0.1", "127.255.255.254", "::1"],
    "private": ["10.9.9.9", "172.16.0.1", "172.31.255.255", "192.168.1.1", "100.64.0.1", "fc00::1", "fec0::1"],
    "link-local": ["169.254.1.1", "fe80::2"],
    "multicast": ["224.0.0.1", "239.1.1.1", "ff02::1"],
    "unspecified": ["0.0.0.0", "0.1.2.3", "::"],
    "reserved": ["192.0.2.1", "198.51.100.1", "203.0.113.5", "198.18.0.1", "240.0.0.1", "255.255.255.255", "192.0.0.1",
                 "2001:db8::1", "3fff::1", "1000::1", "4000::1", "9000::1", "2001:2::1", "100::1"],
    "metadata": ["169.254.169.254", "fd00:ec2::254", "169.254.170.2", "100.100.100.200", "168.63.129.16"],
    "this host": ["10.1.2.7", "198.41.0.4", "2600::7"],
    "NAT64": ["64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::1"],
    "6to4": ["2002:7f00:1::", "2002:a9fe:a9fe::1", "192.88.99.1"],
    "Teredo": ["2001::1", "2001:0:4136:e378:8000:63bf:3fff:fdd2"],
    "IPv4 in the form of IPv6": ["::ffff:127.0.0.1", "::ffff:8.8.8.8", "::127.0.0.1"],
}  # fmt: skip
EVERY = [(what, address) for what, addresses in SPECIAL.items() for address in addresses]
PUBLIC = ["1.1.1.1", "8.8.8.8", "172.32.0.1", "100.128.0.1", "169.253.1.1", "192.0.1.1", "223.255.255.255",
          "2606:4700::1111", "2a00::1", "2001:200::1", "2003::1"]  # fmt: skip


@pytest.mark.parametrize(("what", "address"), EVERY, ids=[address for _, address in EVERY])
def test_no_name_and_no_wide_network_leads_to_a_special_address(what: str, address: str) -> None:
    rules = ruleset("a.example", "0.0.0.0/0:443", "[::/0]:443", "0.0.0.0/1:443", "[::/1]:443")
    assert not rules.decide(address, 443).allowed
    found = rules.check_resolved("a.example", 443, [address])
    assert found.addresses == () and what in found.reason and f"a.example resolves to {address}" in found.reason


@pytest.mark.parametrize("address", PUBLIC)
def test_names_and_wide_networks_lead_to_public_addresses(address: str) -> None:
    rules = ruleset("a.example", "0.0.0.0/0:443", "[::/0]:443")
    assert rules.decide(address, 443).allowed
    assert ruleset("a.example").check_resolved("a.example", 443, [address]).addresses == (address,)


def test_only_a_rule_for_exactly_it_opens_a_metadata_service_and_the_host_itself() -> None:
    rules = ruleset("169.254.0.0/16:80", "10.1.2.0/24:80", "198.41.0.0/24:80")
    assert rules.decide("169.254.7.7", 80).allowed and rules.decide("10.1.2.8", 80).allowed
    for address, what in (("169.254.169.254", "metadata"), ("10.1.2.7", "this host"), ("198.41.0.4", "this host")):
        decision = rules.decide(address, 80)
        assert not decision.allowed and what in decision.reason and "exactly this address" in decision.reason
        assert decision.reason.endswith(f'add "{address}:80" to network')
        assert ruleset(f"{address}:80").decide(address, 80).allowed


def test_a_special_address_needs_a_rule_within_its_range() -> None:
    decision = decided("0.0.0.0/0:443", "10.1.1.1", 443)
    assert decision.reason == (
        '10.1.1.1 is private, and only a rule for a range within that one opens it; add "10.1.1.1:443" to network'
    )


def test_of_the_addresses_of_a_name_those_remain_that_it_may_lead_to() -> None:
    rules = ruleset("a.example", "10.5.0.0/16:443", "[fd12::1]:443")
    found = rules.check_resolved(
        "a.example", 443, ["10.6.0.1", "1.1.1.1", "10.5.0.1", "fd12::1", "1.1.1.1", "fe80::1%eth0", "::ffff:1.1.1.1"]
    )
    assert found.addresses == ("1.1.1.1", "10.5.0.1", "fd12::1") and not found.reason
    none = rules.check_resolved("a.example", 80, ["10.5.0.1"])
    assert none.addresses == ()
    assert none.reason.startswith("a.example resolves to 10.5.0.1, which is private; if you mean that: ")
    assert none.reason.endswith('add "10.5.0.1:80" to network')
    assert "no rule can open it" in rules.check_resolved("a.example", 80, ["::ffff:1.1.1.1"]).reason
    assert rules.check_resolved("a.example", 443, ["2600::7%eth0", "2606::1%eth0", "fd12::1%1"]).addresses == ()
    assert "is not an address" in rules.check_resolved("a.example", 80, ["x"]).reason
    assert "check the name" in rules.check_resolved("a.example", 80, []).reason


def test_what_dns_may_answer_is_what_is_listed_on_any_port() -> None:
    rules = ruleset("a.example:9", "*.b.example", "10.0.0.1")
    assert [name for name in ("a.example", "x.b.example", "b.example", "10.0.0.1", "") if rules.lists(name)] == [
        "a.example", "x.b.example",
    ]  # fmt: skip


def test_a_reason_carries_no_control_character_and_has_an_end() -> None:
    for host in ("\x1b[2J.example", "a" * 250 + "\x07", "\u202e.example"):
        reason = ruleset("a.example").decide(host, 443).reason
        assert reason.isprintable() and len(reason) < 400


WILD = st.text("aA.*x-_0123456789:[]/%\0\nü", max_size=24)


@pytest.mark.slow
@given(WILD | st.sampled_from(["a.example", "10.0.0.1"]), st.integers(-1, 70000))
def test_any_text_is_decided_and_only_what_is_listed_is_allowed(host: str, port: int) -> None:
    decision = ruleset("a.example", "10.0.0.1:80").decide(host, port)
    assert decision.reason
    if decision.allowed:
        plain = host.lower().removesuffix(".")
        assert (plain == "a.example" and port in (80, 443)) or (plain == "10.0.0.1" and port == 80)
