"""A task's parts where they are meant to be: in sandboxes, at the paths that a task promises."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

import ringfence
from ringfence.proctor import staging, template
from ringfence.proctor.task import Grader, Task
from ringfence.proctor.task_policy import TaskPolicy

pytestmark = pytest.mark.privileges


def _in_sandbox(task: Task, phase: str, argv: list[str], staged: str, **also: str) -> ringfence.Outcome:
    places = {staged: task.policy.mount_at, **{path: place.replace("__", "/") for place, path in also.items()}}
    return ringfence.run(argv, task.policy.sandbox_policy(phase, shown_at=places), cwd=staged)


def test_the_first_task_is_graded_in_a_sandbox_and_passes_for_its_solution(tmp_path: Path) -> None:
    template.write_task(str(tmp_path / "task"))
    task = Task.from_folder(tmp_path / "task")
    grader = task.grader or Grader()
    staged = staging.stage(task, staging.fresh_output(str(tmp_path / "out")))
    own = {"__oracle": task.oracle, "__grader__grade.sh": grader.script}
    assert _in_sandbox(task, "grader", [*grader.argv], staged, **own).rc == 1
    hidden = _in_sandbox(task, "agent", ["sh", "-c", "ls -d /oracle /grader; cat /workspace/sales.csv"], staged)
    assert b"north,12" in hidden.stdout and hidden.stderr.count(b"No such file") == 2
    subprocess.run(["sh", "-c", template.SOLUTION], cwd=staged, check=True)
    assert _in_sandbox(task, "grader", [*grader.argv], staged, **own).rc == 0


def test_an_agent_works_with_git_at_the_base_commit(tmp_path: Path) -> None:
    """Shortcoming 15: ancestors are there, the fix is not, and git is at home in the sandbox."""
    source = tmp_path / "source"
    source.mkdir()
    ids = []
    for command in ("init -q", "add .", "commit -qm old", "commit -qm base --allow-empty", "commit -qam fix"):
        (source / "a").write_text(command)
        plain = ["git", "-c", "user.name=A U Thor", "-c", "user.email=author@example.com", *command.split()]
        subprocess.run(plain, cwd=source, check=True)
        if "commit" in command:
            ids.append(subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=source, text=True).strip())
    _, base, fix = ids
    task = Task(id="git", workspace=str(source), grader=None, policy=TaskPolicy(base_commit=base, mount_at="/testbed"))
    os.mkdir(tmp_path / "run", 0o700)
    script = f"""pwd && git log --all --format=%s && git status --short && ! git cat-file -e {fix} &&
        echo new > b && git add b && git -c user.name=x -c user.email=y@z commit -qm mine && git log --format=%s -1"""
    outcome = _in_sandbox(task, "agent", ["sh", "-c", script], staging.stage(task, str(tmp_path / "run")))
    assert (outcome.rc, outcome.stdout.split()) == (0, [b"/testbed", b"base", b"old", b"mine"]), outcome.stderr
