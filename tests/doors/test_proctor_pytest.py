"""Submissions that try to fool a grader of pytest, each told apart from honest ones; all of it in strict sandboxes.

The control of a forgery is in the grading itself: what the runner told of the real tests, or its exit status, is what a
naive grader believes.
"""

from __future__ import annotations

import os
import py_compile
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from pytest_submissions import (
    CONFTEST,
    FORGERIES,
    HELPER,
    HONEST,
    PLAIN_FAILS,
    PLANTED,
    REFERENCE,
    TESTS,
    WRONG,
)

from ringfence.model.record import replace
from ringfence.proctor.grading import Grading, grade
from ringfence.proctor.pytest_grader import PreparedTests, prepare
from ringfence.proctor.submission import Submission
from ringfence.proctor.task import Grader, Task

pytestmark = [pytest.mark.system, pytest.mark.unmeasured]
LIKE_OTHERS = {"another right one", "half right", "expected failures", "tests that do nothing"}
"""The suite has a budget."""


def _cases(names: dict[str, str]) -> list[object]:
    return [pytest.param(name, marks=pytest.mark.soak if name in LIKE_OTHERS else (), id=name) for name in names]


def _write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def _task(folder: Path, *, reference: dict[str, str] | None, oracle: dict[str, str] | None = None) -> Task:
    files = oracle or {"test_all.py": TESTS, "conftest.py": CONFTEST, "helper.py": HELPER}
    _write(folder / "oracle", files)
    _write(folder / "workspace", {"README": "make it\n", "solution.py": WRONG})
    if reference:
        _write(folder / "reference", reference)
    tests = tuple(name for name in files if name.rpartition("/")[2].startswith("test_"))
    grader = Grader(pytest=tests, reference=str(folder / "reference") if reference else "", wall_time_s=60)
    return Task(id="t", workspace=str(folder / "workspace"), oracle=str(folder / "oracle"), grader=grader)


