"""The policy: defaults of the specification, every wrong value a PolicyError that names its field."""

from __future__ import annotations

import copy
import dataclasses
import enum
import json
import os
import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.errors import PolicyError, UsageError
from ringfence.model.limits import LIMITS, IsolationLevel, OutputOverflow, SyscallProfile, Unit
from ringfence.model.network_rule import NetworkRule
from ringfence.model.policy import MOST_PROBLEMS, SandboxPolicy
from ringfence.model.policy_paths import MOST_PATHS
from ringfence.model.record import field_names

OPTIONAL = {"disk_bytes", "file_bytes", "cpu_share", "io_bytes_per_s"}
NEVER_A_NUMBER = {
    "zero": 0, "negative": -1, "fraction below zero": -0.5, "nan": float("nan"), "inf": float("inf"),
    "-inf": -float("inf"), "bool": True, "text": "many", "bytes": b"1", "list": [],
    "5000 digits": 10**5000, "minus 5000 digits": -(10**5000),
}  # fmt: skip


def refused(**fields: object) -> PolicyError:
    with pytest.raises(PolicyError) as caught:
        SandboxPolicy(**fields)  # type: ignore[arg-type]
    return caught.value


def test_a_level_that_there_is_not_is_refused_by_name_with_the_way_to_it() -> None:
    assert "in a VM of your own" in str(refused(isolation="vm"))
    for key in ("gpu", "devices"):
        with pytest.raises(PolicyError, match="no level gives a job a GPU"):
            SandboxPolicy.from_dict({key: 1})
    assert str(refused(isolation="vault")).endswith("is not one of none, process, container, strict")


def test_the_defaults_are_those_of_the_specification() -> None:
    policy = SandboxPolicy()
    assert policy.wall_time_s == 30 and policy.cpu_time_s == 20 and policy.mem_bytes == 512 * 2**20
    assert (policy.pids_max, policy.nofile, policy.output_bytes) == (32, 512, 2**20)
    assert policy.enforce_network is False and policy.allow_partial is False
    assert policy.isolation is IsolationLevel.PROCESS


@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: limit.field)
@pytest.mark.parametrize("kind", NEVER_A_NUMBER)
def test_a_number_that_means_nothing_is_refused_by_name(limit, kind) -> None:
    assert refused(**{limit.field: NEVER_A_NUMBER[kind]}).field == limit.field


@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: limit.field)
def test_the_largest_number_is_allowed_and_one_more_is_not(limit) -> None:
    extra = {"disk_bytes": 2**62} if limit.field == "file_bytes" else {}
    assert getattr(SandboxPolicy(**{limit.field: limit.largest, **extra}), limit.field) == limit.largest
    assert refused(**{limit.field: limit.largest + 1}).field == limit.field


@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: limit.field)
def test_only_optional_numbers_may_be_absent(limit) -> None:
    if limit.field in OPTIONAL:
        assert limit.capability not in SandboxPolicy(**{limit.field: None}).numbers()
    else:
        assert refused(**{limit.field: None}).field == limit.field


@pytest.mark.parametrize("limit", [limit for limit in LIMITS if limit.unit in (Unit.BYTES, Unit.COUNT)])
def test_what_is_counted_is_whole(limit) -> None:
    assert refused(**{limit.field: 10.0}).field == limit.field


