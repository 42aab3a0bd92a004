"""The plan of a policy can be read before anything runs."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from ringfence import IsolationLevel, SandboxPolicy, UsageError
from ringfence.cli import main
from ringfence.engine.planned import PROCESSES, Planned, planned

pytestmark = [
    pytest.mark.system,
    pytest.mark.privileges,
    pytest.mark.skipif(sys.platform != "linux", reason="Linux only"),
]
STRICT = SandboxPolicy(isolation=IsolationLevel.STRICT)


def _of(rows: list[Planned], process: str) -> list[str]:
    return [row.step for row in rows if row.process == process]


def test_every_process_has_its_steps_in_their_order() -> None:
    rows = planned(STRICT)
    assert [name for name in PROCESSES if _of(rows, name) or name == "leader"] == list(PROCESSES)
    inside = _of(rows, "pid 1")
    order = ["await leader", "take identity", "new root", "seal root", "drop capabilities", "run as init"]
    assert [step for step in inside if step in order] == order and inside[-1] == "run as init"
    job = _of(rows, "job")
    assert job.index("no new privileges") < job.index("seccomp") < job.index("exec") == len(job) - 1


def test_only_these_steps_are_left_to_python() -> None:
    """Inside the sandbox; whoever adds a step sees here whether it becomes calls."""
    inside = [row for row in planned(STRICT) if row.process in ("pid 1", "job")]
    assert {row.step for row in inside if not row.calls} == {"reset signals", "exec"}


def test_a_policy_decides_which_calls_there_are() -> None:
    def limits(policy: SandboxPolicy) -> list[str]:
        return [call for row in planned(policy) for call in row.calls if row.step == "rlimit RLIMIT_NOFILE"]

    assert limits(STRICT.with_changes(nofile=77)) != limits(STRICT.with_changes(nofile=78))


def test_a_level_without_a_plan_says_so() -> None:
    with pytest.raises(UsageError, match="no plan"):
        planned(SandboxPolicy(isolation=IsolationLevel.PROCESS))


def test_the_plan_is_printed_for_people_and_for_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text("nofile: 77\n")
    assert main(["policy", "plan", str(file)]) == 0
    text = capsys.readouterr().out
    assert "pid 1: builds the root" in text and "    pivot_root(\".\", \".\")\n" in text
    assert main(["policy", "plan", str(file), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["policy"]["nofile"] == 77
    assert {"process": "job", "step": "reset signals", "arguments": [], "calls": []} in told["plan"]
