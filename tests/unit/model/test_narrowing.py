"""What somebody else than the operator may ask of a policy: less, and nothing else."""

from __future__ import annotations

import pytest

from ringfence.errors import PolicyError
from ringfence.model.limits import LIMITS
from ringfence.model.narrowing import narrowed
from ringfence.model.policy import SandboxPolicy
from ringfence.model.record import field_names

LISTED = SandboxPolicy(
    isolation="strict", mem_bytes=2**29, network=("api.example.com:443,8000-8010", "b.example"),
    network_limits={"connections": 10, "bytes": 1000}, readable_paths=("/opt/a", "/opt/b"), writable_paths=("/srv/w",),
    hidden_paths=("/opt/a/secret",), pass_environment=("LANG",), environment={"KEY": "of the operator"},
)  # fmt: skip

LESS = [
    {"mem_bytes": "64M"},
    {"wall_time_s": 1, "cpu_time_s": 1, "pids_max": 1, "nofile": 16, "output_bytes": 10},
    {"disk_bytes": 2**20},
    {"file_bytes": 2**20},
    {"cpu_share": 0.5},
    {"network": "none"},
    {"network": ["b.example"]},
    {"network": ["api.example.com:8001"]},
    {"network_limits": {"connections": 3}},
    {"network_limits": {"bytes_out": 3}},
    {"readable_paths": ["/opt/a"]},
    {"readable_paths": ["/opt/a", "/srv/w"], "writable_paths": []},
    {"hidden_paths": ["/opt/b/mine"]},
    {"pass_environment": []},
    {"on_output_limit": "kill"},
    {"syscall_profile": "tight"},
    {"allow_partial": False},
    {"isolation": "strict"},
    {"environment": {"KEY": "of the operator"}},
]
MORE = [
    ("mem_bytes", "1G"),
    ("wall_time_s", 3600),
    ("disk_bytes", "unlimited"),
    ("disk_bytes", 2**40),
    ("allow_partial", True),
    ("isolation", "process"),
    ("isolation", "none"),
    ("isolation", "container"),
    ("network", "host"),
    ("network", ["evil.example"]),
    ("network", ["api.example.com:22"]),
    ("network", ["*.example.com"]),
    ("network", [{"host": "b.example", "inject": {"header": "x-key", "from_env": "SECRET"}}]),
    ("network", [{"host": "b.example", "sni": "optional"}]),
    ("network_limits", {"connections": 11}),
    ("readable_paths", ["/"]),
    ("readable_paths", ["/opt"]),
    ("readable_paths", ["/opt/a/../../etc"]),
    ("writable_paths", ["/opt/a"]),
    ("pass_environment", ["SECRET"]),
    ("environment", {"KEY": "mine"}),
    ("root", "/somewhere"),
    ("image", "other"),
    ("shown_at", {"/etc": "/mnt"}),
]


@pytest.mark.parametrize("wishes", LESS, ids=str)
def test_less_is_given(wishes: dict[str, object]) -> None:
    made = narrowed(LISTED, wishes)
    assert isinstance(made, SandboxPolicy)
    # Who asks for the whole again does not get it: the control.
    for name in wishes:
        try:
            again = narrowed(made, {name: LISTED.to_dict()[name]})
        except PolicyError:
            continue
        assert getattr(again, name) == getattr(made, name)


@pytest.mark.parametrize(("name", "value"), MORE, ids=str)
def test_more_is_refused_and_named(name: str, value: object) -> None:
    with pytest.raises(PolicyError) as caught:
        narrowed(LISTED, {name: value})
    assert name in [each.field for each in (caught.value, *caught.value.more)]


@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: limit.field)
def test_no_number_may_grow(limit: object) -> None:
    name = limit.field  # type: ignore[attr-defined]
    policy = SandboxPolicy(**{name: 5, **({"disk_bytes": 5} if name == "file_bytes" else {})})
    assert getattr(narrowed(policy, {name: 4}), name) == 4
    with pytest.raises(PolicyError):
        narrowed(policy, {name: 6})


def test_a_limit_cannot_be_taken_away() -> None:
    policy = SandboxPolicy(isolation="strict", file_bytes=5, cpu_share=1, io_bytes_per_s=5)
    for name in ("file_bytes", "cpu_share", "io_bytes_per_s"):
        with pytest.raises(PolicyError):
            narrowed(policy, {name: None})
    with pytest.raises(PolicyError):
        narrowed(SandboxPolicy(isolation="strict", disk_bytes=2**30), {"disk_bytes": None})


def test_what_is_hidden_stays_hidden() -> None:
    assert narrowed(LISTED, {"hidden_paths": ["/opt/b/x"]}).hidden_paths == ("/opt/a/secret", "/opt/b/x")
    assert narrowed(LISTED, {"hidden_paths": []}).hidden_paths == ("/opt/a/secret",)


def test_limits_of_a_network_that_are_not_named_stay() -> None:
    assert narrowed(LISTED, {"network_limits": {"connections": 2}}).network_limits == {"connections": 2, "bytes": 1000}
    with pytest.raises(PolicyError):
        narrowed(LISTED, {"network": ["b.example"], "network_limits": {"connections": 2}})


