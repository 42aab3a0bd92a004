"""The peak of a job's memory is what its limit counts: a page that many processes share counts once."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.testable import not_testable_here

import ringfence
from ringfence import Outcome, Pool, SandboxPolicy, Status
from ringfence.backends import groups
from ringfence.kernel.cgroup.group import Cgroup
from ringfence.model.outcome import Enforcement

MIB = 1 << 20
# Five processes share 80 MiB, long enough for the watchdog to see them all.
SHARED = """
import os, time
block = bytearray(b'x') * (80 << 20)
for _ in range(4):
    if os.fork() == 0:
        break
time.sleep(0.3)
"""


def _carried_out(way: str, policy: SandboxPolicy) -> Outcome:
    argv = [sys.executable, "-S", "-c", SHARED]
    if way == "run":
        return ringfence.run(argv, policy)
    if way == "pool":
        with Pool(policy, warm=1) as pool:
            return pool.run(argv)
    with ringfence.open(policy) as box:
        return box.run(argv)


@pytest.mark.system
@pytest.mark.privileges
@pytest.mark.parametrize("level", ["strict", "process"])
@pytest.mark.parametrize("way", ["run", "pool", "box"])
def test_pages_that_processes_share_count_once(way: str, level: str) -> None:
    policy = SandboxPolicy.from_dict({"isolation": level, "mem_bytes": 128 * MIB})
    outcome = _carried_out(way, policy)
    assert outcome.status is Status.OK, outcome.reason
    if "cgroup" not in outcome.enforced["memory"].by:
        not_testable_here("no control group counts the memory for this user")
    assert 80 * MIB < outcome.usage.peak_memory_bytes <= 128 * MIB, outcome.usage


@pytest.mark.parametrize(("peak", "is_shared", "is_held", "told"), [
    ("70", False, True, 70),  # the group's own word, whatever the sum is
    ("900", False, True, 900),  # even where it is more: files in memory are in no process
    ("70", True, True, 70),  # a visit can't have held more than its box
    ("900", True, True, 300),  # nor is it charged for what others in its box held
    (None, False, True, 100),  # Linux before 5.19 keeps no peak: the limit bounds it
    (None, False, False, 300),  # nothing bounds it
])  # fmt: skip
def test_the_group_s_count_bounds_the_sum_over_the_processes(
    tmp_path: Path, peak: str | None, is_shared: bool, is_held: bool, told: int
) -> None:
    if peak is not None:
        (tmp_path / "memory.peak").write_text(peak)
    held = Enforcement(requested=100, applied=is_held, mechanism="memory.max")
    group = Cgroup(name="g", places={"memory": str(tmp_path)}, applied={"memory": held})
    assert groups._most_memory(group, group.peaks()[0], 300, is_shared=is_shared) == told
