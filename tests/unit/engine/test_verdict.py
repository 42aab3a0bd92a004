"""What an end means: total, never a success for a failure, and the evidence in the reason."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.backends.facts import Report
from ringfence.engine.verdict import _CAPABILITY_STATUS, Verdict, judge
from ringfence.model.outcome import FIXED_RC, Status
from ringfence.model.policy import SandboxPolicy
from ringfence.posix import wire

POLICY = SandboxPolicy(wall_time_s=5, cpu_time_s=2, disk_bytes=2**20)
ALL = frozenset({"wall_time", "cpu_time", "memory", "pids", "nofile", "output", "disk", "file_size"})


def judged(report: Report, stderr: bytes = b"", applied: frozenset[str] = ALL) -> Verdict:
    return judge(report, POLICY, applied, stderr)


REPORTS = st.builds(
    Report,
    exit_code=st.none() | st.integers(0, 255),
    signal=st.none() | st.integers(0, 127),
    cause=st.sampled_from((*wire.CAUSES, "output", "nofile", "file_size", "something new")),
    measured=st.integers(0, 2**62),
    wall_ns=st.integers(0, 2**62),
    cpu_user_us=st.integers(0, 2**40),
    oom_kills=st.integers(0, 3),
    box_oom_kills=st.integers(0, 3),
    leader_lost=st.booleans(),
)
CLUES = (b"MemoryError", b"x\nToo many open files\n", b"\xff No space left on device")
STDERR = st.binary(max_size=40) | st.sampled_from(CLUES)


@given(REPORTS, STDERR, st.frozensets(st.sampled_from(sorted(ALL))))
def test_every_end_has_a_verdict_and_only_a_clean_exit_is_ok(report, stderr, applied) -> None:
    verdict = judge(report, POLICY, applied, stderr)
    clean = report.exit_code == 0 and report.signal is None and not report.cause and not report.leader_lost
    assert (verdict.status is Status.OK) == (verdict.rc == 0) == clean
    assert verdict.rc == FIXED_RC.get(verdict.status, verdict.rc) and 0 <= verdict.rc <= 255 and verdict.reason


@given(st.integers(1, 255), STDERR)
def test_a_program_keeps_its_own_return_code(code: int, stderr: bytes) -> None:
    verdict = judged(Report(exit_code=code), stderr)
    assert verdict.rc == FIXED_RC.get(verdict.status, code)


def test_a_clean_exit_is_ok_whatever_was_said_on_stderr() -> None:
    assert judged(Report(exit_code=0), b"MemoryError").status is Status.OK


@pytest.mark.parametrize(
    ("report", "status", "rc", "evidence", "hit"),
    (
        (Report(exit_code=0), "OK", 0, "exit code 0", ()),
        (Report(exit_code=3), "FAILED", 3, "exit code 3", ()),
        (Report(signal=9, cause="wall_time"), "TIMEOUT", 124, "after 5 s", ("wall_time",)),
        (Report(signal=9, cause="cpu_time", measured=3100), "CPU_LIMIT", 152, "3.1 s of 2 s", ("cpu_time",)),
        (Report(signal=9, cause="memory", measured=2**30), "MEM_LIMIT", 137, "1 GiB of 512 MiB", ("memory",)),
        (Report(signal=9, cause="pids", measured=40), "PIDS_LIMIT", 137, "40 tasks, 32", ("pids",)),
        (Report(signal=9, cause="disk", measured=2**21), "DISK_LIMIT", 137, "2 MiB, 1 MiB", ("disk",)),
        (Report(signal=9, cause="output"), "OUTPUT_LIMIT", 137, "printed more than 1 MiB", ("output",)),
        (Report(signal=9, cause="asked"), "KILLED_KILL", 137, "the caller ended it", ()),
        (Report(signal=9, cause="owner_gone"), "KILLED_KILL", 137, "the caller is gone", ()),
        (Report(signal=9, cause="nofile"), "NOFILE_LIMIT", 137, "killed for nofile", ()),
        (Report(signal=9, cause="gravity"), "KILLED_KILL", 137, "killed for gravity", ()),
        (Report(signal=9, leader_lost=True), "KILLED_KILL", 137, "supervising process", ()),
        (Report(signal=9, oom_kills=1), "KILLED_KILL", 137, "the host ran out of memory meanwhile (oom_kill +1)", ()),
        (Report(signal=9, box_oom_kills=2), "MEM_LIMIT", 137, "oom_kill +2", ("memory",)),
        (Report(exit_code=0, box_oom_kills=2), "OK", 0, "the box reached 512 MiB meanwhile", ("memory",)),
        (Report(exit_code=1, box_oom_kills=2), "FAILED", 1, "(memory cgroup, oom_kill 2)", ("memory",)),
        (Report(signal=9, cause="wall_time", box_oom_kills=2), "TIMEOUT", 124, "oom_kill 2", ("wall_time", "memory")),
        (Report(signal=9), "KILLED_KILL", 137, "from outside", ()),
        (Report(signal=15), "KILLED_TERM", 143, "SIGTERM", ()),
        (Report(signal=11), "CRASHED", 139, "SIGSEGV", ()),
        (Report(signal=6), "CRASHED", 134, "SIGABRT", ()),
        (Report(signal=31), "FORBIDDEN_SYSCALL", 159, "SIGSYS", ()),
        (Report(signal=25), "FILE_SIZE_LIMIT", 153, "RLIMIT_FSIZE", ("file_size",)),
        (Report(signal=10), "KILLED_SIGNAL", 138, "SIGUSR1", ()),
        (Report(signal=99), "KILLED_SIGNAL", 227, "signal 99", ()),
        (Report(signal=24, cpu_user_us=2_000_000), "CPU_LIMIT", 152, "RLIMIT_CPU, SIGXCPU", ("cpu_time",)),
        (Report(signal=9, cpu_user_us=4_000_000), "CPU_LIMIT", 152, "SIGXCPU was ignored", ("cpu_time",)),
        (Report(exit_code=152, cpu_system_us=2_000_000), "CPU_LIMIT", 152, "RLIMIT_CPU, SIGXCPU", ("cpu_time",)),
        (Report(exit_code=152), "FAILED", 152, "exit code 152", ()),
    ),
)  # fmt: skip
def test_each_end_is_told_apart_with_its_evidence(report, status, rc, evidence, hit) -> None:
    verdict = judged(report)
    assert (str(verdict.status), verdict.rc, verdict.limits_hit) == (status, rc, hit)
    assert evidence in verdict.reason


@pytest.mark.parametrize("cause", sorted(set(_CAPABILITY_STATUS) - {"asked", "owner_gone"}))
def test_a_job_that_exits_with_zero_while_it_is_killed_is_no_success(cause: str) -> None:
    verdict = judged(Report(exit_code=0, cause=cause))
    assert verdict.status is _CAPABILITY_STATUS[cause] and verdict.rc != 0


@pytest.mark.parametrize(
    ("stderr", "status", "hit"),
    (
        (b"Traceback\nMemoryError\n", Status.MEM_LIMIT, ("memory",)),
        (b"OSError: [Errno 24] Too many open files: 'x'\n\n", Status.NOFILE_LIMIT, ("nofile",)),
        (b"sh: fork: Resource temporarily unavailable", Status.PIDS_LIMIT, ("pids",)),
        (b"dd: File too large", Status.FILE_SIZE_LIMIT, ("file_size",)),
        (b"MemoryError\nbut then something else", Status.FAILED, ()),
        (b"", Status.FAILED, ()),
    ),
)
def test_the_last_line_of_stderr_says_which_limit_refused_a_failing_program(stderr, status, hit) -> None:
    verdict = judged(Report(exit_code=1), stderr)
    assert (verdict.status, verdict.limits_hit) == (status, hit)
    assert judged(Report(exit_code=1), stderr, frozenset()).status is Status.FAILED


def test_what_the_program_says_is_quoted_and_short() -> None:
    reason = judged(Report(exit_code=1), b"\x1b[2J" + b"x" * 5000 + b"MemoryError \xff").reason
    assert "\x1b" not in reason and len(reason) < 400


def test_processor_time_is_only_blamed_where_it_was_limited() -> None:
    report = Report(signal=9, cpu_user_us=9_000_000)
    assert judged(report, applied=ALL - {"cpu_time"}).status is Status.KILLED_KILL
