"""How twins are chosen and tried before there is a submission; the runner is a few lines that know no fixtures."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from pathlib import Path
from random import Random
from types import SimpleNamespace

import pytest

from ringfence.errors import UsageError
from ringfence.model.outcome import Outcome, Status
from ringfence.proctor import pytest_grader
from ringfence.proctor.pytest_grader import PreparedTests, grade, prepare


def _run(task: object, workspace: str, texts: Mapping[str, str], *_: object, **__: object) -> Outcome:
    """Run the functions of each file in their order; a file whose workspace lacks the solution can't be imported."""
    lines: list[dict[str, object]] = []
    for path, text in texts.items():
        space: dict[str, object] = {}
        try:
            exec((Path(workspace) / "solution.py").read_text(), space)
            exec(text, space)
        except Exception as error:
            lines.append({"uncollected": path, "outcome": "failed", "message": repr(error)})
            continue
        for node in ast.parse(text).body:
            if isinstance(node, ast.FunctionDef):
                end = {"outcome": _end(space[node.name]), "duration_s": 0, "message": ""}
                lines.append({"test": f"{path}::{node.name}", **end})
    bad = any(line["outcome"] == "failed" for line in lines)
    message = "".join(json.dumps(line) + "\n" for line in [*lines, {"finished": int(bad)}])
    status = Status.FAILED if bad else Status.OK
    return Outcome(status=status, rc=int(bad), reason="its end", message=message.encode(), argv=("python",))


def _end(test: object) -> str:
    try:
        test()  # type: ignore[operator]
    except Exception:
        return "failed"
    return "passed"


@pytest.fixture(autouse=True)
def _in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pytest_grader, "run_worker", _run)


def _task(folder: Path, tests: dict[str, str], reference: str | None = "") -> SimpleNamespace:
    for name in ("oracle", "workspace", "reference", "submission"):
        (folder / name).mkdir(exist_ok=True)
    for name, text in tests.items():
        (folder / "oracle" / name).write_text(text)
    (folder / "reference" / "solution.py").write_text(reference or "")
    place = "" if reference is None else str(folder / "reference")
    return SimpleNamespace(id="t", oracle=str(folder / "oracle"), folder=folder,
                           grader=SimpleNamespace(pytest=tuple(tests), reference=place))  # fmt: skip


def _prepare(task: SimpleNamespace, seed: int = 1) -> PreparedTests:
    return prepare(task, str(task.folder / "workspace"), rng=Random(seed))


def _passes(task: SimpleNamespace, prepared: PreparedTests, solution: str) -> bool:
    (task.folder / "submission" / "solution.py").write_text(solution)
    return grade(task, prepared, SimpleNamespace(folder=str(task.folder / "submission"))).passed


@pytest.mark.parametrize("seed", range(5))
def test_tests_that_need_their_order_keep_it_beside_their_twins(seed: int, tmp_path: Path) -> None:
    steps = [f"def test_{n}():\n    SEEN.add({n})\n    assert len(SEEN) == {n}\n" for n in range(1, 7)]
    task = _task(tmp_path, {"test_all.py": "SEEN = set()\n" + "".join(steps)})
    prepared = _prepare(task, seed)
    assert len(prepared.expected.twins) == 6 and len(prepared.expected.failing) == 6
    assert _passes(task, prepared, "")


@pytest.mark.parametrize("seed", range(5))
def test_tests_that_build_on_each_other_have_no_twins(seed: int, tmp_path: Path) -> None:
    steps = [f"def test_{n}():\n    SEEN.append({n})\n    assert SEEN == {[*range(1, n + 1)]}\n" for n in range(1, 4)]
    other = "def test_it(): assert abs(-4) == 4\n"
    task = _task(tmp_path, {"test_all.py": "SEEN = []\n" + "".join(steps), "test_other.py": other})
    prepared = _prepare(task, seed)
    assert prepared.without_twin == tuple(f"test_all.py::test_{n}" for n in (1, 2, 3))
    assert [own for own, _ in prepared.expected.twins.values()] == ["test_other.py::test_it"]
    assert _passes(task, prepared, "")


