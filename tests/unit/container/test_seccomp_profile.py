"""The filter as an engine takes it says what our own profile says, and what it can't say is said by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ringfence.container import seccomp_profile
from ringfence.kernel.seccomp import profiles
from ringfence.model.limits import SyscallProfile

ROOT = Path(__file__).resolve().parents[3]


def allowed(which: SyscallProfile) -> dict[str, list[object]]:
    found: dict[str, list[object]] = {}
    for row in json.loads(seccomp_profile.text(which))["syscalls"]:
        if row["action"] == "SCMP_ACT_ALLOW":
            for name in row["names"]:
                found.setdefault(name, []).append(row.get("args"))
    return found


@pytest.mark.parametrize("which", SyscallProfile, ids=str)
def test_no_closed_call_is_open_and_no_condition_is_forgotten(which: SyscallProfile) -> None:
    profile = profiles.TIGHT_EXEC if which is SyscallProfile.TIGHT else profiles.DEFAULT
    found = allowed(which)
    for rule in profile.closed:
        for call in set(rule.calls) & found.keys() - seccomp_profile.LEFT_OPEN.keys():
            assert rule.when, f"{call} is open, and {rule.reason}"
            assert None not in found[call], f"{call} is open without a condition, and {rule.reason}"
    opened = {call for rule in profile.open for call in rule.calls}
    assert found.keys() <= opened


def test_what_python_needs_is_open_and_what_the_specification_closes_is_closed() -> None:
    found = allowed(SyscallProfile.TIGHT)
    assert {"read", "write", "openat", "execve", "mmap", "futex", "exit_group"} <= found.keys()
    assert not {"socket", "connect", "bind", "fork", "vfork", "clone3", "mount", "bpf", "ptrace"} & found.keys()
    assert found["clone"] == [[{"index": 0, "value": 0x7E038000, "valueTwo": 0x10000, "op": "SCMP_CMP_MASKED_EQ"}]]


def test_the_shipped_files_are_what_the_tables_say() -> None:
    assert Path(seccomp_profile.FILE).read_text() == seccomp_profile.shipped()
    assert (ROOT / "config" / "seccomp_profile.json").read_text() == seccomp_profile.shipped()


@pytest.mark.parametrize("architecture", seccomp_profile.ARCHITECTURES)
def test_the_second_stage_is_source_that_compiles(architecture: str) -> None:
    names: dict[str, object] = {}
    exec(compile(seccomp_profile.closing(architecture), "closing", "exec"), names)
    assert callable(names["close_the_rest"])
