"""What the process level of Windows promises, for each Windows that there may be; and what its messages come to."""

from __future__ import annotations

import pytest

from ringfence.backends.facts import Report
from ringfence.backends.on_windows.process import NOT_HERE, lacks_of, mechanisms
from ringfence.backends.tables import entries
from ringfence.engine.verdict import judge
from ringfence.model.outcome import Mechanism
from ringfence.model.policy import SandboxPolicy
from ringfence.model.record import replace
from ringfence.windows.endings import ending
from ringfence.windows.host import Host

WINDOWS = Host(jobs=True, processes=True, memory=True, cpu_share=True, times=True, handles=True, counts_writes=True,
               tells=True, token=True)  # fmt: skip
WINE = Host(jobs=True)
PLAIN = {"isolation": "process"}
EVERYTHING = PLAIN | {
    "disk_bytes": 2**30, "file_bytes": 2**20, "cpu_share": 1, "io_bytes_per_s": 2**30, "network": "none",
    "syscall_profile": "default", "hidden_paths": ["/a"], "readable_paths": ["/b"], "writable_paths": ["/c"],
    "allow_partial": True,
}  # fmt: skip


def _policy(asked: dict[str, object]) -> SandboxPolicy:
    return SandboxPolicy.from_dict(asked)


def test_windows_holds_the_default_policy() -> None:
    assert lacks_of(_policy(PLAIN), WINDOWS) == ()


def test_what_job_objects_can_not_hold_is_lacking_everywhere() -> None:
    assert {lack.capability for lack in lacks_of(_policy(EVERYTHING), WINDOWS)} == set(NOT_HERE)


def test_what_was_tried_and_not_held_is_lacking_or_watched() -> None:
    lacks = lacks_of(_policy(EVERYTHING), WINE)
    assert {lack.capability for lack in lacks} == {*NOT_HERE, "cpu_share", "cpu_time", "nofile", "disk"}
    table = entries(_policy(EVERYTHING).requested(), mechanisms(WINE), lacks)
    assert table["memory"].by == table["pids"].by == (Mechanism.WATCHDOG,)


def test_a_windows_without_job_objects_holds_nothing() -> None:
    asked = _policy(PLAIN)
    for host in (Host(), Host(jobs=True, problem="refused")):
        lacks = lacks_of(asked, host)
        assert {lack.capability for lack in lacks} == set(asked.requested()) and all(lack.whole for lack in lacks)


def test_each_row_has_a_mechanism() -> None:
    asked = _policy(EVERYTHING)
    for host in (WINDOWS, WINE):
        table = entries(asked.requested(), mechanisms(host), lacks_of(asked, host))
        assert all(bool(entry.by) == entry.applied for entry in table.values())


def _judged(code: int, *messages: int) -> tuple[str, int, str, tuple[str, ...]]:
    end = ending(code, messages)
    report = replace(Report(exit_code=end.exit_code, signal=end.signal), told_limits=end.hits, native=end.native)
    applied = dict.fromkeys(("memory", "pids", "cpu_time"), (Mechanism.JOB_OBJECT,))
    verdict = judge(report, _policy(PLAIN), applied, b"")
    return str(verdict.status), verdict.rc, verdict.reason, verdict.limits_hit


@pytest.mark.parametrize(("message", "status", "rc"), [
    (1, "CPU_LIMIT", 152), (2, "CPU_LIMIT", 152), (3, "PIDS_LIMIT", 1), (9, "MEM_LIMIT", 137), (10, "MEM_LIMIT", 137),
])  # fmt: skip
def test_a_message_of_the_job_object_is_the_status(message: int, status: str, rc: int) -> None:
    found = _judged(1, message)
    assert found[:2] == (status, rc) and "JOB_OBJECT_MSG_" in found[2] and len(found[3]) == 1


def test_a_job_that_did_without_what_was_refused_has_succeeded() -> None:
    status, rc, reason, hit = _judged(0, 3, 9)
    assert (status, rc, hit) == ("OK", 0, ("pids", "memory")) and "JOB_OBJECT_MSG_ACTIVE_PROCESS_LIMIT" in reason


def test_an_ntstatus_is_in_the_reason() -> None:
    assert _judged(0xC0000005)[:3] == (
        "CRASHED", 139, "crashed with SIGSEGV (STATUS_ACCESS_VIOLATION (0xC0000005))"
    ) or "0xC0000005" in _judged(0xC0000005)[2]  # fmt: skip
    assert _judged(0xC0000142)[0] == "FAILED" and "STATUS_DLL_INIT_FAILED" in _judged(0xC0000142)[2]
