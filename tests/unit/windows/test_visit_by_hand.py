"""A job of Windows from its start to its verdict, where the calls of Windows are made by hand: any system runs this.

Wine takes limits and does not hold them, says nothing of them and answers with zeros. So what a job object is handed
over is read back here, and what its completion port would say is fed.
"""

from __future__ import annotations

import pytest
from tests.patience import PATIENCE_S
from tests.unit.windows.fake_windows import CPU_RATE, EXTENDED, PORT_OF, UI, FakeWindows

from ringfence.backends.facts import Report
from ringfence.backends.on_windows.process import WindowsBackend, WindowsBox
from ringfence.backends.on_windows.visit import JobVisit
from ringfence.engine.verdict import Verdict, judge
from ringfence.errors import SetupError
from ringfence.model.policy import SandboxPolicy
from ringfence.windows import job_limits
from ringfence.windows.host import Host
from ringfence.windows.structures import CompletionPort, CpuRate, ExtendedLimits, UiRestrictions

WINDOWS = Host(jobs=True, processes=True, memory=True, cpu_share=True, times=True, handles=True, counts_writes=True,
               tells=True, token=True)  # fmt: skip
WINE = Host(jobs=True)
ASKED = {"isolation": "process", "wall_time_s": 60, "cpu_time_s": 5, "mem_bytes": 1 << 28, "pids_max": 7,
         "nofile": 100, "disk_bytes": 1 << 20}  # fmt: skip
COMMAND = ("C:\\p.exe", "p", "\0\0", "C:\\")


def _box(**asked: object) -> WindowsBox:
    return WindowsBackend().open(SandboxPolicy.from_dict(ASKED | asked))


def _led(fake: FakeWindows, box: WindowsBox) -> Report:
    visit = JobVisit(COMMAND, (1, 2, 3), job_limits.job_limits(box._held(), 2), box._watched())
    assert fake._event.wait(PATIENCE_S)
    report = visit.receive()
    assert report is not None
    visit.close()
    return report


def _judged(fake: FakeWindows, box: WindowsBox) -> Verdict:
    by = {name: entry.by for name, entry in box.enforced.items() if entry.applied}
    return judge(_led(fake, box), box.policy, by, b"")


# ---- what the completion port says, through the thread that listens to it


