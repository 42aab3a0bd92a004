"""A task's directory: what is read of it, and that nothing in it leads out of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ringfence.errors import PolicyError, UsageError
from ringfence.proctor.task import INSTRUCTION_BYTES, Grader, Root, Step, Task


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "sum-it"
    for name in ("workspace", "oracle", "solution"):
        (made / name).mkdir(parents=True)
    (made / "grade.sh").write_text("exit 0\n")
    (made / "oracle" / "test_it.py").write_text("def test_it(): pass\n")
    return made


def _refused(folder: Path, *words: str) -> None:
    with pytest.raises(UsageError) as caught:
        Task.from_folder(folder)
    assert all(word in str(caught.value) for word in words), caught.value


def test_the_smallest_folder_is_a_task(folder: Path) -> None:
    task = Task.from_folder(folder)
    assert (task.id, task.folder) == ("sum-it", str(folder))
    assert (task.workspace, task.oracle) == (f"{folder}/workspace", f"{folder}/oracle")
    assert task.grader == Grader(script=f"{folder}/grade.sh")
    assert (task.instruction, task.setup, task.steps, task.policy.text) == ("", "", (), b"")


def test_the_instruction_is_read(folder: Path) -> None:
    """Shortcoming 16: the task has the instruction, so that a run can hand it to the agent."""
    (folder / "instruction.md").write_text("Add up all números.\n")
    assert Task.from_folder(folder).instruction == "Add up all números.\n"


@pytest.mark.parametrize("data", [b"a\0b", b"\xff\xfe", b"x" * (INSTRUCTION_BYTES + 1)])
def test_an_instruction_that_no_variable_can_hold_is_refused(folder: Path, data: bytes) -> None:
    (folder / "instruction.md").write_bytes(data)
    _refused(folder, str(folder))


def test_everything_a_folder_can_say(folder: Path) -> None:
    (folder / "plan.md").write_text("Plan it.\n")
    (folder / "setup.sh").write_text("true\n")
    (folder / "policy.yaml").write_text("phases: {grader: {wall_time_secs: 60}}\n")
    (folder / "task.yaml").write_text(
        "version: 1\nid: 007\ngrader:\n  command: [/bin/sh, /grader/grade.sh, -v]\n  pytest: [test_it.py]\n"
        "  reference: solution\n  reward_file: /logs/verifier/reward.json\n"
        "steps:\n  - {name: plan, command: planner, instruction: plan.md}\n  - name: 2\n"
    )
    task = Task.from_folder(folder)
    assert (task.id, task.setup) == ("007", f"{folder}/setup.sh")
    assert task.steps == (Step(name="plan", command="planner", instruction="Plan it.\n"), Step(name="2"))
    assert task.grader == Grader(
        argv=("/bin/sh", "/grader/grade.sh", "-v"), script=f"{folder}/grade.sh", pytest=("test_it.py",),
        reference=f"{folder}/solution", reward_file="/logs/verifier/reward.json", wall_time_s=60,
    )  # fmt: skip


def test_a_named_policy_takes_the_place_of_the_folders_own(folder: Path, tmp_path: Path) -> None:
    (folder / "policy.yaml").write_text("limits: {pids: 1}\n")
    (tmp_path / "mine.yaml").write_text("limits: {pids: 2}\n")
    assert Task.from_folder(folder).policy.pids == 1
    assert Task.from_folder(folder, str(tmp_path / "mine.yaml")).policy.pids == 2
    with pytest.raises(UsageError, match=r"none\.yaml"):
        Task.from_folder(folder, str(tmp_path / "none.yaml"))


@pytest.mark.parametrize(("name", "words"), [("workspace", "has no workspace/"), ("grade.sh", "has no grade.sh")])
def test_what_a_task_needs_is_named(folder: Path, name: str, words: str) -> None:
    (folder / name).rename(folder / "elsewhere")
    _refused(folder, words)


def test_a_task_with_pytest_needs_no_script(folder: Path) -> None:
    (folder / "grade.sh").unlink()
    (folder / "task.yaml").write_text("grader: {pytest: [test_it.py]}\n")
    grader = Task.from_folder(folder).grader
    assert grader is not None and (grader.script, grader.pytest) == ("", ("test_it.py",))


def test_a_task_with_a_command_of_its_own_needs_no_script(folder: Path) -> None:
    (folder / "grade.sh").unlink()
    (folder / "task.yaml").write_text("grader: {command: [python3, /oracle/check.py]}\n")
    grader = Task.from_folder(folder).grader
    assert grader is not None and (grader.script, grader.argv) == ("", ("python3", "/oracle/check.py"))


@pytest.mark.parametrize(("text", "told"), [
    ("grdaer: {}\n", 'task.yaml:1:1: grdaer: unknown key; did you mean "grader"?'),
    ("version: 1\ngrader:\n  pytets: [a]\n", 'task.yaml:3:3: grader.pytets: unknown key; did you mean "pytest"?'),
    ("steps:\n  - {name: a, comand: b}\n",
     'task.yaml:1:1: steps: entry 1, comand: unknown key; did you mean "command"?'),
    ("steps: [{name: a}, {name: a}]\n", "task.yaml:1:1: steps: two steps have the same name"),
    ("steps: [{command: a}]\n", "task.yaml:1:1: steps: entry 1 must have a name, and strings only"),
    ("grader: {pytest: test_it.py}\n", "task.yaml:1:10: grader.pytest: 'test_it.py' is not a list of strings"),
    ("grader: {reward_file: reward.txt}\n",
     "task.yaml:1:10: grader.reward_file: 'reward.txt' is not an absolute, normalized path"),
    ("version: 3\n", "task.yaml:1:1: version: 3 is not 1, the only version"),
    ("- a\n", "task.yaml:1:1: task.yaml must be a mapping, not list"),
])  # fmt: skip
def test_a_wrong_task_yaml_is_refused_by_file_line_and_key(folder: Path, text: str, told: str) -> None:
    (folder / "task.yaml").write_text(text)
    with pytest.raises(PolicyError) as caught:
        Task.from_folder(folder)
    assert str(caught.value) == f"{folder}/{told}"


@pytest.mark.parametrize("name", ["workspace", "oracle", "grade.sh", "instruction.md", "policy.yaml", "task.yaml"])
def test_no_link_of_a_strangers_task_shows_other_files_of_the_host(folder: Path, tmp_path: Path, name: str) -> None:
    """A task that somebody sent could else have the agent, or its instruction, read the operator's own files."""
    private = tmp_path / "private"
    private.mkdir()
    (private / "key").write_text("version: 1\n")
    if (folder / name).exists():
        (folder / name).rename(tmp_path / "away")
    (folder / name).symlink_to(private if name in ("workspace", "oracle") else private / "key")
    assert os.path.exists(folder / name)  # control: the link leads there
    _refused(folder, name, "is a link that points outside the task")


