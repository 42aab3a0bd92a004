"""What a run of pytest is shown of the oracle, and which names it may import from it."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from ringfence.errors import UsageError
from ringfence.proctor.pytest_sandbox import _copy_oracle, grader_of, imports_of, with_reference


def _write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def _task(folder: Path, oracle: dict[str, str], tests: tuple[str, ...], reference: str = "") -> SimpleNamespace:
    _write(folder / "oracle", oracle)
    grader = SimpleNamespace(pytest=tests, reference=reference)
    return SimpleNamespace(id="t", oracle=str(folder / "oracle"), grader=grader)


def test_nothing_in_the_copy_tells_tests_and_twins_apart(tmp_path: Path) -> None:
    """A program that reads all of it finds neither the tests as they were nor the reference."""
    files = {"tests/test_all.py": "as it was", "tests/data": "data", ".git/config": "as it was",
             "tests/__pycache__/test_all.cpython-311.pyc": "as it was", "tests/old.pyc": "as it was",
             "answers/solution.py": "as it was", ".pytest_cache/v": "as it was"}  # fmt: skip
    oracle = _write(tmp_path / "oracle", files)
    _copy_oracle(str(oracle), str(tmp_path / "copy"), {"tests/test_all.py": "mixed"}, str(oracle / "answers"))
    shown = {str(path.relative_to(tmp_path / "copy")): path.read_text()
             for path in (tmp_path / "copy").rglob("*") if path.is_file()}  # fmt: skip
    assert shown == {"tests/test_all.py": "mixed", "tests/data": "data", ".ringfence-pytest.ini": "[pytest]\n"}


def test_a_test_file_that_is_a_link_is_not_written_through(tmp_path: Path) -> None:
    oracle = _write(tmp_path / "oracle", {"real.py": "as it was"})
    os.symlink("real.py", oracle / "test_all.py")
    os.symlink(tmp_path / "oracle" / "real.py", oracle / "test_other.py")
    texts = {"test_all.py": "mixed", "test_other.py": "mixed"}
    _copy_oracle(str(oracle), str(tmp_path / "copy"), texts, "")
    assert (oracle / "real.py").read_text() == "as it was"
    assert (tmp_path / "copy" / "test_other.py").read_text() == "mixed"


@pytest.mark.parametrize(("files", "chosen"), [
    ({}, ".ringfence-pytest.ini"),
    ({"pytest.ini": "[pytest]"}, "pytest.ini"),
    ({"pyproject.toml": "[project]"}, ".ringfence-pytest.ini"),
    ({"pyproject.toml": "[tool.pytest.ini_options]"}, "pyproject.toml"),
    ({"setup.cfg": "[tool:pytest]", "tox.ini": "[tox]"}, "setup.cfg"),
], ids=str)  # fmt: skip
def test_the_options_are_those_of_the_oracles_own_folder(files: dict[str, str], chosen: str, tmp_path: Path) -> None:
    oracle = _write(tmp_path / "oracle", {"test_a.py": "", **files})
    assert _copy_oracle(str(oracle), str(tmp_path / "copy"), {"test_a.py": ""}, "") == chosen


def test_what_lies_beside_the_tests_is_the_oracles_unless_the_workspace_has_it(tmp_path: Path) -> None:
    oracle = {"tests/test_a.py": "", "tests/__init__.py": "", "tests/helper.py": "", "solution.py": "", "both.py": ""}
    staged = _write(tmp_path / "staged", {"solution.py": "", "src/both.py": "", "tests/helper.py": ""})
    found = imports_of(_task(tmp_path, oracle, ("tests/test_a.py",)), str(staged))
    assert set(found.names) == {"tests", "helper", "test_a"}
    assert found.places == ("", "tests")


def test_a_part_of_pytest_can_not_be_judged_by_it(tmp_path: Path) -> None:
    """The runner has loaded its own of that name: the submission would not be tested at all."""
    staged = _write(tmp_path / "staged", {"src/packaging/__init__.py": ""})
    with pytest.raises(UsageError, match="packaging is a part of pytest"):
        imports_of(_task(tmp_path, {"test_a.py": ""}, ("test_a.py",)), str(staged))


def test_the_reference_is_laid_over_a_copy_of_the_workspace(tmp_path: Path) -> None:
    staged = _write(tmp_path / "staged", {"a.py": "old", "b.py": "b"})
    reference = _write(tmp_path / "reference", {"a.py": "new", "deep/c.py": "c"})
    task = _task(tmp_path, {"test_a.py": ""}, ("test_a.py",), str(reference))
    made = Path(with_reference(task, str(staged), str(tmp_path / "made")))
    assert [(made / name).read_text() for name in ("a.py", "b.py", "deep/c.py")] == ["new", "b", "c"]
    assert (staged / "a.py").read_text() == "old"
    task.grader.reference = str(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="the reference solution is not a directory"):
        with_reference(task, str(staged), str(tmp_path / "other"))


def test_a_task_without_tests_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="names no tests of an oracle"):
        grader_of(_task(tmp_path, {"x": ""}, ()))
