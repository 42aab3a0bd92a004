"""A preferred reward file, pytest's summary, and the oracle at another place: each as a script grader meets it."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from ringfence.errors import UsageError
from ringfence.proctor.grading import Grading, grade
from ringfence.proctor.submission import Submission
from ringfence.proctor.task import Grader, Task

pytestmark = pytest.mark.system

TEXT, JSON = "/logs/verifier/reward.txt", "/logs/verifier/reward.json"
SUMMARY = "echo '=== short test summary info ==='; echo 'PASSED t.py::test_a'"


def graded(folder: Path, script: str, submission: str = "", **also: str) -> Grading:
    for name in ("work", "tests"):
        (folder / name).mkdir()
    (folder / "tests" / "test.sh").write_text(textwrap.dedent(script))
    (folder / "work" / "solution.sh").write_text(submission)
    grader = Grader(argv=("/bin/sh", "/tests/test.sh"), oracle_at="/tests", wall_time_s=120, **also)  # type: ignore[arg-type]
    task = Task(id="t", workspace=str(folder / "work"), oracle=str(folder / "tests"), grader=grader)
    return grade(task, Submission(folder=str(folder / "work")))


@pytest.mark.parametrize(("script", "reward"), [
    (f"echo 1 > {TEXT}", 1.0),
    (f"echo '{{\"reward\": 0.5}}' > {JSON}", 0.5),
    (f"echo 1 > {TEXT}; echo '{{\"reward\": 1.0}}' > {JSON}; echo more > /logs/verifier/ctrf.json", 1.0),
    (f"echo 0 > {TEXT}", 0.0),
])  # fmt: skip
def test_either_file_is_a_reward(script: str, reward: float, tmp_path: Path) -> None:
    found = graded(tmp_path, script, reward_file=TEXT, preferred_reward_file=JSON)
    assert (found.reward, found.passed, found.forged) == (reward, reward > 0, ""), found.reason


def test_code_under_test_that_writes_the_other_file_is_a_forger(tmp_path: Path) -> None:
    """It wins where the preferred file counts and nobody asks who wrote it: shortcoming 4."""
    found = graded(tmp_path, f"sh solution.sh; echo 0 > {TEXT}", f"echo 1 > {JSON}", reward_file=TEXT,
                   preferred_reward_file=JSON)  # fmt: skip
    assert not found.passed and found.reward == 0.0 and "do not agree" in found.forged


def test_two_rewards_lie_in_one_directory(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not in the same directory as"):
        graded(tmp_path, "true", reward_file=TEXT, preferred_reward_file="/logs/reward.json")


@pytest.mark.parametrize(("script", "passed"), [
    (SUMMARY, True), (f"{SUMMARY}; exit 1", False), ("true", False),
    (f"{SUMMARY}; echo 'FAILED t.py::test_b - AssertionError'", False),
])  # fmt: skip
def test_a_summary_takes_a_pass_away_and_gives_none(script: str, passed: bool, tmp_path: Path) -> None:
    assert graded(tmp_path, script, results="pytest").passed is passed