@pytest.mark.parametrize(
    ("field", "value"),
    (
        ("enforce_network", 1), ("enforce_network", "yes"), ("allow_partial", None),
        ("isolation", "vault"), ("isolation", None), ("isolation", 3), ("isolation", ["process"]),
        ("on_output_limit", "explode"), ("on_output_limit", None), ("syscall_profile", "lax"),
        ("network", "some"), ("network", ()), ("network", []), ("network", 5), ("network", {"a": 1}),
        ("network", ["ok.example", ""]), ("network", ["a b"]), ("network", ["a/b"]), ("network", [5]),
        ("network", ["x" * 256]), ("network", ["straße.example"]), ("network", ["a\nb"]), ("network", [["a"]]),
        ("network", ["*"]), ("network", ["http://a.example"]), ("network", ["a.example:0"]), ("network", ["127.1"]),
        ("network", [{"host": "a.example", "port": 1}]), ("network", [{}]), ("network", ["10.0.0.0/8:1-257"]),
        ("readable_paths", "/etc"), ("readable_paths", b"/etc"), ("readable_paths", 5), ("readable_paths", [5]),
        ("readable_paths", [["/etc"]]), ("readable_paths", [{}]), ("writable_paths", ["etc"]),
        ("writable_paths", [""]), ("hidden_paths", ["/a/../b"]), ("hidden_paths", ["/a/"]),
        ("hidden_paths", ["//etc"]), ("hidden_paths", ["/a\0b"]), ("hidden_paths", ["/\ud800"]),
        ("hidden_paths", ["/a", "/a"]), ("hidden_paths", ["/"]),
        ("environment", "A=1"), ("environment", [("A", "1")]), ("environment", {"A": 1}),
        ("environment", {"": "x"}), ("environment", {"A=B": "x"}), ("environment", {"A\0": "x"}),
        ("environment", {"A": "x\0y"}), ("environment", {"A": "\ud800"}), ("environment", {5: "x"}),
        ("pass_environment", "HOME"), ("pass_environment", {"HOME": 1}), ("pass_environment", ["A=B"]),
        ("pass_environment", [""]), ("pass_environment", [5]), ("pass_environment", [["A"]]),
    ),
)  # fmt: skip
def test_a_wrong_value_is_refused_by_name(field: str, value: object) -> None:
    assert refused(**{field: value}).field == field


_LONGEST = "/" + "/".join(["n" * 255] * 15) + "/" + "n" * 255  # 4096 bytes


@pytest.mark.parametrize("fields", [
    {"hidden_paths": ["/a" * 30_000]}, {"readable_paths": [f"{_LONGEST}n"]}, {"writable_paths": ["/" + "n" * 256]},
    {"hidden_paths": ["/" + "é" * 128]}, {"root": "/a" * 3000, "isolation": "strict"},
    {"shown_at": {"/a" * 3000: "/b"}, "isolation": "strict"}, {"shown_at": {"/a": "/b" * 3000}, "isolation": "strict"},
    {"hidden_paths": ["/" + "\udcff" * 256]},
], ids=lambda fields: str(fields)[:30])  # fmt: skip
def test_a_path_that_no_call_takes_is_refused_and_not_shown_whole(fields: dict[str, object]) -> None:
    error = refused(**fields)
    assert error.field == next(iter(fields)) and "has at most" in error.problem and "name a directory" in error.problem
    assert len(str(error)) < 500


def test_the_longest_path_that_there_can_be_is_taken() -> None:
    assert len(os.fsencode(_LONGEST)) == 4096
    for path in (_LONGEST, "/" + "é" * 127, "/" + "\udcff" * 255):
        assert SandboxPolicy(hidden_paths=[path]).hidden_paths == (path,)  # type: ignore[arg-type]


def test_a_policy_has_a_limited_number_of_paths_over_all_its_lists() -> None:
    half = MOST_PATHS // 2
    readable, hidden = [f"/r{number}" for number in range(half)], [f"/h{number}" for number in range(half)]
    assert SandboxPolicy(readable_paths=readable, hidden_paths=hidden)  # type: ignore[arg-type]
    error = refused(readable_paths=readable, hidden_paths=[*hidden, "/one"])
    assert error.field == "hidden_paths" and "10,000 paths in all" in error.problem and not error.more


def test_of_thousands_of_mistakes_not_all_become_errors() -> None:
    assert len(refused(pass_environment=["A=B"] * 5000).more) == MOST_PROBLEMS - 1
    assert len(refused(pass_environment=["A=B"] * 50).more) == 49  # the control


@pytest.mark.parametrize("value", ["x" * 10**5, {"x" * 10**5: 1}, [["x" * 10**5]]], ids=["text", "mapping", "list"])
@pytest.mark.parametrize("field", [*field_names(SandboxPolicy), "y" * 10**5], ids=lambda name: name[:20])
def test_no_error_shows_more_of_a_value_than_its_beginning(field: str, value: object) -> None:
    with pytest.raises(PolicyError) as caught:
        SandboxPolicy.from_dict({field: value})
    assert max(len(str(each)) for each in (caught.value, *caught.value.more)) < 1000


