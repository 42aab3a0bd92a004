"""Limits are judged from samples: at once, or over some seconds, and a violation stays one."""

from __future__ import annotations

from itertools import pairwise

import pytest

from ringfence.errors import UsageError
from ringfence.monitor.limits import ResourceLimits
from ringfence.monitor.sample import History, Sample, Window
from ringfence.monitor.violations import MIB, Judge, Violation, checked_times

pytestmark = pytest.mark.unmeasured


def _judged(shares: list[float], *, over_for_s: float, step_s: float = 0.1) -> list[Violation]:
    """``shares``: of one core, in every step."""
    judge = Judge(ResourceLimits(), {"max_cpu_percent": over_for_s})
    new: list[Violation] = []
    cpu_s = 0.0
    for number, share in enumerate(shares):
        cpu_s += share * step_s
        new += judge.judge(Sample(time_s=number * step_s, cpu_s=cpu_s, cpu_percent=share * 100))
    return new


def test_a_busy_processor_is_a_violation_only_after_its_time() -> None:
    assert _judged([1.0] * 99, over_for_s=10) == []
    (found,) = _judged([1.0] * 120, over_for_s=10)
    assert (found.name, found.limit) == ("max_cpu_percent", 80.0)
    assert found.measured == pytest.approx(100)
    assert found.since == pytest.approx(0.0, abs=0.15)
    assert str(found) == "cpu: 100 % of a core over 10 s, limit 80 %"


def test_one_that_pauses_for_an_instant_now_and_then_is_over_all_the_same() -> None:
    """Judged by «never below the limit», a tenth of a second of rest in nine would hide it for ever."""
    pausing = ([1.0] * 89 + [0.0]) * 3
    assert len(_judged(pausing, over_for_s=10)) == 1


def test_a_short_burst_is_none() -> None:
    assert _judged([0.1] * 150 + [1.0] * 50 + [0.1] * 100, over_for_s=10) == []
    assert len(_judged([0.1] * 150 + [1.0] * 50 + [0.1] * 100, over_for_s=0)) == 1


def test_without_a_time_one_sample_is_enough_and_the_violation_stays() -> None:
    judge = Judge(ResourceLimits(max_memory_mb=10), {})
    assert [v.name for v in judge.judge(Sample(time_s=1.0, memory_bytes=11 * MIB))] == ["max_memory_mb"]
    assert judge.judge(Sample(time_s=2.0, memory_bytes=90 * MIB)) == []
    assert judge.judge(Sample(time_s=3.0, memory_bytes=0)) == []
    (kept,) = judge.violations.values()
    assert (kept.measured, kept.since, str(kept)) == (90, 1.0, "memory: 90.0 MB, limit 10 MB")


def test_memory_over_some_seconds_is_a_mean_too() -> None:
    judge = Judge(ResourceLimits(max_memory_mb=10), {"max_memory_mb": 2.0})
    found = [v for second in range(6) for v in judge.judge(Sample(time_s=float(second), memory_bytes=20 * MIB))]
    assert [v.measured for v in found] == [20]


def test_what_only_grows_is_over_once_its_time_has_passed() -> None:
    judge = Judge(ResourceLimits(max_disk_mb=1), {"max_disk_mb": 2.0})
    told = [bool(judge.judge(Sample(time_s=float(second), written_bytes=2 * MIB))) for second in range(5)]
    assert told == [False, False, True, False, False]


ONE_OVER = {
    "max_disk_mb": Sample(time_s=0.0, written_bytes=1024 * MIB + 1),
    "max_network_kb": Sample(time_s=0.0, network_bytes=10240 * 1024 + 1),
    "max_execution_time": Sample(time_s=300.5),
    "max_file_operations": Sample(time_s=0.0, operations=1001),
}


@pytest.mark.parametrize("name", ONE_OVER)
def test_every_limit_is_judged_by_itself(name: str) -> None:
    judge = Judge(ResourceLimits(), {})
    just_within = Sample(time_s=300.0, written_bytes=1024 * MIB, network_bytes=10240 * 1024, operations=1000)
    assert judge.judge(just_within) == []
    assert [violation.name for violation in judge.judge(ONE_OVER[name])] == [name]


def test_loopback_is_not_network() -> None:
    assert Judge(ResourceLimits(max_network_kb=0), {}).judge(Sample(time_s=0.0, loopback_bytes=10**9)) == []


@pytest.mark.parametrize("wrong", [{"max_cpu": 1.0}, {"max_cpu_percent": -1.0}, {"max_cpu_percent": float("nan")},
                                   {"max_cpu_percent": None}, {"max_cpu_percent": 10**400}])  # fmt: skip
def test_a_time_for_no_limit_or_no_time_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        checked_times(wrong)


def test_processor_time_has_ten_seconds_unless_told_otherwise() -> None:
    assert checked_times({}) == {"max_cpu_percent": 10.0}
    assert checked_times({"max_cpu_percent": 0.0}) == {"max_cpu_percent": 0.0}


def test_a_window_knows_no_mean_before_it_is_full() -> None:
    window = Window(2.0)
    assert [window.mean(float(second), second * 5.0) for second in range(4)] == [None, None, 5.0, 5.0]


def test_a_history_covers_the_whole_life_in_bounded_room() -> None:
    history = History(100)
    for number in range(10_007):
        history.add(Sample(time_s=float(number)))
    kept = [sample.time_s for sample in history.samples()]
    assert kept[0] == 0.0 and kept[-1] == 10_006.0 and 50 <= len(kept) <= 101
    steps = {second - first for first, second in pairwise(kept[:-1])}
    assert len(steps) == 1
