"""Policy files: plain YAML with places in every error, and nothing in it that could surprise."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from ringfence.errors import PolicyError, UsageError
from ringfence.model.policy import SandboxPolicy
from ringfence.model.policy_file import MAX_DEPTH, MAX_FILE_BYTES, read_policy


@pytest.fixture
def read(tmp_path: Path):
    def reader(text: str | bytes) -> SandboxPolicy:
        file = tmp_path / "policy.yaml"
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        return SandboxPolicy.from_yaml(file)

    return reader


@pytest.fixture
def refused(read):
    def reader(text: str | bytes) -> PolicyError:
        with pytest.raises(PolicyError) as caught:
            read(text)
        return caught.value

    return reader


def test_a_policy_file_is_read(read) -> None:
    policy = read(
        "# a comment\nwall_time_s: 1.5m\nmem_bytes: 64M\npids_max: 7\nallow_partial: true\n"
        "isolation: strict\nnetwork: [a.example, 10.0.0.1]\nhidden_paths:\n  - /etc\n"
        "environment: {A: one, B: '2', C: \"010\"}\nsyscall_profile: ~\n"
    )
    assert (policy.wall_time_s, policy.mem_bytes, policy.pids_max) == (90, 64 * 2**20, 7)
    assert [*map(str, policy.network_rule)] == ["a.example", "10.0.0.1"] and policy.hidden_paths == ("/etc",)
    assert dict(policy.environment) == {"A": "one", "B": "2", "C": "010"} and policy.allow_partial is True


def test_a_list_of_hosts_is_read_and_written(read) -> None:
    policy = read(
        "network:\n  - pypi.example.org\n  - '*.pypi.example.org:443'\n  - 10.1.2.0/24:5432\n  - '[2001:db8::1]:443'\n"
        "  - host: api.example.com\n    ports: [443, 8000-8010]\n    methods: [GET, POST]\n    paths: [/v1/messages]\n"
        "    inject: {header: x-api-key, from_env: MODEL_API_KEY}\n    max_bytes_out: 10M\n"
    )
    *texts, inspected = policy.network_rule
    assert [*map(str, texts)] == ["pypi.example.org", "*.pypi.example.org:443", "10.1.2.0/24:5432", "[2001:db8::1]:443"]
    assert inspected.ports == ((443, 443), (8000, 8010)) and inspected.max_bytes_out == 10 * 2**20
    assert read(yaml.safe_dump(policy.to_dict())) == policy


def test_a_mistake_in_a_list_of_hosts_is_told_with_file_line_and_key(refused, tmp_path: Path) -> None:
    error = refused("nofile: 5\nnetwork:\n  - ok\n  - a..b\n  - host: c\n    ports: 0\n    port: 1\n  - 127.1\n")
    told = [str(each) for each in (error, *error.more)]
    assert told == [
        f"{tmp_path}/policy.yaml:2:1: network: 'a..b' has an empty label; write one dot between two words",
        f'{tmp_path}/policy.yaml:2:1: network: entry 3, port: unknown key; did you mean "ports"?',
        f"{tmp_path}/policy.yaml:2:1: network: 127.1 is not a host; write a name, an address, or a mapping with host",
    ]
    twice = refused("network:\n  - host: a\n    host: b\n")
    assert str(twice).endswith(":3:5: network: host appears a second time")


def test_a_wildcard_without_quotes_is_an_alias_to_yaml_and_told_so(refused) -> None:
    for text in ("network: [*.a.example]\n", "network:\n  - *.a.example:443\n"):
        assert 'in quotes: "*.example.com"' in str(refused(text))


@pytest.mark.parametrize("text", ("", "# nothing\n", "\ufeff"))
def test_an_empty_file_is_the_default_policy(read, text: str) -> None:
    assert read(text) == SandboxPolicy()


def test_all_wrong_fields_are_named_at_once_in_the_order_of_the_file(refused, tmp_path: Path) -> None:
    """Whatever finds them: the reader of scalars, of sizes and times, the checks of ranges, or nobody knows the key."""
    error = refused(
        "wall_time_s: -1\nmem_bytes: x\nnofile: null\nallow_partial: yes\npids: 3\npids_max: 010\n"
        "environment: {A: on}\nnofile: 3\nisolation: thick\nwall_time_s: 5\n"
    )
    found = [(each.where.removeprefix(f"{tmp_path}/policy.yaml:"), each.field) for each in (error, *error.more)]
    assert found == [
        ("1:1: ", "wall_time_s"), ("2:1: ", "mem_bytes"), ("3:1: ", "nofile"), ("4:16: ", "allow_partial"),
        ("5:1: ", "pids"), ("6:11: ", "pids_max"), ("7:18: ", "environment"), ("8:1: ", "nofile"),
        ("9:1: ", "isolation"), ("10:1: ", "wall_time_s"),
    ]  # fmt: skip


def _strict_unless_told(path: Path) -> SandboxPolicy:
    return read_policy(str(path), SandboxPolicy.from_dict, {"isolation": "strict"})


def test_what_a_file_does_not_name_is_what_its_reader_says(tmp_path: Path) -> None:
    (tmp_path / "p").write_text("pids_max: 3\n")
    assert _strict_unless_told(tmp_path / "p") == SandboxPolicy(isolation="strict", pids_max=3)
    (tmp_path / "p").write_text("isolation: process\n")
    assert _strict_unless_told(tmp_path / "p") == SandboxPolicy()


def test_an_error_says_file_line_column_and_field(refused, tmp_path: Path) -> None:
    error = refused("wall_time_s: 5\n\npids_max: 0\nnofile: -1\n")
    assert str(error).startswith(f"{tmp_path}/policy.yaml:3:1: pids_max: ")
    assert [each.where for each in error.more] == [f"{tmp_path}/policy.yaml:4:1: "]


def test_a_key_that_stands_twice_is_refused_where_it_stands(refused) -> None:
    error = refused("pids_max: 5\npids_max: 6\n")
    assert error.field == "pids_max" and ":2:1: " in error.where and "second time" in error.problem
    assert "second time" in refused("environment: {A: x, A: y}").problem


@pytest.mark.parametrize("word", ("yes", "no", "On", "OFF", "y", "True", "FALSE", "Null"))
def test_a_word_that_programs_read_differently_is_refused(refused, read, word: str) -> None:
    assert "different" in refused(f"environment: {{A: {word}}}").problem
    assert read(f"environment: {{A: '{word}'}}").environment["A"] == word


@pytest.mark.parametrize("number", ("010", "0x10", "0b1", "0o7", "-010", "+0x1", "00", "00.5"))
def test_a_number_with_a_base_or_a_leading_zero_is_refused(refused, number: str) -> None:
    assert "plain decimal" in refused(f"pids_max: {number}").problem


@pytest.mark.parametrize("number", ("12:30:45", "1_000", "٣", "１２", "²", ".inf", ".nan", "1e400", "9" * 5000))
def test_what_only_some_programs_take_for_a_number_is_no_number(refused, number: str) -> None:
    assert refused(f"wall_time_s: {number}").field == "wall_time_s"
    assert refused(f"mem_bytes: {number}").field == "mem_bytes"


@pytest.mark.parametrize(("text", "value"), (("0.5", 0.5), ("5", 5), ("+5", 5), ("1e1", 10.0), ("7s", 7)))
def test_a_plain_number_is_a_number(read, text: str, value: float) -> None:
    assert read(f"wall_time_s: {text}").wall_time_s == value


@pytest.mark.parametrize(
    "text",
    (
        "pids_max: &a 5\nnofile: *a\n", "pids_max: !!int 5", "!!python/object:os.system {}", "a: ! x",
        "<<: {pids_max: 1}",
    ),
)
def test_aliases_tags_and_merges_are_refused(refused, text: str) -> None:
    assert refused(text).where


NO_MAPPING = ("[a, b]", "word", "5", "--- \n", "a: 1\n---\nb: 1\n", "{[a]: b}", "a: [", "a: b: c", "\t", "a: '")


@pytest.mark.parametrize("text", NO_MAPPING)
def test_what_is_no_single_mapping_is_refused(refused, text: str) -> None:
    assert refused(text).where


@pytest.mark.parametrize("opening", ("[", "{a: ", "- ", "? "))
def test_deep_nesting_is_refused_at_once(refused, opening: str) -> None:
    start = time.process_time()
    assert "deep" in refused(opening * (60_000 // len(opening))).problem
    assert time.process_time() - start < 60  # PyYAML alone takes about a minute for a tenth of it


def test_a_reasonable_depth_is_read_and_refused_for_what_it_is(refused) -> None:
    depth = MAX_DEPTH - 1
    assert refused("network: " + "[" * depth + "a" + "]" * depth).field == "network"


def test_a_file_of_another_kind_is_a_usage_error(read, tmp_path: Path) -> None:
    for text in (b"\xff\xfe\xfd", b"#" * (MAX_FILE_BYTES + 1)):
        with pytest.raises(UsageError) as caught:
            read(text)
        assert str(tmp_path) in str(caught.value)
    for path in (tmp_path / "none", tmp_path, Path("/dev/zero")):
        with pytest.raises(UsageError):
            SandboxPolicy.from_yaml(path)
    with pytest.raises(UsageError):
        SandboxPolicy.from_yaml("a\0b")


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "policy.yaml")
    (tmp_path / "link").symlink_to("policy.yaml")
    for name in ("policy.yaml", "link"):
        with pytest.raises(UsageError, match="not a regular file"):
            SandboxPolicy.from_yaml(tmp_path / name)


@pytest.mark.slow
def test_so_many_entries_that_reading_takes_long_are_refused(refused) -> None:
    for text in ("readable_paths: [" + "a," * 30_000 + "]", "{" + "a: b, " * 10_000 + "}"):
        assert "more than 10000 entries" in refused(text).problem


def test_errors_are_told_by_line_and_not_all_of_them(refused) -> None:
    lines = ["mem_bytes: x", *(f"k{number}: 1" for number in range(30)), "wall_time_s: x"]
    error = refused("\n".join(lines))
    told = [error, *error.more]
    assert [each.where.split(":")[-3] for each in told[:20]] == [str(line) for line in range(1, 21)]
    assert told[0].field == "mem_bytes" and str(told[-1]).endswith("and 12 more errors") and len(told) == 21
    mixed = refused("wall: 1\nmem_bytes: x\nmem: 1\n")
    assert [each.field for each in (mixed, *mixed.more)] == ["wall", "mem_bytes", "mem"]


SECRET = "hunter2" * 40
OTHER_FILES = {
    "shadow": f"root:$6${SECRET}:19000:0:99999:7:::\ndaemon:*{SECRET}:::\n",
    "long key": f"{SECRET}: 1\n",
    "long value": f"mem_bytes: {SECRET}\n",
    "long number": f"mem_bytes: 0{SECRET}\n",
    "alias": f"*{SECRET}\n",
    "twice": f"{SECRET}: 1\n{SECRET}: 1\n",
    "key of a key": f"environment: {{? [{SECRET}] : 1}}\n",
    "no YAML": f"a: b\n {SECRET}: c: {SECRET}\n",
}


@pytest.mark.parametrize("text", OTHER_FILES.values(), ids=OTHER_FILES)
def test_an_error_quotes_little_of_a_file_that_is_no_policy(refused, text: str) -> None:
    error = refused(text)
    for each in (error, *error.more):
        assert len(each.field) <= 40 and len(each.problem) <= 200 and each.field.isprintable()
        assert SECRET not in str(each) and "$6$" not in str(each)


STUMBLING_BLOCKS = {
    "escape beyond Unicode": 'environment: {A: "\\UFFFFFFFF"}',
    "half a character": 'environment: {A: "\\ud800"}',
    "version of 5000 digits": "%YAML 1." + "1" * 5000 + "\n---\na: 1",
    "control character": "a: \x01",
}


@pytest.mark.parametrize("text", STUMBLING_BLOCKS.values(), ids=STUMBLING_BLOCKS)
def test_what_the_yaml_library_trips_over_is_still_an_error_of_ours(read, text: str) -> None:
    with pytest.raises(UsageError):
        read(text)


YAML_PIECES = st.sampled_from(
    ["pids_max", "mem_bytes", "environment", ":", ": ", "\n", "  ", "- ", "[", "]", "{", "}", "'", '"', "#", "&a", "*a",
     "!!int", "|", ">", "?", "%YAML 1.1", "---", "...", "\\x", "\\U", "0x1", "1e9", "~", "\t", ",", "<<", "=", "@", "`"]
)  # fmt: skip


# An alphabet of our own: hypothesis spends seconds on a table of all characters first.
WILD = st.text("a5 \0\x07\x85\u00e9\u0663\u2028\ufeff\uffff\ud800\U0001f600", max_size=3)


@pytest.mark.slow
@given(st.lists(YAML_PIECES | WILD, max_size=12).map("".join))
def test_any_text_is_a_policy_or_an_error_that_names_the_file(text: str) -> None:
    with tempfile.NamedTemporaryFile(suffix=".yaml") as file:
        file.write(text.encode("utf-8", "surrogatepass"))
        file.flush()
        try:
            assert SandboxPolicy.from_yaml(file.name).nofile > 0
        except UsageError as error:
            assert file.name in str(error)
