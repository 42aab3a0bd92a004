"""From an entry to its task, and the agents that every task knows."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
import suite_samples as s

from ringfence.errors import UsageError
from ringfence.proctor.foreign import terminal_tasks
from ringfence.proctor.suite import agents
from ringfence.proctor.suite.bench import Plan
from ringfence.proctor.suite.entry import State
from ringfence.proctor.suite.executor import run_entry
from ringfence.proctor.suite.loading import load
from ringfence.proctor.suite.progress import SuiteProgress
from ringfence.proctor.suite.tasks import asked_for
from ringfence.proctor.task import Task

MATERIAL = Path(__file__).resolve().parents[2] / "material" / "terminal_tasks"


def _task(folder: Path, solution: str = "") -> Path:
    (folder / "workspace").mkdir(parents=True)
    (folder / "grade.sh").write_text("true\n")
    (folder / "policy.yaml").write_text("version: 1\nenv:\n  allow: [TOKEN]\n")
    if solution:
        (folder / solution).parent.mkdir(exist_ok=True)
        (folder / solution).write_text("#!/bin/bash -e\ntrue\n")
    return folder


def test_variables_are_asked_for_and_can_be_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asking = s.entry(path=str(_task(tmp_path / "a")))
    keeping = s.entry(path=asking.path, options={"no-env": "yes"})
    assert load(asking).policy.env_allow == ("TOKEN",) and load(keeping).policy.env_allow == ()
    assert asked_for([asking, keeping]) == (["TOKEN"], []) and asked_for([keeping]) == ([], [])
    SuiteProgress(live=False).asks("fizz", *asked_for([asking]))
    assert "TOKEN" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["harbor", "terminal-bench"])
def test_a_root_is_never_guessed(kind: str) -> None:
    folder = sorted((MATERIAL / kind).iterdir())[0]
    with pytest.raises(UsageError) as caught:
        load(s.entry(kind=kind, path=str(folder)))
    assert "--rootfs host" in caught.value.hint


def test_what_a_build_may_reach_is_said_to_every_task(monkeypatch: pytest.MonkeyPatch) -> None:
    said: dict[str, object] = {}
    monkeypatch.setattr(terminal_tasks, "load", lambda folder, **options: said.update(options))
    plan = Plan(suite="s", agent="nop", out="o", rootfs="image", build_network="none", allow=("a.example",))
    load(s.entry(kind="harbor", path=str(MATERIAL), options=plan.options))
    assert (said["rootfs"], said["build_network"], said["allow"]) == ("image", "none", ["a.example"])


def test_a_task_of_ours_has_no_image_and_a_kind_must_be_known(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="names no image"):
        load(s.entry(path=str(_task(tmp_path / "a")), options={"rootfs": "image"}))
    with pytest.raises(UsageError, match="'moon' is not a kind"):
        load(s.entry(kind="moon"))


@pytest.mark.parametrize("solution", ["solution.sh", "solution/solve.sh"])
def test_the_oracle_runs_the_solution_by_its_first_line(tmp_path: Path, solution: str) -> None:
    task = Task.from_folder(_task(tmp_path / "a", solution))
    name = solution.rpartition("/")[2]
    assert agents.words_of("oracle", task) == ("/bin/bash", "-e", f"/solution/{name}")
    shown = agents.shown_to("oracle", task)
    beside = {str(tmp_path / "a" / "solution"): "/solution"}
    assert shown == (beside if "/" in solution else {str(tmp_path / "a" / name): f"/solution/{name}"})
    assert agents.shown_to("my-agent", task) == agents.shown_to("nop", task) == {}
    assert agents.words_of("my-agent", task) == () and agents.words_of("nop", task) == ("true",)


def test_an_oracle_without_a_solution_is_refused(tmp_path: Path) -> None:
    task = Task.from_folder(_task(tmp_path / "a"))
    with pytest.raises(UsageError, match="no solution"):
        agents.words_of("oracle", task)
    assert agents.shown_to("oracle", task) == {}


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        os.chdir(path.parent)  # its name may be no longer than 107 bytes
        made.bind(path.name)


@pytest.mark.parametrize("make", [os.mkfifo, _socket])
@pytest.mark.parametrize("where", ["workspace", "oracle"])
def test_what_is_no_file_in_a_task_is_the_task_s_fault_and_said_at_once(
    where: str, make: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failure of the machine would be tried again, and again in vain."""
    monkeypatch.chdir(tmp_path)
    odd = _task(tmp_path / "a") / where / "deep" / "odd"
    odd.parent.mkdir(parents=True)
    make(odd)
    (tmp_path / "out").mkdir()
    result = run_entry(s.entry(path=str(tmp_path / "a")), s.order(agent="nop"), str(tmp_path / "out" / "a"))
    assert result.state is State.REFUSED and str(odd) in result.error, result
