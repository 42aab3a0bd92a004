"""What the arguments of a call take of the guest's memory, and what is said when a call runs out of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.engine.pooled import LEVELS, policy_of

import ringfence
from ringfence import CallError, Pool, Status
from ringfence.engine.boxed_call import call_job, needed_paths
from ringfence.engine.call_result import CallResult, call_result
from ringfence.model.limits import MIB
from ringfence.python_jobs.encode import MAX_BYTES

pytestmark = [pytest.mark.system, pytest.mark.privileges]

SIZE = 20 * 10**6
PAGES = 1 << 20
"""What a larger argument touches beside itself."""


def _peak(argument: bytes) -> tuple[int, int]:
    """Of the guest: how much it was given, and the most memory that it has had."""
    with open("/proc/self/status", encoding="ascii") as status:
        most = next(line for line in status if line.startswith("VmHWM"))
    return len(argument), int(most.split()[1]) * 1024


def _in_a_pool(level: str) -> tuple[CallResult, CallResult]:
    with Pool(policy_of(level, mem_bytes=512 * MIB), warm=1, at_once=1) as pool:
        return pool.try_call(_peak, bytes(SIZE)), pool.try_call(_peak, b"")


def _in_a_box(level: str) -> tuple[CallResult, CallResult]:
    policy = policy_of(level, mem_bytes=512 * MIB)
    if level == "strict":
        policy = policy.with_changes(readable_paths=needed_paths())
    with ringfence.open(policy) as box:
        much, none = (call_result(box.run(call_job(_peak, {"argument": bytes(size)}))) for size in (SIZE, 0))
        return much, none


@pytest.mark.parametrize("way", [_in_a_pool, _in_a_box])
@pytest.mark.parametrize("level", LEVELS)
def test_an_argument_takes_at_most_three_times_its_size(
    level: str, way: Callable[[str], tuple[CallResult, CallResult]]
) -> None:
    much, none = way(level)
    (given, peak), (_, before) = much.value, none.value  # type: ignore[misc]
    assert given == SIZE
    assert peak - before <= 3 * SIZE + PAGES, f"{(peak - before) / SIZE:.1f} times"


def test_a_call_has_no_arguments_of_a_command(pool: Pool) -> None:
    assert pool.call(lambda given: __import__("sys").argv, "given") == [""]


def _hog() -> int:
    kept = []
    while True:
        kept.append(bytearray(b"x") * 2**24)


@pytest.mark.parametrize("level", LEVELS)
def test_a_call_that_runs_out_of_memory_says_so_and_what_would_help(level: str) -> None:
    with Pool(policy_of(level, mem_bytes=256 * MIB), warm=1, at_once=1) as pool:
        done = pool.try_call(_hog)
    assert (done.status, done.outcome.rc) == (Status.MEM_LIMIT, 137)
    assert "memory" in done.outcome.limits_hit and done.problem.startswith("MEM_LIMIT: ")
    with pytest.raises(CallError, match="MEM_LIMIT") as error:
        _ = done.value
    assert error.value.hint == "raise mem_bytes of the policy, if it may need so much"


def _peak_of_a_value(size: int) -> bytes:
    return b"\xff" * size


@pytest.mark.parametrize("level", LEVELS)
def test_a_value_of_bytes_comes_back_up_to_16_mib_and_takes_at_most_three_times_its_size(level: str) -> None:
    with Pool(policy_of(level, mem_bytes=512 * MIB), warm=1, at_once=1) as pool:
        much, none = pool.try_call(_peak_of_a_value, MAX_BYTES), pool.try_call(_peak_of_a_value, 0)
        assert much.value == b"\xff" * MAX_BYTES and none.value == b""
        over = pool.try_call(_peak_of_a_value, MAX_BYTES + 1)
    assert "16777216 are allowed" in over.problem
    taken = much.outcome.usage.peak_memory_bytes - none.outcome.usage.peak_memory_bytes
    assert taken <= 3 * MAX_BYTES, f"{taken / MAX_BYTES:.1f} times"
