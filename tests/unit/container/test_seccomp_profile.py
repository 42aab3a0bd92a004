"""The filter as an engine takes it says what our own profile says, and what it can't say is said by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ringfence.container import seccomp_profile
from ringfence.kernel.seccomp import profiles
from ringfence.model.limits import SyscallProfile

ROOT = Path(__file__).resolve().parents[3]


def allowed(which: SyscallProfile, **also: bool) -> dict[str, list[object]]:
    found: dict[str, list[object]] = {}
    for row in json.loads(seccomp_profile.text(which, **also))["syscalls"]:
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


OF_A_PROCESS = {"sched_setscheduler": (), "sched_setparam": (), "sched_setattr": (), "sched_setaffinity": (),
                "setpriority": (0,), "ioprio_set": (1,), "prlimit64": ()}  # fmt: skip
"""Calls that name a process, and what comes before its number."""
ALL = 0xFFFFFFFFFFFFFFFF


def opens(rows: list[object], args: tuple[int, ...]) -> bool:
    """Whether one row lets the call with these registers pass."""
    return any(all(_holds(condition, args) for condition in row) for row in rows)  # type: ignore[attr-defined]


def _holds(condition: dict[str, int], args: tuple[int, ...]) -> bool:
    mask, value = (condition["value"], condition["valueTwo"]) if "valueTwo" in condition else (ALL, condition["value"])
    return args[condition["index"]] & mask == value


@pytest.mark.parametrize("which", SyscallProfile, ids=str)
@pytest.mark.parametrize("call", OF_A_PROCESS)
def test_no_job_holds_pid_1_up_and_each_may_change_itself(call: str, which: SyscallProfile) -> None:
    rows, before = allowed(which)[call], OF_A_PROCESS[call]
    assert opens(rows, (*before, 0, 7, 7, 7))
    for number in (1, 1 | 1 << 32, 1 | 1 << 63, 1 << 31 | 1):
        assert not opens(rows, (*before, number, 7, 7, 7)), hex(number)
    for thread in (2, 3, 4097, 1 << 21 | 1):
        assert opens(rows, (*before, thread, 7, 7, 7)) is (call == "sched_setaffinity")


def test_no_job_slows_a_group_or_a_user_and_limits_can_be_read() -> None:
    found = allowed(SyscallProfile.DEFAULT)
    assert not any(opens(found["setpriority"], (which, 0, 19)) for which in (1, 2, 1 << 32 | 2))
    assert not any(opens(found["ioprio_set"], (which, 0, 7)) for which in (2, 3))
    assert opens(found["prlimit64"], (1, 7, 0, 9))


@pytest.mark.parametrize("which", SyscallProfile, ids=str)
def test_without_names_only_connected_pairs_of_unix_sockets_are_open(which: SyscallProfile) -> None:
    found = allowed(which, unix_names=False)
    assert not any(opens(found.get("socket", []), (1 | high, kind, 0)) for high in (0, 1 << 32) for kind in (1, 2, 5))
    pairs = [kind for kind in range(16) if opens(found["socketpair"], (1, kind | 0o2004000, 0))]
    assert pairs == [1, 5]
    if which is SyscallProfile.DEFAULT:
        assert opens(found["socket"], (2, 1, 0)) and opens(allowed(which)["socket"], (1, 1, 0))


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
