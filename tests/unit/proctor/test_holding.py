"""What was hashed is what grades: copies of a task's own files, whatever its owner does meanwhile."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ringfence.checkpoint import tree
from ringfence.errors import UsageError
from ringfence.proctor import run as runs
from ringfence.proctor import staging
from ringfence.proctor.place.holding import hold
from ringfence.proctor.signed.inputs import inputs_of
from ringfence.proctor.task import Task

pytestmark = pytest.mark.privileges


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "task"
    for name, text in {"workspace/a": "a", "oracle/deep/e": "42\n", "oracle/answer/a": "42\n", "setup.sh": "true\n",
                       "grade.sh": 'test "$(cat a)" = "$(cat /oracle/deep/e)"\n', "solution/a": "42\n",
                       "task.yaml": "version: 1\ngrader: {reference: solution}\n"}.items():  # fmt: skip
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).write_text(text)
    (made / "oracle" / "link").symlink_to("deep/e")
    (tmp_path / "place").mkdir(mode=0o700)
    return made


def held(folder: Path, between: Callable[[], object] = lambda: None, **changes: object) -> Task:
    """``between``: what its owner does after all was hashed."""
    task = Task.from_folder(folder)
    given = inputs_of(task, "agent", ())
    between()
    staged = staging.stage(task, str(folder.parent / "place"))
    return hold(task, given, staged, str(folder.parent / "place"))


def test_it_is_copied_where_neither_mode_nor_time_can_be_set_by_a_descriptor(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows before Python 3.13; there every path is a whole one."""
    monkeypatch.delattr(os, "fchmod")
    monkeypatch.setattr(os, "supports_fd", os.supports_fd - {os.utime})
    monkeypatch.setattr(tree, "_BY_DESCRIPTOR", False)
    os.utime(folder / "workspace" / "a", ns=(5, 5))
    os.utime(folder / "grade.sh", ns=(7, 7))
    made = held(folder)
    assert made.grader is not None and os.stat(made.grader.script).st_mtime_ns == 7
    assert os.stat(folder.parent / "place" / staging.STAGED / "a").st_mtime_ns == 5


def test_all_that_grades_is_copied_as_it_is(folder: Path) -> None:
    os.chmod(folder / "oracle" / "deep" / "e", 0o700)
    made = held(folder)
    assert made.grader is not None and made.folder == str(folder)
    for path in (made.oracle, made.setup, made.grader.script, made.grader.reference):
        assert path.startswith(str(folder.parent / "place")), path
    copy = Path(made.oracle)
    assert (copy / "link").read_text() == "42\n" and os.readlink(copy / "link") == "deep/e"
    assert (copy / "deep" / "e").stat().st_mode & 0o777 == 0o755 and Path(made.grader.reference, "a").exists()


def test_a_reference_in_the_oracle_stays_there(folder: Path) -> None:
    """The grader's copy of the oracle leaves it out by its place."""
    (folder / "task.yaml").write_text("version: 1\ngrader: {reference: oracle/answer}\n")
    made = held(folder)
    assert made.grader is not None and made.grader.reference == f"{made.oracle}/answer"


def _exchange(path: Path, target: Path) -> None:
    path.rename(path.with_name("gone"))
    path.symlink_to(target)


CHANGES: dict[str, Callable[[Path], object]] = {
    "oracle": lambda top: (top / "oracle" / "deep" / "e").write_text("41\n"),
    "script": lambda top: (top / "grade.sh").write_text("true\n"),
    "reference": lambda top: (top / "solution" / "more").write_text("x"),
    "setup": lambda top: (top / "setup.sh").write_text("rm a\n"),
    "workspace": lambda top: (top / "workspace" / "a").write_text("42\n"),
    "a FIFO": lambda top: os.mkfifo(top / "oracle" / "fifo"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_is_exchanged_after_it_was_hashed_is_refused_by_its_path(name: str, folder: Path) -> None:
    with pytest.raises(UsageError, match=str(folder)):
        held(folder, lambda: CHANGES[name](folder))


@pytest.mark.parametrize("name", ["workspace", "oracle", "solution", "grade.sh", "setup.sh"])
def test_no_link_that_is_put_there_later_shows_files_of_the_operators(name: str, folder: Path) -> None:
    """As good as what it stands for, by every digest: the operator's files would be hashed and copied alike."""
    own = folder.parent / "operators"
    own.mkdir()
    if (folder / name).is_dir():
        (own / "key").write_text("secret")
    else:
        (own / "key").write_text((folder / name).read_text())
    task = Task.from_folder(folder)
    _exchange(folder / name, own if (folder / name).is_dir() else own / "key")
    with pytest.raises(UsageError):
        given = inputs_of(task, "agent", ())
        hold(task, given, staging.stage(task, str(folder.parent / "place")), str(folder.parent / "place"))
    copies = [path for path in (folder.parent / "place").rglob("*") if path.is_file()]
    assert not [path for path in copies if path.read_text() == "secret"]


@pytest.mark.system
def test_who_changes_the_answer_while_the_agent_works_changes_nothing(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = runs._run_agents

    def meanwhile(*words: object) -> object:
        (folder / "oracle" / "deep" / "e").write_text("a\n")
        (folder / "grade.sh").write_text("true\n")
        return work(*words)  # type: ignore[arg-type]

    monkeypatch.setattr(runs, "_run_agents", meanwhile)
    assert not runs.proctor(Task.from_folder(folder), "true", tmp_path / "nop").passed
    (folder / "oracle" / "deep" / "e").write_text("42\n")
    (folder / "grade.sh").write_text('test "$(cat a)" = "$(cat /oracle/deep/e)"\n')
    assert runs.proctor(Task.from_folder(folder), "sh -c 'echo 42 > a'", tmp_path / "right").passed