@pytest.mark.parametrize("name", ["/etc/passwd", "../away", "oracle/../../away", ""])
def test_no_name_in_task_yaml_leads_out_either(folder: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "away").mkdir()
    (folder / "task.yaml").write_text(f"grader: {{reference: '{name}'}}\nsetup: '{name}'\n")
    _refused(folder, "is not a name in the task's directory")


def test_a_link_inside_the_task_is_followed_once(folder: Path) -> None:
    (folder / "oracle" / "real.sh").write_text("exit 0\n")
    (folder / "grade.sh").unlink()
    (folder / "grade.sh").symlink_to("oracle/real.sh")
    grader = Task.from_folder(folder).grader
    assert grader is not None and grader.script == f"{folder}/oracle/real.sh"


def test_a_fifo_is_not_waited_for(folder: Path) -> None:
    os.mkfifo(folder / "instruction.md")
    _refused(folder, "instruction.md is not a file")


@pytest.mark.parametrize("field", ["oracle", "script", "reference"])
def test_what_the_agent_must_not_see_is_not_in_the_workspace(folder: Path, field: str) -> None:
    inside = folder / "workspace" / "deep"
    inside.mkdir()
    oracle, grader = (str(inside), Grader()) if field == "oracle" else ("", Grader(**{field: str(inside)}))
    with pytest.raises(UsageError, match="are nested"):
        Task(id="x", workspace=str(folder / "workspace"), grader=grader, oracle=oracle)
    with pytest.raises(UsageError, match="are nested"):
        Task(id="x", workspace=str(folder / "workspace"), grader=None, oracle=str(folder))


@pytest.mark.parametrize("name", ["", "a\nb", "a\x1b[2J", "x" * 201])
def test_an_id_can_be_shown(folder: Path, name: str) -> None:
    with pytest.raises(UsageError, match="not a task id"):
        Task(id=name, workspace=str(folder / "workspace"), grader=None)


# ---- the root of an image


def _root(tmp_path: Path, **fields: object) -> Root:
    (tmp_path / "rootfs").mkdir(exist_ok=True)
    return Root(folder=str(tmp_path / "rootfs"), **fields)  # type: ignore[arg-type]


def test_with_a_root_a_task_needs_no_workspace(tmp_path: Path) -> None:
    root = _root(tmp_path, environment={"A": "1"})
    task = Task(id="t", root=root, grader=None, environment={"B": "2"}, kind="harbor")
    assert task.root is not None and task.root.environment == {"A": "1"}
    assert (task.workspace, dict(task.environment), task.root.workdir) == ("", {"B": "2"}, "/")


def test_without_a_root_it_needs_one() -> None:
    with pytest.raises(UsageError, match="the workspace is not a directory"):
        Task(id="t", grader=None)


@pytest.mark.parametrize("fields", [{"environment": {"A=B": "1"}}, {"environment": {"A": "\0"}},
                                    {"environment": {1: "1"}}, {"workdir": "app"}, {"workdir": "/a/../b"}])  # fmt: skip
def test_what_an_image_says_is_checked(tmp_path: Path, fields: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        _root(tmp_path, **fields)


@pytest.mark.parametrize("folder", ["", "relative", "/", "/nowhere/at/all"])
def test_a_root_is_a_folder_other_than_the_hosts(folder: str) -> None:
    with pytest.raises(UsageError):
        Root(folder=folder)


def test_nothing_of_the_graders_lies_in_the_root(tmp_path: Path) -> None:
    root = _root(tmp_path)
    (tmp_path / "rootfs" / "solution.sh").write_text("true\n")
    with pytest.raises(UsageError, match=r"solution.*root are nested"):
        Task(id="t", root=root, grader=None, solution=str(tmp_path / "rootfs" / "solution.sh"))


def test_the_kinds_of_tasks_are_known(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not a kind of task"):
        Task(id="t", root=_root(tmp_path), grader=None, kind="terminal")
