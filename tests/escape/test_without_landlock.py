"""Where the kernel has no Landlock, what a visit left behind may reach the memory of later visits, but only behind
their filter."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import ringfence
from ringfence import SandboxPolicy
from ringfence.sandbox import networks, strict_plan

pytestmark = [pytest.mark.privileges, pytest.mark.unmeasured]

# Looks for processes whose memory it may write, and says how many of them had no filter yet.
_LOOK = """
import os, time
known, unfiltered, reached = set(os.listdir('/proc')), set(), set()
end = time.monotonic() + 6
while time.monotonic() < end:
    for pid in set(os.listdir('/proc')) - known:
        try:
            memory = os.open(f'/proc/{pid}/mem', os.O_RDWR)
            reached.add(pid)
            if 'Seccomp:\\t0' in open(f'/proc/{pid}/status').read():
                unfiltered.add(pid)
            os.close(memory)
        except OSError:
            pass
print(len(reached), len(unfiltered))
"""


def _reached_and_unfiltered(hidden: Path) -> tuple[int, int]:
    policy = SandboxPolicy(isolation="strict", wall_time_s=60, hidden_paths=[str(hidden)])
    with ringfence.open(policy) as box:
        looking = box.start(["python3", "-I", "-c", _LOOK])
        time.sleep(0.5)
        end = time.monotonic() + 5
        while time.monotonic() < end:
            assert box.run(["true"]).ok
        reached, unfiltered = looking.wait().stdout.split()
    return int(reached), int(unfiltered)


@pytest.fixture
def hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(networks, "_abi", [0])
    (tmp_path / "answer").write_text("42")
    return tmp_path / "answer"


def test_memory_of_a_later_visit_is_reached_only_behind_its_filter(hidden: Path) -> None:
    reached, unfiltered = _reached_and_unfiltered(hidden)
    assert reached and not unfiltered


@pytest.mark.control
def test_the_control_memory_that_is_shown_before_the_filter_is_reached(
    hidden: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    confine = strict_plan.confine

    def too_early(*given: object, **named: object) -> list[object]:
        steps = confine(*given, **named)  # type: ignore[arg-type]
        close = next(step for step in steps if step[0] == "seccomp")
        return [*(step for step in steps if step is not close), close]

    monkeypatch.setattr(strict_plan, "confine", too_early)
    assert _reached_and_unfiltered(hidden)[1]
