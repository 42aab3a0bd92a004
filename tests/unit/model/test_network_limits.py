"""Limits of a network list in a policy: what is read, what is refused, and that they come back as they went."""

from __future__ import annotations

import pytest

from ringfence import PolicyError, SandboxPolicy
from ringfence.model.network_rule import NetworkRule

LIST = {"isolation": "strict", "network": ["api.example.com"]}


def test_texts_are_read_as_numbers_and_a_round_trip_changes_nothing() -> None:
    given = {"connections": 20, "connections_per_second": 5, "bytes_out": "10M", "bytes_in": 7, "idle_s": "1m",
             "total_s": 2}  # fmt: skip
    policy = SandboxPolicy.from_dict({**LIST, "network_limits": given})
    assert dict(policy.network_limits) == {
        "connections": 20, "connections_per_second": 5, "bytes_out": 10 << 20, "bytes_in": 7, "idle_s": 60.0,
        "total_s": 2.0,
    }  # fmt: skip
    again = SandboxPolicy.from_dict(policy.to_dict())
    assert again == policy and hash(again) == hash(policy)


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ({"conections": 1}, "did you mean"),
        ({"connections": 0}, "connections: 0 must be greater than 0"),
        ({"connections": -1}, "must be greater than 0"),
        ({"connections": 1.5}, "not a whole number"),
        ({"connections": True}, "not a number"),
        ({"bytes_out": "ten"}, "bytes_out"),
        ({"idle_s": float("nan")}, "not a finite number"),
        ({"total_s": 10**100}, "at most 4,611,686,018,427,387,904"),
        ({5: 1}, "unknown key"),
        ([1], "must be a mapping"),
    ],
)
def test_what_has_no_meaning_is_refused_by_name(limits: object, said: str) -> None:
    with pytest.raises(PolicyError, match=said) as caught:
        SandboxPolicy.from_dict({**LIST, "network_limits": limits})
    assert caught.value.field == "network_limits"


@pytest.mark.parametrize("network", ["none", "host", None])
def test_only_a_list_has_limits(network: str | None) -> None:
    with pytest.raises(PolicyError, match="only a network list"):
        SandboxPolicy.from_dict({"isolation": "strict", "network": network, "network_limits": {"connections": 1}})


def test_whether_a_server_must_be_named_is_part_of_a_rule() -> None:
    rule = NetworkRule.of({"host": "a.example", "sni": "optional"})
    assert rule.plain() == {"host": "a.example", "sni": "optional"} and NetworkRule.of(rule.plain()) == rule
    assert NetworkRule.of("a.example").sni == "required"
    with pytest.raises(PolicyError, match="required or optional"):
        NetworkRule.of({"host": "a.example", "sni": "no"})