@pytest.mark.parametrize(("message", "status", "rc", "hit"), [
    (1, "CPU_LIMIT", 152, ("cpu_time",)), (2, "CPU_LIMIT", 152, ("cpu_time",)), (3, "PIDS_LIMIT", 9, ("pids",)),
    (9, "MEM_LIMIT", 137, ("memory",)), (10, "MEM_LIMIT", 137, ("memory",)), (12, "CPU_LIMIT", 152, ("cpu_time",)),
    (4, "FAILED", 9, ()), (6, "FAILED", 9, ()), (7, "FAILED", 9, ()), (8, "FAILED", 9, ()), (11, "FAILED", 9, ()),
])  # fmt: skip
def test_each_message_is_heard(
    message: int, status: str, rc: int, hit: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeWindows((6, message, 7, 4), exit_code=9).install(monkeypatch, WINDOWS)
    verdict = _judged(fake, _box())
    assert (str(verdict.status), verdict.rc, verdict.limits_hit) == (status, rc, hit)
    assert ("JOB_OBJECT_MSG_" in verdict.reason) == bool(hit)


@pytest.mark.parametrize(("code", "status", "rc", "words"), [
    (0, "OK", 0, ""), (3, "FAILED", 3, ""), (0x12300, "FAILED", 1, ""),
    (0xC0000005, "CRASHED", 139, "STATUS_ACCESS_VIOLATION (0xC0000005)"),
    (0xC00000FD, "CRASHED", 139, "STATUS_STACK_OVERFLOW"), (0xC0000409, "CRASHED", 134, "STATUS_STACK_BUFFER_OVERRUN"),
    (0xC000013A, "KILLED_SIGNAL", 130, "STATUS_CONTROL_C_EXIT"),
    (0xC0000135, "FAILED", 53, "STATUS_DLL_NOT_FOUND"),
])  # fmt: skip
def test_each_exit_code_is_told(code: int, status: str, rc: int, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    verdict = _judged(FakeWindows((6, 7, 4), exit_code=code).install(monkeypatch, WINDOWS), _box())
    assert (str(verdict.status), verdict.rc) == (status, rc) and words in verdict.reason


def test_a_message_that_comes_after_the_end_counts_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The port may speak when the process is gone already."""
    fake = FakeWindows((), exit_code=1).install(monkeypatch, WINDOWS)
    end = fake.do_TerminateJobObject
    monkeypatch.setattr(fake, "do_TerminateJobObject", lambda *rest: fake.messages.append(10) or end(*rest),
                        raising=False)  # fmt: skip
    assert str(_judged(fake, _box()).status) == "MEM_LIMIT"


def test_a_flood_of_messages_does_not_keep_the_deadline_away(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeWindows(exit_code=None).install(monkeypatch, WINDOWS)

    def flood(port: int, number: object, *rest: object) -> int:
        number._obj.value = 6  # type: ignore[attr-defined]
        return 1

    monkeypatch.setattr(fake, "do_GetQueuedCompletionStatus", flood, raising=False)
    assert str(_judged(fake, _box(wall_time_s=0.2)).status) == "TIMEOUT"


# ---- what the thread measures


@pytest.mark.parametrize(("used", "value", "status", "host"), [
    ("cpu_units", 60_000_000, "CPU_LIMIT", WINDOWS), ("handles", 101, "NOFILE_LIMIT", WINDOWS),
    ("written", (1 << 20) + 1, "DISK_LIMIT", WINDOWS), ("memory", (1 << 28) + 1, "MEM_LIMIT", WINE),
])  # fmt: skip
def test_what_is_beyond_ends_the_tree(
    used: str, value: int, status: str, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeWindows(exit_code=None, tells=host.tells).install(monkeypatch, host)
    fake.used[used] = value
    assert str(_judged(fake, _box(allow_partial=True)).status) == status
    assert "TerminateJobObject" in fake.called


@pytest.mark.parametrize(("used", "value"), [("cpu_units", 50_000_000), ("handles", 100), ("written", 1 << 20)])
def test_what_is_just_allowed_goes_on(used: str, value: int, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeWindows((6,), exit_code=0).install(monkeypatch, WINDOWS)
    fake.used[used] = value
    assert str(_judged(fake, _box()).status) == "OK"


# ---- what is handed over


def test_the_structures_hold_what_the_policy_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeWindows().install(monkeypatch, WINDOWS)
    _led(fake, _box(cpu_share=1))
    told = ExtendedLimits.from_buffer_copy(fake.handed[EXTENDED])
    assert told.basic.flags == 0x2 | 0x4 | 0x8 | 0x100 | 0x200 | 0x400 | 0x2000
    assert (told.basic.per_process_user_time, told.basic.per_job_user_time) == (50_000_000, 50_000_000)
    assert (told.basic.active_processes, told.process_memory, told.job_memory) == (7, 1 << 28, 1 << 28)
    assert UiRestrictions.from_buffer_copy(fake.handed[UI]).classes == 0xFF
    rate = CpuRate.from_buffer_copy(fake.handed[CPU_RATE])
    assert (rate.flags, rate.rate) == (0x5, 5000)
    port = CompletionPort.from_buffer_copy(fake.handed[PORT_OF])
    assert (port.key, port.port) == (0x10, 0x20)


def test_what_wine_does_not_hold_it_is_handed_over_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a net: a Windows whose trial failed for another reason may hold it."""
    fake = FakeWindows(tells=False).install(monkeypatch, WINE)
    _led(fake, _box(allow_partial=True))
    told = ExtendedLimits.from_buffer_copy(fake.handed[EXTENDED])
    assert (told.basic.active_processes, told.job_memory) == (7, 1 << 28)


def test_nothing_runs_before_it_is_in_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeWindows().install(monkeypatch, WINDOWS)
    _led(fake, _box())
    order = [name for name in fake.called if name in ("SetInformationJobObject", "CreateRestrictedToken",
             "CreateProcessAsUserW", "AssignProcessToJobObject", "ResumeThread")]  # fmt: skip
    assert order[-4:] == ["CreateRestrictedToken", "CreateProcessAsUserW", "AssignProcessToJobObject", "ResumeThread"]
    assert fake.flags & 0x4, "CREATE_SUSPENDED"


def test_a_job_object_with_other_limits_starts_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeWindows().install(monkeypatch, WINDOWS)
    ask = fake.do_QueryInformationJobObject

    def others(handle: int, kind: int, value: object, *rest: object) -> int:
        ask(handle, kind, value, *rest)  # type: ignore[arg-type]
        if kind == EXTENDED:
            value._obj.job_memory *= 2  # type: ignore[attr-defined]
        return 1

    monkeypatch.setattr(fake, "do_QueryInformationJobObject", others, raising=False)
    with pytest.raises(SetupError, match="other limits"):
        _led(fake, _box())
    assert "CreateProcessAsUserW" not in fake.called


def test_who_can_not_be_put_into_the_job_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeWindows().install(monkeypatch, WINDOWS)
    monkeypatch.setattr(fake, "do_AssignProcessToJobObject", lambda *_: 0, raising=False)
    with pytest.raises(SetupError):
        _led(fake, _box())
    assert "TerminateProcess" in fake.called and "ResumeThread" not in fake.called


def test_whatever_goes_wrong_in_who_watches_ends_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeWindows(exit_code=None).install(monkeypatch, WINDOWS)
    monkeypatch.setattr(JobVisit, "_exceeded", lambda *_: 1 / 0)
    report = _led(fake, _box())
    assert report.leader_lost and fake.ended
