"""``proctor init`` writes a task that works."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from ringfence.errors import UsageError
from ringfence.proctor import template
from ringfence.proctor.task import Task


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    template.write_task(str(tmp_path / "new" / "task"))
    return tmp_path / "new" / "task"


def test_what_is_written_is_a_task(folder: Path) -> None:
    task = Task.from_folder(folder)
    assert task.id == "task" and task.grader is not None and task.instruction.startswith("The file `sales.csv`")
    assert task.policy.forbidden_reads == ("/oracle", "/grader") and task.policy.text
    assert task.grader.reference == f"{folder}/solution"
    assert os.access(task.grader.script, os.X_OK)


def test_it_is_written_where_no_mode_can_be_set_by_a_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows before Python 3.13."""
    monkeypatch.delattr(os, "fchmod")
    template.write_task(str(tmp_path / "task"))
    assert Task.from_folder(tmp_path / "task").grader is not None


def test_the_policy_that_is_commented_out_is_right_too(folder: Path) -> None:
    policy = folder / "policy.yaml"
    text = policy.read_text().replace("\n# ", "\n").replace("\n#   ", "\n  ")
    text = text.replace("mode: deny ", 'mode: allowlist\n  allow: ["api.example.com:443"] ')
    policy.write_text(text)
    rules = Task.from_folder(folder).policy
    assert rules.base_commit and rules.env_allow == ("MODEL_NAME",) and len(rules.network) == 1


def _graded(folder: Path, workspace: Path) -> int:
    """The grader's own word, with the oracle where this test has it."""
    script = (folder / "grade.sh").read_text().replace("/oracle", str(folder / "oracle"))
    return subprocess.run(["/bin/sh", "-c", script], cwd=workspace, capture_output=True, check=False).returncode


@pytest.mark.system
def test_the_grader_passes_for_the_solution_and_for_nothing_else(folder: Path, tmp_path: Path) -> None:
    work = Path(shutil.copytree(folder / "workspace", tmp_path / "work"))
    assert _graded(folder, work) == 1
    shutil.copytree(folder / "solution", work, dirs_exist_ok=True)
    assert _graded(folder, work) == 0
    (work / "totals.csv").write_text("east,41\n")
    assert _graded(folder, work) == 1


@pytest.mark.system
def test_the_agent_in_the_readme_solves_it(folder: Path, tmp_path: Path) -> None:
    work = Path(shutil.copytree(folder / "workspace", tmp_path / "work"))
    readme = (folder / "README.md").read_text()
    block = readme.partition("```sh\n")[2].partition("```")[0].replace("proctor run", "set --")
    subprocess.run(["/bin/sh", "-c", f'{block}\ncd {work} && for last; do :; done; sh -c "$last"'], check=True)
    assert _graded(folder, work) == 0


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(UsageError, match="not empty"):
        template.write_task(str(tmp_path))
    assert os.listdir(tmp_path) == ["mine"]


def test_an_empty_folder_will_do(tmp_path: Path) -> None:
    template.write_task(str(tmp_path))
    assert Task.from_folder(tmp_path).grader is not None


def test_a_place_where_nothing_can_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="file"):
        template.write_task(str(tmp_path / "file" / "task"))
