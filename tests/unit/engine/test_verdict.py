"""What an end means: total, never a success for a failure, and the evidence in the reason."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.backends.facts import Report
from ringfence.engine.verdict import _CAPABILITY_STATUS, Applied, Verdict, judge
from ringfence.model.outcome import FIXED_RC, Mechanism, Status
from ringfence.model.policy import SandboxPolicy
from ringfence.transport import wire

POLICY = SandboxPolicy(wall_time_s=5, cpu_time_s=2, disk_bytes=2**20, file_bytes=2**19)
NAMES = ("wall_time", "cpu_time", "memory", "pids", "nofile", "output", "disk", "file_size")
ALL: Applied = dict.fromkeys(NAMES, (Mechanism.WATCHDOG,)) | {"memory": (Mechanism.RLIMIT, Mechanism.WATCHDOG)}
GROUPED: Applied = {**ALL, "memory": (Mechanism.CGROUP,)}
LIMIT = POLICY.mem_bytes


def judged(report: Report, stderr: bytes = b"", applied: Applied = ALL) -> Verdict:
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
    cgroup_pids_hits=st.integers(0, 3),
    refused_bytes=st.integers(0, 2**40),
    exit_memory_bytes=st.integers(0, 2**40),
    exit_descriptors=st.integers(0, 1000),
    exit_slots=st.integers(0, 1024),
    written_chars=st.integers(0, 2**40),
    largest_bytes=st.integers(0, 2**40),
)
CLUES = (b"MemoryError", b"x\nToo many open files\n", b"\xff No space left on device")
STDERR = st.binary(max_size=40) | st.sampled_from(CLUES)


@pytest.mark.slow
@given(REPORTS, STDERR, st.frozensets(st.sampled_from(sorted(ALL))))
def test_every_end_has_a_verdict_and_only_a_clean_exit_is_ok(report, stderr, names) -> None:
    verdict = judge(report, POLICY, {name: ALL[name] for name in names}, stderr)
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
        (Report(signal=9, cause="asked"), "KILLED_KILL", 137, "killed at the caller's request", ()),
        (Report(signal=9, cause="owner_gone"), "KILLED_KILL", 137, "the caller is gone", ()),
        (Report(signal=9, cause="file_size"), "FILE_SIZE_LIMIT", 137, "killed for file_size", ()),
        (Report(signal=9, cause="nofile", measured=600), "NOFILE_LIMIT", 137, "600 handles open", ("nofile",)),
        (Report(signal=9, cause="gravity"), "KILLED_KILL", 137, "killed for gravity", ()),
        (Report(signal=9, leader_lost=True, cause="wall_time"), "TIMEOUT", 124, "did not answer", ("wall_time",)),
        (Report(signal=9, leader_lost=True), "KILLED_KILL", 137, "supervising process", ()),
        (Report(signal=9, oom_kills=1), "KILLED_KILL", 137, "the host ran out of memory meanwhile (oom_kill +1)", ()),
        (Report(signal=9, box_oom_kills=2), "MEM_LIMIT", 137, "oom_kill +2", ("memory",)),
        (Report(exit_code=0, box_oom_kills=2), "OK", 0, "the box reached 512 MiB meanwhile", ("memory",)),
        (Report(exit_code=1, box_oom_kills=2), "FAILED", 1, "(memory cgroup, oom_kill 2)", ("memory",)),
        (Report(signal=9, cause="wall_time", box_oom_kills=2), "TIMEOUT", 124, "oom_kill 2", ("wall_time", "memory")),
        (Report(signal=9), "KILLED_KILL", 137, "or from the job itself", ()),
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
        (Report(exit_code=1, refused_bytes=2**30), "MEM_LIMIT", 137, "1 GiB were refused under 512 MiB", ("memory",)),
        (Report(exit_code=0, refused_bytes=2**30), "OK", 0, "1 GiB were refused", ("memory",)),
        (Report(exit_code=1, exit_memory_bytes=LIMIT - 2**20), "MEM_LIMIT", 137, "failed with 511 MiB", ("memory",)),
        (Report(exit_code=1, exit_memory_bytes=LIMIT - 2**23), "FAILED", 1, "exit code 1", ()),
        (Report(exit_code=1, largest_bytes=LIMIT - 2**23), "MEM_LIMIT", 137, "had used 504 MiB", ("memory",)),
        (Report(exit_code=1, largest_bytes=LIMIT - 2**25), "FAILED", 1, "exit code 1", ()),
        (Report(signal=5, largest_bytes=LIMIT - 2**25), "MEM_LIMIT", 137, "crashed with SIGTRAP", ("memory",)),
        (Report(signal=6, refused_bytes=2**23), "MEM_LIMIT", 137, "crashed with SIGABRT", ("memory",)),
        (Report(signal=15, refused_bytes=2**23), "KILLED_TERM", 143, "8 MiB were refused", ("memory",)),
        (Report(exit_code=1, exit_descriptors=512), "NOFILE_LIMIT", 1, "512 of 512 descriptors", ("nofile",)),
        (Report(exit_code=0, exit_descriptors=512), "OK", 0, "512 descriptors open", ("nofile",)),
        (Report(exit_code=1, exit_descriptors=511, exit_slots=512), "FAILED", 1, "exit code 1", ()),
        (Report(exit_code=153, written_chars=2**20), "FILE_SIZE_LIMIT", 153, "SIGXFSZ", ("file_size",)),
        (Report(exit_code=153), "FAILED", 153, "exit code 153", ()),
        (Report(exit_code=0, cgroup_pids_hits=3), "OK", 0, "max 3", ("pids",)),
        (Report(signal=9, cause="wall_time", cgroup_pids_hits=3), "TIMEOUT", 124, "max 3", ("wall_time", "pids")),
        (Report(signal=9, cause="wall_time", cgroup_oom_kills=1), "TIMEOUT", 124, "kill 1", ("wall_time", "memory")),
        (Report(exit_code=0, cpu_user_us=2_000_000), "OK", 0, "2.0 s of 2 s", ("cpu_time",)),
        (Report(exit_code=0, cpu_user_us=1_900_000), "OK", 0, "exit code 0", ()),
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


SAYS = (
    (b"Traceback\nMemoryError\n", "memory", "MEM_LIMIT"),
    (b"OSError: [Errno 24] Too many open files: 'x'\n\n", "nofile", "NOFILE_LIMIT"),
    (b"dd: File too large", "file_size", "FILE_SIZE_LIMIT"),
    (b"cp: No space left on device", "disk", "DISK_LIMIT"),
)
NEAR = {
    "memory": Report(exit_code=3, exit_address_bytes=LIMIT),
    "nofile": Report(exit_code=3, exit_slots=POLICY.nofile),
    "file_size": Report(exit_code=3, written_chars=2**19),
    "disk": Report(exit_code=3, written_chars=2**19),
}


OTHER = (b"fork: Resource temporarily unavailable", b"out of memory", b"CPU time limit exceeded")


@pytest.mark.parametrize("stderr", (*(row[0] for row in SAYS), *OTHER))
@pytest.mark.parametrize("code", (3, 7))
def test_a_line_of_text_alone_is_no_limit(stderr: bytes, code: int) -> None:
    verdict = judged(Report(exit_code=code), stderr)
    assert (verdict.status, verdict.rc, verdict.limits_hit) == (Status.FAILED, code, ())


@pytest.mark.parametrize(("stderr", "capability", "status"), SAYS)
def test_between_limits_that_the_kernels_numbers_leave_open_the_last_line_decides(stderr, capability, status) -> None:
    verdict = judged(NEAR[capability], stderr)
    assert (verdict.status, verdict.limits_hit) == (status, (capability,))
    assert judged(NEAR[capability], stderr + b"\nbut then something else").status is Status.FAILED
    assert judged(NEAR[capability], b"").status is Status.FAILED
    assert judged(NEAR[capability], stderr, {}).status is Status.FAILED


@pytest.mark.parametrize("size", (1, 100, 2**20))
def test_less_memory_than_a_program_needs_to_start_is_named(size: int) -> None:
    tiny = POLICY.with_changes(mem_bytes=size)
    for report in (Report(signal=11), Report(exit_code=127)):
        verdict = judge(report, tiny, ALL, b"")
        assert verdict.status is Status.MEM_LIMIT and "less than a program needs" in verdict.reason
        assert judged(report).status in (Status.CRASHED, Status.FAILED)
    assert judge(Report(exit_code=7, exit_memory_bytes=size // 2), tiny, ALL, b"").status is Status.FAILED
    assert judge(Report(exit_code=0), tiny, ALL, b"").limits_hit == ()


@pytest.mark.parametrize(
    "words", (b"FATAL ERROR: JavaScript heap out of memory", b"# Check failed: reservation_.SetPermissions( start, 1).")
)
def test_of_a_crash_the_words_before_its_trace_count(words: bytes) -> None:
    said = words + b"\n----- Native stack trace -----\n 1: 0xb node"
    assert judged(Report(signal=6, largest_bytes=LIMIT * 5 // 8), said, GROUPED).status is Status.MEM_LIMIT
    assert judged(Report(signal=6, largest_bytes=LIMIT // 4), said, GROUPED).status is Status.CRASHED
    assert judged(Report(exit_code=1, largest_bytes=LIMIT * 5 // 8), said, GROUPED).status is Status.FAILED


def test_a_shell_says_of_which_child_the_processor_time_was_used_up() -> None:
    report = Report(exit_code=0, cpu_user_us=1_700_000)
    assert judged(report, b"CPU time limit exceeded\n").limits_hit == ("cpu_time",)
    assert judged(report).limits_hit == judged(Report(exit_code=0), b"CPU time limit exceeded").limits_hit == ()


@pytest.mark.parametrize(("written", "hit"), [(2**20, ()), (2**20 + 1, ("disk",))])
def test_more_than_may_be_written_is_named_also_where_the_job_ended_before_anybody_looked(
    written: int, hit: tuple[str, ...]
) -> None:
    assert judged(Report(exit_code=0, written_bytes=written)).limits_hit == hit


def test_where_a_group_holds_memory_no_peak_proves_a_refusal() -> None:
    report = Report(exit_code=1, largest_bytes=LIMIT, exit_memory_bytes=LIMIT, refused_bytes=LIMIT)
    assert judged(report, applied=GROUPED).status is Status.FAILED


def test_where_a_group_holds_memory_the_last_line_decides_from_half_of_it_on() -> None:
    used = Report(exit_code=1, largest_bytes=LIMIT // 2)
    assert judged(used, b"MemoryError\n", GROUPED).status is Status.MEM_LIMIT
    assert judged(used, b"", GROUPED).status is Status.FAILED
    assert judged(Report(exit_code=1, largest_bytes=LIMIT // 3), b"MemoryError\n", GROUPED).status is Status.FAILED


def test_what_the_program_says_is_quoted_and_short() -> None:
    verdict = judged(NEAR["memory"], b"\x1b[2J" + b"x" * 5000 + b"MemoryError \xff")
    assert verdict.status is Status.MEM_LIMIT and "\x1b" not in verdict.reason and len(verdict.reason) < 400


def test_processor_time_is_only_blamed_where_it_was_limited() -> None:
    report = Report(signal=9, cpu_user_us=9_000_000)
    without = {name: held for name, held in ALL.items() if name != "cpu_time"}
    assert judged(report, applied=without).status is Status.KILLED_KILL