def test_fields_that_contradict_each_other_are_refused() -> None:
    assert refused(network="host", enforce_network=True).field == "network"
    assert refused(file_bytes=20, disk_bytes=10).field == "file_bytes"
    assert refused(readable_paths=["/a"], hidden_paths=["/a"]).field == "hidden_paths"


def test_two_spellings_of_one_path_cannot_be_both_shown_and_hidden() -> None:
    assert "'/etc'" in refused(readable_paths=["/etc"], hidden_paths=["//etc"]).problem


def test_all_that_is_wrong_is_told_at_once() -> None:
    error = refused(pids_max=0, nofile=-1, isolation="x")
    assert [each.field for each in (error, *error.more)] == ["pids_max", "nofile", "isolation"]


def test_lists_paths_and_plain_words_are_made_uniform() -> None:
    policy = SandboxPolicy(
        readable_paths=[Path("/etc"), "/usr"], network=["a.example"], isolation="strict", syscall_profile="tight",
        on_output_limit="kill", pass_environment=["LANG"], environment={"A": "1"},
    )  # type: ignore[arg-type]  # fmt: skip
    assert policy.readable_paths == ("/etc", "/usr") and policy.network == (NetworkRule(host="a.example"),)
    assert policy.isolation is IsolationLevel.STRICT and policy.syscall_profile is SyscallProfile.TIGHT
    assert policy.on_output_limit is OutputOverflow.KILL and policy.pass_environment == ("LANG",)


def test_numbers_and_texts_of_a_subclass_become_plain_ones() -> None:
    class Seconds(float):
        pass

    class Size(enum.IntEnum):
        SMALL = 4096

    class Word(str, enum.Enum):  # noqa: UP042  (its str() is not its value)
        A = "value"

    policy = SandboxPolicy(wall_time_s=Seconds(2), mem_bytes=Size.SMALL, environment={Word.A: Word.A})
    assert type(policy.wall_time_s) is float and type(policy.mem_bytes) is int
    assert [(type(name), name, value) for name, value in policy.environment.items()] == [(str, "value", "value")]


def test_a_policy_cannot_be_changed_neither_itself_nor_what_it_was_made_of() -> None:
    given_environment = {"A": "1"}
    policy = SandboxPolicy(environment=given_environment)
    given_environment["A"] = "2"
    assert policy.environment["A"] == "1"
    with pytest.raises(TypeError):
        policy.environment["A"] = "3"  # type: ignore[index]
    with pytest.raises(AttributeError):
        policy.pids_max = 10**6  # type: ignore[misc]


def test_a_value_without_a_name_is_refused_in_words() -> None:
    with pytest.raises(UsageError, match="SandboxPolicy: 5 has no name") as refused:
        SandboxPolicy(5)  # type: ignore[misc]
    assert refused.value.hint.startswith("fields are given by name: wall_time_s, cpu_time_s, ")


def test_a_change_is_checked_anew() -> None:
    assert SandboxPolicy().with_changes(pids_max=5).pids_max == 5
    with pytest.raises(PolicyError):
        SandboxPolicy().with_changes(pids_max=0)


def test_a_policy_can_be_copied_pickled_and_taken_apart() -> None:
    policy = SandboxPolicy(environment={"A": "1"}, network=["a.example"])
    assert pickle.loads(pickle.dumps(policy)) == copy.deepcopy(policy) == policy
    assert dataclasses.asdict(policy)["environment"] == {"A": "1"}
    assert hash(policy) == hash(copy.deepcopy(policy))


@pytest.mark.parametrize(
    ("fields", "rule"),
    (
        ({}, "host"), ({"enforce_network": True}, "none"), ({"isolation": "strict"}, "none"),
        ({"isolation": "container"}, "none"), ({"isolation": "strict", "network": "host"}, "host"),
        ({"network": ["A.example."]}, (NetworkRule(host="a.example"),)),
    ),
)  # fmt: skip
def test_the_network_rule_when_the_field_is_absent(fields, rule) -> None:
    assert SandboxPolicy(**fields).network_rule == rule


def test_what_is_requested_is_what_is_set() -> None:
    plain = SandboxPolicy().requested()
    assert set(plain) == {"wall_time", "cpu_time", "memory", "pids", "nofile", "output"}
    asked = SandboxPolicy(
        enforce_network=True, hidden_paths=["/etc"], syscall_profile="tight", disk_bytes=5, cpu_share=0.5,
        io_bytes_per_s=7
    ).requested()
    assert set(asked) - set(plain) == {"network", "hidden_paths", "syscalls", "disk", "cpu_share", "io"}
    assert asked["network"] == "none" and asked["hidden_paths"] == ("/etc",)