@pytest.fixture(scope="module")
def graded(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """A task with its counter-tests, made once."""
    task = _task(tmp_path_factory.mktemp("task"), reference={"solution.py": REFERENCE})
    return SimpleNamespace(task=task, prepared=prepare(task, task.workspace))


def _grade(graded: SimpleNamespace, folder: Path, files: dict[str, str]) -> Grading:
    _write(folder, {"README": "make it\n", **files})
    return grade(graded.task, Submission(folder=str(folder)), prepared=graded.prepared)


def _told(grading: Grading) -> set[str]:
    return set(grading.details["tests"].values())


def test_each_test_has_a_twin(graded: SimpleNamespace) -> None:
    prepared: PreparedTests = graded.prepared
    assert prepared.without_twin == () and len(prepared.expected.twins) == 9
    assert len(prepared.expected.collected) == 10 and len(prepared.expected.failing) == 9
    (text,) = prepared.texts.values()
    assert "is right" not in text and "test_slug_lower" not in text


@pytest.mark.privileges
@pytest.mark.parametrize("name", _cases(HONEST))
def test_honest_submissions_pass(name: str, graded: SimpleNamespace, tmp_path: Path) -> None:
    grading = _grade(graded, tmp_path, {"solution.py": HONEST[name]})
    assert grading.passed and grading.reward == 1.0, grading.reason
    assert grading.details["counter_tests"]["failed"] == 9


@pytest.mark.parametrize("name", _cases(PLAIN_FAILS))
def test_wrong_submissions_fail_and_are_no_forgeries(name: str, graded: SimpleNamespace, tmp_path: Path) -> None:
    grading = _grade(graded, tmp_path, {"solution.py": PLAIN_FAILS[name]})
    assert not grading.passed and grading.forged == "" and grading.reward == 0.0


@pytest.mark.parametrize("name", _cases(FORGERIES))
def test_forgeries_are_told_apart(name: str, graded: SimpleNamespace, tmp_path: Path) -> None:
    # shortcoming 5
    grading = _grade(graded, tmp_path, {"solution.py": FORGERIES[name]})
    assert grading.forged and not grading.passed and grading.reward == 0.0, grading.reason
    naive = grading.outcome.rc == 0 or "passed" in _told(grading)
    assert naive, grading


def test_a_flood_of_the_channel_is_ended_and_is_a_forgery(graded: SimpleNamespace, tmp_path: Path) -> None:
    """Not by its wall time, which would be an hour of a grader's."""
    patient = replace(graded.task, grader=replace(graded.task.grader, wall_time_s=3600))
    flood = "import os\nwhile True: os.write(3, bytes(65536))\n"
    grading = _grade(SimpleNamespace(task=patient, prepared=graded.prepared), tmp_path, {"solution.py": flood})
    assert "written into its channel" in grading.forged and grading.outcome.limits_hit == ("output",)


MESSAGE = """
import os, tempfile
for folder in (os.getcwd(), tempfile.gettempdir(), os.path.expanduser("~"), "/dev/shm", "/var/tmp", "/run"):
    mark = os.path.join(folder, "MARK")
    if os.path.exists(mark):
        raise SystemExit("the other run was here: " + mark)
    try:
        open(mark, "w").close()
    except OSError:
        continue
"""


@pytest.mark.privileges
def test_neither_of_two_runs_sees_what_the_other_left(graded: SimpleNamespace, tmp_path: Path) -> None:
    """Else one half of the tests could be told what the other expects."""
    assert graded.prepared.other_texts
    message = MESSAGE.replace("MARK", f"mark-{os.getpid()}")
    grading = _grade(graded, tmp_path / "sandbox", {"solution.py": REFERENCE + message})
    assert grading.passed and grading.details["runs"] == 2, grading.reason
    places = {name: tmp_path / name for name in ("HOME", "TMPDIR", "work")}
    for place in places.values():
        place.mkdir()
    control = [sys.executable, "-c", message.replace(', "/dev/shm", "/var/tmp", "/run"', "")]
    environment = {name: str(places[name]) for name in ("HOME", "TMPDIR")}
    ends = [subprocess.run(control, cwd=places["work"], env=environment, check=False).returncode for _ in range(2)]
    assert ends == [0, 1]


@pytest.mark.privileges
def test_what_is_planted_in_the_workspace_has_no_effect(graded: SimpleNamespace, tmp_path: Path) -> None:
    # shortcoming 5
    assert _grade(graded, tmp_path / "right", {"solution.py": REFERENCE, **PLANTED}).passed
    wrong = _grade(graded, tmp_path / "wrong", {"solution.py": WRONG, **PLANTED})
    assert not wrong.passed and not wrong.forged and len(wrong.details["tests"]) == 10


@pytest.mark.parametrize("planted", ["conftest.py", "json.py"])
def test_the_same_wins_against_pytest_alone(planted: str, tmp_path: Path) -> None:
    files = {"solution.py": WRONG, "test_all.py": TESTS, "helper.py": HELPER, planted: PLANTED[planted]}
    _write(tmp_path, files)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_all.py"]
    assert subprocess.run(command, cwd=tmp_path, capture_output=True, check=False).returncode == 0


def test_a_compiled_file_beside_the_source_is_not_read(graded: SimpleNamespace, tmp_path: Path) -> None:
    _write(tmp_path, {"solution.py": REFERENCE})
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    assert py_compile.compile(str(tmp_path / "solution.py"), invalidation_mode=mode)
    grading = _grade(graded, tmp_path, {"solution.py": WRONG})
    assert not grading.passed and "failed" in _told(grading)


def test_without_a_reference_pairs_are_weak_and_two_are_a_forgery(tmp_path: Path) -> None:
    task = _task(tmp_path, reference=None)
    graded = SimpleNamespace(task=task, prepared=prepare(task, str(tmp_path / "workspace")))
    assert graded.prepared.expected.weak and len(graded.prepared.expected.twins) == 9
    assert _grade(graded, tmp_path / "a", {"solution.py": REFERENCE}).passed
    forged = _grade(graded, tmp_path / "b", {"solution.py": FORGERIES["equal to everything"]})
    assert forged.forged and _told(forged) == {"passed"}


def test_a_package_in_src_is_the_submissions_and_not_the_installed_one(tmp_path: Path) -> None:
    test = "import yaml\ndef test_it(): assert yaml.mine() == 5\n"
    task = _task(tmp_path, reference={"src/yaml/__init__.py": "def mine(): return 5\n"}, oracle={"test_all.py": test})
    prepared = prepare(task, str(tmp_path / "workspace"))
    assert grade(task, Submission(folder=str(tmp_path / "reference")), prepared=prepared).passed


QUICK = """import time
from solution import work

def test_quick():
    began = time.perf_counter()
    assert work() == 7
    assert time.perf_counter() - began < 0.5

def test_right():
    assert work() + 1 == 8
"""
SLOW = """import time

def work():
    time.sleep(1)
    return 7
"""
STOPPED = "time.perf_counter = lambda: 0.0\n"
REWRITTEN = """import ctypes, sys, time

def work():
    time.sleep(1)
    frame = sys._getframe(1)
    for name, value in list(frame.f_locals.items()):
        if isinstance(value, float):
            frame.f_locals[name] = value + 1
            ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), 0)
    return 7
"""
"""No clock is touched: the test itself believes that it began later."""


def test_a_stopped_clock_fails_and_a_rewritten_test_shows_outside_alone(tmp_path: Path) -> None:
    """The last remains possible (docs/reference/proctor/counter-tests.md): it passes, and the sandbox's time tells."""
    task = _task(tmp_path, reference={"solution.py": "def work():\n    return 7\n"}, oracle={"test_all.py": QUICK})
    prepared = prepare(task, task.workspace)
    found = {}
    for name, text in (("slow", SLOW), ("stopped", SLOW + STOPPED), ("rewritten", REWRITTEN)):
        folder = _write(tmp_path / name, {"solution.py": text})
        found[name] = grade(task, Submission(folder=str(folder)), prepared=prepared)
    assert {name: each.passed for name, each in found.items()} == {"slow": False, "stopped": False, "rewritten": True}
    told = found["rewritten"].details
    assert told["wall_s"] > 1 and told["reference_wall_s"] > 0, told  # type: ignore[operator]
