"""What a job object of Windows is told for a policy, byte for byte; nothing here needs Windows."""

from __future__ import annotations

from ctypes import sizeof

import pytest

from ringfence.model.policy import SandboxPolicy
from ringfence.windows import job_limits as limits
from ringfence.windows import structures


@pytest.mark.parametrize(
    ("structure", "size"),
    [
        (structures.BasicLimits, 64),
        (structures.IoCounters, 48),
        (structures.ExtendedLimits, 144),
        (structures.Accounting, 96),
        (structures.UiRestrictions, 4),
        (structures.CpuRate, 8),
        (structures.CompletionPort, 16),
    ],
)
def test_structures_are_as_large_as_the_system_expects(structure: type, size: int) -> None:
    assert sizeof(structure) == size


def test_members_lie_where_the_system_looks_for_them() -> None:
    found = structures.ExtendedLimits
    assert (found.io.offset, found.process_memory.offset, found.job_memory.offset) == (64, 112, 120)
    basic = structures.BasicLimits
    assert (basic.flags.offset, basic.active_processes.offset, basic.affinity.offset) == (16, 40, 48)


def test_a_policy_becomes_limits_of_each_process_and_of_the_job() -> None:
    told = limits.job_limits(SandboxPolicy(cpu_time_s=1.5, mem_bytes=64 << 20, pids_max=7).numbers(), 2).extended()
    assert told.basic.flags == 0x2 | 0x4 | 0x8 | 0x100 | 0x200 | 0x400 | 0x2000
    assert told.basic.per_process_user_time == told.basic.per_job_user_time == 15_000_000
    assert told.process_memory == told.job_memory == 64 << 20
    assert told.basic.active_processes == 7


def test_what_is_not_asked_is_not_limited_but_the_job_ends_with_its_owner() -> None:
    told = limits.job_limits({}, 2)
    assert told.flags == limits.DIE_ON_UNHANDLED_EXCEPTION | limits.KILL_ON_CLOSE
    assert told.rate() is None and told.ui().classes == limits.ALL_UI


@pytest.mark.parametrize("asked", [{}, {"cpu_time": 1, "memory": 1, "pids": 1, "cpu_share": 1}])
def test_nothing_can_leave_a_job(asked: dict[str, float]) -> None:
    assert not limits.job_limits(asked, 2).flags & (limits.BREAKAWAY_OK | limits.SILENT_BREAKAWAY_OK)


@pytest.mark.parametrize(
    ("share", "processors", "rate"), [(1, 1, 10_000), (1, 4, 2500), (0.5, 2, 2500), (8, 2, 10_000), (0.00001, 64, 1)]
)
def test_a_share_of_one_processor_is_a_rate_of_all(share: float, processors: int, rate: int) -> None:
    told = limits.job_limits({"cpu_share": share}, processors).rate()
    assert told is not None and (told.flags, told.rate) == (0x1 | 0x4, rate)


def test_more_than_a_number_holds_is_the_largest_and_never_none() -> None:
    told = limits.job_limits(dict.fromkeys(("cpu_time", "memory", "pids"), float("inf")), 2).extended()
    assert told.basic.active_processes == 0xFFFFFFFF
    assert told.basic.per_job_user_time == told.job_memory == 1 << 62
    assert limits.job_limits({"cpu_time": 0, "pids": 0}, 2).extended().basic.per_job_user_time == 1