def test_a_list_of_hosts_is_plain_data_outside_and_rules_inside() -> None:
    policy = SandboxPolicy(network=["B.example.:443,80", INSPECTED, NetworkRule(host="a.example", ports=(1, 2))])
    plain = ["b.example", INSPECTED, "a.example:1-2"]
    assert policy.to_dict()["network"] == plain == json.loads(json.dumps(plain))
    assert policy.requested()["network"] == tuple(plain)
    again = SandboxPolicy.from_dict(policy.to_dict())
    assert again == policy and hash(again) == hash(policy) and {policy: 1}[again] == 1
    assert pickle.loads(pickle.dumps(policy)) == copy.deepcopy(policy) == policy.with_changes(network=plain)
    assert dataclasses.asdict(policy)["network"][0]["host"] == "b.example"
    assert policy != policy.with_changes(network=plain[:2])


def test_all_wrong_hosts_are_told_at_once() -> None:
    error = refused(network=["a..b", "ok.example", {"host": "c", "ports": 0}], pids_max=0)
    assert [each.field for each in (error, *error.more)] == ["pids_max", "network", "network"]
    assert error.more[1].problem == "entry 3, ports: port 0 is not between 1 and 65535"


def plain_paths() -> st.SearchStrategy[str]:
    return st.text("abc.", min_size=1, max_size=8).map(lambda name: os.path.normpath("/x/" + name))


INSPECTED = {
    "host": "api.example.com", "ports": [443, "8000-8010"], "methods": ["GET"], "paths": ["/v1"], "max_bytes_in": 7,
    "inject": {"header": "x-api-key", "from_env": "MODEL_API_KEY"}, "max_bytes_out": 10 * 2**20,
}  # fmt: skip
TEXTS = st.text("ab= \n\u00e9\u0663\udc80\U0001f600")
POLICIES = st.fixed_dictionaries(
    {},
    optional={
        **{
            limit.field: st.integers(1, int(limit.largest))
            for limit in LIMITS
            if limit.field not in ("file_bytes", "disk_bytes")
        },
        "wall_time_s": st.floats(0.001, 10**6),
        "disk_bytes": st.none() | st.integers(10**6, 2**62),
        "file_bytes": st.none() | st.integers(1, 10**6),
        "allow_partial": st.booleans(),
        "isolation": st.sampled_from(list(IsolationLevel)),
        "on_output_limit": st.sampled_from(list(OutputOverflow)),
        "syscall_profile": st.none() | st.sampled_from(list(SyscallProfile)),
        "network": st.sampled_from((None, "none", "host", ["a.example", "b.example:443"], [INSPECTED, "*.b:1-9"])),
        "readable_paths": st.lists(plain_paths(), unique=True, max_size=3),
        "environment": st.dictionaries(st.text("ABC_", min_size=1), TEXTS),
    },
)  # fmt: skip


@pytest.mark.slow
@given(POLICIES)
def test_plain_data_makes_an_equal_policy(fields: dict[str, object]) -> None:
    policy = SandboxPolicy(**fields)  # type: ignore[arg-type]
    plain = policy.to_dict()
    assert SandboxPolicy.from_dict(plain) == policy
    assert tuple(plain) == field_names(SandboxPolicy)


# An alphabet of our own: hypothesis spends seconds on a table of all characters first.
WILD = st.text("a/.=5M \0\n\u00e9\u0663\ud800\U0001f600", max_size=8)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | WILD | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WILD, inner, max_size=3),
    max_leaves=6,
)


@pytest.mark.slow
@given(st.dictionaries(st.sampled_from(field_names(SandboxPolicy)) | WILD, ANYTHING, max_size=4))
def test_any_plain_data_is_a_policy_or_a_policy_error(values: dict[str, object]) -> None:
    try:
        assert SandboxPolicy.from_dict(values).pids_max > 0
    except PolicyError as error:
        assert error.field in set(values) | {""}


