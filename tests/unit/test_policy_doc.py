"""docs/reference/policy.md against the code: every field, type, unit, default, flag and mechanism that it names."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from unittest import mock

import pytest

from ringfence.backends.process import ProcessBackend
from ringfence.cli.policy_flags import add_policy_flags
from ringfence.engine.run import BACKENDS
from ringfence.errors import PolicyError
from ringfence.model.limits import LIMITS, IsolationLevel, OutputOverflow, SyscallProfile, Unit
from ringfence.model.policy import SandboxPolicy
from ringfence.model.record import field_names

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "policy.md").read_text(encoding="utf-8")
LIMIT_OF_FIELD = {limit.field: limit for limit in LIMITS}
FIELDS = field_names(SandboxPolicy)


def table(header: str) -> list[list[str]]:
    """The rows of the table whose header line begins so."""
    below = TEXT.split(f"\n{header}", 1)[1].splitlines()[2:]
    rows = below[: next((place for place, line in enumerate(below) if not line.startswith("|")), len(below))]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


FACTS = {row[0].strip("`"): row for row in table("| field | type |")}
MEANINGS = {row[0].strip("`"): row for row in table("| field | meaning |")}
REFUSED = [re.findall("`([^`]+)`", row[1]) for row in table("| form |")]


def policy_of(folder: Path, text: str) -> SandboxPolicy:
    file = folder / "policy.yaml"
    file.write_text(text, encoding="utf-8")
    return SandboxPolicy.from_yaml(file)


@pytest.mark.parametrize("rows", [FACTS, MEANINGS], ids=["facts", "meanings"])
def test_both_tables_have_every_field_in_its_order(rows: dict[str, list[str]]) -> None:
    assert tuple(rows) == FIELDS


@pytest.mark.parametrize("field", FIELDS)
def test_the_default_that_is_written_is_the_default(field: str, tmp_path: Path) -> None:
    written = FACTS[field][3].strip("`")
    default = getattr(SandboxPolicy(), field)
    if written == "absent":
        assert not default and default is not False
    else:
        assert getattr(policy_of(tmp_path, f"{field}: {written}\n"), field) == default


@pytest.mark.parametrize("field", sorted(LIMIT_OF_FIELD))
def test_type_unit_and_flag_of_a_number_are_those_of_the_table_of_limits(field: str) -> None:
    limit = LIMIT_OF_FIELD[field]
    whole = limit.unit in (Unit.BYTES, Unit.COUNT)
    _, kind, unit, _, flag, _ = FACTS[field]
    assert (kind, unit, flag) == ("whole number" if whole else "number", limit.unit, f"`{limit.flag}`")


@pytest.mark.parametrize(
    ("field", "kind"),
    [("isolation", IsolationLevel), ("on_output_limit", OutputOverflow), ("syscall_profile", SyscallProfile)],
)
def test_the_choices_of_a_field_are_all_written(field: str, kind: type[IsolationLevel]) -> None:
    assert set(re.split(r", | or ", FACTS[field][1])) == {str(member) for member in kind}


def test_the_levels_that_are_said_to_be_in_this_version_are() -> None:
    assert set(re.findall("`([^`]+)`", MEANINGS["isolation"][1])) == {str(level) for level in BACKENDS}


def test_every_flag_that_is_written_exists_and_every_flag_is_written() -> None:
    parser = argparse.ArgumentParser()
    add_policy_flags(parser, "strict")
    real = {flag for action in parser._actions for flag in action.option_strings if flag.startswith("--")}
    written = {row[4].strip("`") for row in FACTS.values()} - {""}
    assert written == real - {"--help", "--policy", "--strict"}  # the last is short for --isolation strict


EVERYTHING = {
    "disk_bytes": 2**30, "file_bytes": 2**20, "cpu_share": 1, "io_bytes_per_s": 2**20, "network": "none",
    "allow_partial": True, "syscall_profile": "tight",
}  # fmt: skip
PATHS = {"readable_paths": ["/usr"], "writable_paths": ["/tmp"], "hidden_paths": ["/x"]}


def _written_and_found(policy: dict[str, object]) -> list[tuple[str, str]]:
    """(what is written of the process level, the mechanism that holds it without a control group; empty: none)."""
    with mock.patch("ringfence.backends.groups.make", return_value=None):
        box = ProcessBackend().open(SandboxPolicy.from_dict(policy))
    box.close()
    field_of = {limit.capability: limit.field for limit in LIMITS} | {"syscalls": "syscall_profile"}
    return [(FACTS[field_of.get(capability, capability)][5], entry.mechanism if entry.applied else "")
            for capability, entry in box.enforced.items()]  # fmt: skip


@pytest.mark.skipif(sys.platform != "linux", reason="the column is about Linux")
def test_the_mechanisms_that_are_written_are_those_of_the_process_level() -> None:
    for written, mechanism in _written_and_found(EVERYTHING):
        assert written == mechanism if mechanism else written.startswith("refused"), written


@pytest.mark.skipif(sys.platform != "linux", reason="the column is about Linux")
def test_the_mechanisms_that_are_written_hold_where_paths_are_named() -> None:
    for written, mechanism in _written_and_found({**EVERYTHING, **PATHS}):
        plain = mechanism.partition(" (ABI")[0]
        assert written.endswith(plain) if plain else written == "refused", written


@pytest.mark.parametrize("field", FIELDS)
def test_the_meaning_and_what_absence_means_are_not_empty(field: str) -> None:
    _, meaning, absent = MEANINGS[field]
    assert meaning.endswith(".") and absent
    assert (absent == "the default") == (FACTS[field][3] != "absent")


@pytest.mark.parametrize("lines", REFUSED, ids=[lines[0] for lines in REFUSED])
def test_every_form_that_is_said_to_be_refused_is_refused(lines: list[str], tmp_path: Path) -> None:
    with pytest.raises(PolicyError) as caught:
        policy_of(tmp_path, "\n".join(lines) + "\n")
    assert caught.value.where.startswith(str(tmp_path))


def test_the_example_file_is_a_sound_policy(tmp_path: Path) -> None:
    (example,) = re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)
    policy = policy_of(tmp_path, example)
    assert (policy.wall_time_s, policy.mem_bytes) == (120, 2**30)


@pytest.mark.parametrize("written", ["512M", "512MiB", "1.5G"])
def test_every_size_that_is_written_can_be_read(written: str) -> None:
    assert f"`{written}`" in TEXT and SandboxPolicy.from_dict({"mem_bytes": written}).mem_bytes >= 512 * 2**20


@pytest.mark.parametrize(("written", "seconds"), [("1.5s", 1.5), ("250ms", 0.25), ("10m", 600), ("2h", 7200)])
def test_every_time_that_is_written_can_be_read(written: str, seconds: float) -> None:
    assert f"`{written}`" in TEXT and SandboxPolicy.from_dict({"wall_time_s": written}).wall_time_s == seconds