def test_of_the_hosts_network_any_part_may_be_had_but_no_secret() -> None:
    whole = SandboxPolicy(isolation="strict", network="host")
    assert narrowed(whole, {"network": ["a.example"]}).network != "host"
    with pytest.raises(PolicyError):
        narrowed(whole, {"network": [{"host": "a.example", "inject": {"header": "x", "from_env": "KEY"}}]})


def test_a_level_may_be_strengthened_where_its_jobs_see_the_host() -> None:
    assert narrowed(SandboxPolicy(isolation="process"), {"isolation": "strict"}).isolation == "strict"
    with pytest.raises(PolicyError):
        narrowed(SandboxPolicy(isolation="container"), {"isolation": "strict"})


def test_every_field_is_settled_unless_it_has_a_rule() -> None:
    """A new field of policies is refused until somebody has thought about it."""
    from ringfence.model import narrowing

    assert set(narrowing._RULES) <= set(field_names(SandboxPolicy))
    assert set(field_names(SandboxPolicy)) - set(narrowing._RULES) == {
        "root", "root_user", "image", "shown_at", "environment"}  # fmt: skip


def test_an_unknown_wish_is_an_error() -> None:
    with pytest.raises(PolicyError):
        narrowed(LISTED, {"mem_byte": 1})


def test_what_is_hidden_is_not_uncovered_by_something_that_is_no_list() -> None:
    for nothing in ({}, (), [], {"/opt/b": 1}):
        try:
            made = narrowed(LISTED, {"hidden_paths": nothing})
        except PolicyError as refused:
            assert refused.field == "hidden_paths"
        else:
            assert "/opt/a/secret" in made.hidden_paths
    for wrong in ([[]], [{}], [None]):
        with pytest.raises(PolicyError):
            narrowed(LISTED, {"hidden_paths": wrong})


def test_on_the_hosts_own_root_the_walls_cannot_be_asked_away() -> None:
    """There a policy without any path closes no file."""
    walled = SandboxPolicy(isolation="process", readable_paths=("/opt/a", "/opt/b"), writable_paths=("/srv/w",))
    with pytest.raises(PolicyError):
        narrowed(walled, {"readable_paths": [], "writable_paths": []})
    with pytest.raises(PolicyError):
        narrowed(SandboxPolicy(isolation="process", writable_paths=("/srv/w",)), {"writable_paths": []})
    # Controls: less, but something; and where a level closes everything by itself, nothing at all.
    assert narrowed(walled, {"readable_paths": [], "writable_paths": ["/srv/w"]}).readable_paths == ()
    strict = {"isolation": "strict", "readable_paths": [], "writable_paths": []}
    assert narrowed(walled, strict).writable_paths == ()
    assert narrowed(LISTED, {"readable_paths": [], "writable_paths": []}).readable_paths == ()


GUARDED = SandboxPolicy(isolation="strict", network=(
    "*.example.com", {"host": "api.example.com", "ports": [443, 8443], "methods": ["GET"]}, "10.1.0.0/16:443",
    {"host": "10.1.2.3", "ports": 443, "max_bytes_out": 1000},
))  # fmt: skip


def test_a_rule_that_demands_something_of_a_part_stays_with_the_whole() -> None:
    """The nearest rule decides, so a list without it would let more through the wider one."""
    get, capped = GUARDED.to_dict()["network"][1], GUARDED.to_dict()["network"][3]  # type: ignore[index]
    widened: list[list[object]] = [["*.example.com"], ["*.example.com", {**get, "ports": [8443]}], ["10.1.0.0/16:443"]]
    for network in widened:
        with pytest.raises(PolicyError) as caught:
            narrowed(GUARDED, {"network": network})
        assert caught.value.field == "network"
    # Controls: with it, or where the wider one does not reach.
    for network in (["*.example.com", {**get, "ports": [443]}], [get], ["10.1.0.0/16:443", capped],
                    ["*.example.com:80"]):  # fmt: skip
        assert len(narrowed(GUARDED, {"network": network}).network) == len(network)  # type: ignore[arg-type]


def test_bytes_of_a_rule_are_not_had_once_for_each_part_of_it() -> None:
    rule = {"host": "a.example", "ports": ["8000-8003"], "max_bytes_out": 1000}
    policy = SandboxPolicy(isolation="strict", network=(rule,))
    assert narrowed(policy, {"network": [{**rule, "ports": ["8001-8002"]}]}).network
    with pytest.raises(PolicyError):
        narrowed(policy, {"network": [{**rule, "ports": [8000]}, {**rule, "ports": [8001]}]})


def test_limits_that_hold_unnamed_do_not_grow_by_a_name() -> None:
    policy = SandboxPolicy(isolation="strict", network=("a.example",))
    assert narrowed(policy, {"network_limits": {"connections": 1024, "idle_s": 5}}).network_limits["idle_s"] == 5
    for limits in ({"connections": 1025}, {"idle_s": 601}):
        with pytest.raises(PolicyError):
            narrowed(policy, {"network_limits": limits})


def test_they_are_the_gateways_own() -> None:
    from ringfence.egress.sandbox_side import DEFAULTS
    from ringfence.model.network_list import UNNAMED

    assert {name: value for name, value in DEFAULTS.items() if value} == UNNAMED