@pytest.mark.parametrize("text", ("much", "9" * 400, "9" * 5000, "1e9", "-1M", ""))
def test_text_that_is_no_size_is_refused_by_name(text: str) -> None:
    with pytest.raises(PolicyError) as caught:
        SandboxPolicy.from_dict({"mem_bytes": text})
    assert caught.value.field == "mem_bytes"


@pytest.mark.parametrize("text", ("soon", "9" * 400, "5K"))
def test_text_that_is_no_time_is_refused_by_name(text: str) -> None:
    with pytest.raises(PolicyError) as caught:
        SandboxPolicy.from_dict({"wall_time_s": text})
    assert caught.value.field == "wall_time_s"


def test_an_unknown_key_is_named_with_the_nearest_known_one() -> None:
    with pytest.raises(PolicyError, match='did you mean "mem_bytes"') as caught:
        SandboxPolicy.from_dict({"mem_byte": 5, "zzz": 1, 7: 1})  # type: ignore[dict-item]
    assert [each.field for each in (caught.value, *caught.value.more)] == ["mem_byte", "zzz", "7"]


@pytest.mark.parametrize("values", (None, [], "x", 5))
def test_what_is_no_mapping_is_no_policy(values) -> None:
    with pytest.raises(PolicyError, match="mapping"):
        SandboxPolicy.from_dict(values)


def test_strict_bounds_the_disk_unless_the_policy_says_otherwise() -> None:
    assert SandboxPolicy(isolation="strict").numbers()["disk"] == 10 * 2**30
    assert SandboxPolicy(isolation="strict", disk_bytes=5).numbers()["disk"] == 5
    assert "disk" not in SandboxPolicy().numbers()


def test_a_policy_can_say_that_the_disk_is_not_bounded() -> None:
    policy = SandboxPolicy.from_dict({"isolation": "strict", "disk_bytes": "unlimited"})
    assert policy.numbers()["disk"] == policy.disk_bytes == 2**62
    assert SandboxPolicy.from_dict(policy.to_dict()) == policy
    with pytest.raises(PolicyError, match="unlimited"):
        SandboxPolicy.from_dict({"file_bytes": "unlimited"})


def test_texts_are_read_wherever_a_policy_is_made() -> None:
    texts = {"mem_bytes": "64M", "wall_time_s": "1.5m", "disk_bytes": "unlimited", "output_bytes": "1KiB"}
    made = SandboxPolicy(**texts)  # type: ignore[arg-type]
    assert made == SandboxPolicy.from_dict(texts)
    assert (made.mem_bytes, made.wall_time_s, made.output_bytes) == (64 * 2**20, 90, 1024)
    assert SandboxPolicy().with_changes(wall_time_s="2m").wall_time_s == 120


@pytest.mark.parametrize(
    ("field", "text", "problem"),
    [
        ("mem_bytes", "512X", '"512X" is not a size; write 512M, 512MiB or a number of bytes'),
        ("mem_bytes", "-1M", '"-1M" is not a size'),
        ("mem_bytes", "0M", "0 must be greater than 0"),
        ("wall_time_s", "soon", '"soon" is not a time; write 30, 1.5s, 10m or 2h'),
        ("wall_time_s", "1e9", '"1e9" is not a time'),
        ("pids_max", "32", "'32' is not a whole number"),
        ("disk_bytes", "unlimitedd", '"unlimitedd" is not a size'),
    ],
)
def test_a_text_that_is_no_number_is_refused_in_the_same_words(field: str, text: str, problem: str) -> None:
    for make in (lambda: SandboxPolicy(**{field: text}), lambda: SandboxPolicy.from_dict({field: text})):
        with pytest.raises(PolicyError) as error:
            make()
        assert error.value.field == field and problem in error.value.problem


def test_an_unknown_field_is_told_as_in_a_file() -> None:
    error = refused(mem_byts=1, foo=2)
    assert (error.field, error.more[0].field) == ("mem_byts", "foo") and 'did you mean "mem_bytes"?' in str(error)
    with pytest.raises(PolicyError, match="foo: unknown key"):
        SandboxPolicy().with_changes(foo=1)
    with pytest.raises(PolicyError) as caught:
        SandboxPolicy.from_dict({"foo": 1, "pids_max": 0, "mem_bytes": "x"})
    assert [each.field for each in (caught.value, *caught.value.more)] == ["foo", "pids_max", "mem_bytes"]