def test_a_reference_that_does_not_pass_is_the_operators_mistake(tmp_path: Path) -> None:
    task = _task(tmp_path, {"test_all.py": "def test_it(): assert f() == 5\n"}, "def f(): return 4\n")
    with pytest.raises(UsageError, match=r"does not pass the task's own tests: test_all\.py::test_it"):
        _prepare(task)
    with pytest.raises(UsageError, match=r"own tests: test_all\.py: NameError"):
        _prepare(_task(tmp_path, {"test_all.py": "g()\ndef test_it(): assert f() == 5\n"}, "def f(): return 5\n"))


def test_twins_that_pass_for_the_reference_are_dropped(tmp_path: Path) -> None:
    """What is equal to all values contradicts nothing."""
    solution = SAME + "def f(): return Any()\n"
    prepared = _prepare(_task(tmp_path, {"test_all.py": "def test_it(): assert f() == 5\n"}, solution))
    assert prepared.without_twin == ("test_all.py::test_it",) and prepared.figures["made"] == 2


SAME = "class Any:\n    def __eq__(s, o): return True\n    def __ne__(s, o): return True\n"
TWO = "def test_a(): assert f() == 5\ndef test_b(): assert g() == 6\n"


def test_without_a_reference_pairs_that_pass_on_the_untouched_workspace_are_dropped(tmp_path: Path) -> None:
    task = _task(tmp_path, {"test_all.py": TWO}, None)
    (tmp_path / "workspace" / "solution.py").write_text(SAME + "def f(): return Any()\ndef g(): return 6\n")
    prepared = _prepare(task)
    assert prepared.expected.weak and prepared.without_twin == ("test_all.py::test_a",)
    assert prepared.expected.collected == {"test_all.py::test_a": "passed", "test_all.py::test_b": "passed"}


def test_without_a_reference_tests_that_can_not_be_collected_are_known_from_their_text(tmp_path: Path) -> None:
    task = _task(tmp_path, {"test_all.py": TWO}, None)
    prepared = _prepare(task)
    assert prepared.expected.open_files == {"test_all.py"} and len(prepared.expected.twins) == 2
    assert _passes(task, prepared, "def f(): return 5\ndef g(): return 6\n")
    assert not _passes(task, prepared, "def f(): return 5\ndef g(): return 5\n")


def test_what_could_not_be_collected_may_be_skipped_by_its_own_mark_alone(tmp_path: Path) -> None:
    marked = "@pytest.mark.skipif(sys.version_info < (3, 99), reason='old')\ndef test_c(): assert f() == 7\n"
    prepared = _prepare(_task(tmp_path, {"test_all.py": "import pytest, sys, solution\n" + TWO + marked}, None))
    assert prepared.expected.collected == {
        "test_all.py::test_a": "", "test_all.py::test_b": "", "test_all.py::test_c": "skipped"}  # fmt: skip


def test_a_run_that_was_broken_off_on_the_untouched_workspace_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the tests after it would be missed by nobody."""
    one = json.dumps({"test": "test_all.py::test_x", "outcome": "passed", "duration_s": 0, "message": ""}) + "\n"
    broken = Outcome(status=Status.CRASHED, rc=134, reason="a crash", message=one.encode(), argv=("python",))
    task = _task(tmp_path, {"test_all.py": TWO}, None)
    monkeypatch.setattr(pytest_grader, "run_worker", lambda *_, **__: broken)
    assert set(_prepare(task).expected.collected) == {"test_all.py::test_a", "test_all.py::test_b"}


def test_an_interpreter_without_pytest_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = Outcome(status=Status.FAILED, rc=4, reason="", message=b'{"missing": "pytest"}\n', argv=("python",))
    monkeypatch.setattr(pytest_grader, "run_worker", lambda *_, **__: told)
    with pytest.raises(UsageError, match="python has no pytest"):
        _prepare(_task(tmp_path, {"test_all.py": TWO}))


def test_a_test_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    task = _task(tmp_path, {"test_all.py": TWO})
    task.grader.pytest = ("test_none.py",)
    with pytest.raises(UsageError, match=r"test_none\.py: a test file of the oracle that can't be read"):
        _prepare(task)
