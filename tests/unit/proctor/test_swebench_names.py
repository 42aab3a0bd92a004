"""What the data set's names mean, the table of repositories, and the worker's old Python."""

from __future__ import annotations

import ast
import os
from pathlib import Path

import pytest

from ringfence.errors import UsageError
from ringfence.proctor.foreign import swebench_worker
from ringfence.proctor.foreign.graded_tree import is_harness, is_test, restore
from ringfence.proctor.foreign.named_tests import check_files, django_label, files_to_run, meant
from ringfence.proctor.foreign.patches import Content, read_patch
from ringfence.proctor.foreign.repositories import DJANGO, PYTEST, REPOSITORIES, RUNNERS, SYMPY, repository_of

A = "tests/t.py::test_a"


@pytest.mark.parametrize(("name", "told", "runner", "tests"), [
    (A, {A: ""}, PYTEST, (A,)),
    (f"{A}[x", {f"{A}[x y]": "", f"{A}[x z]": "", f"{A}[y]": ""}, PYTEST, (f"{A}[x y]", f"{A}[x z]")),
    (f"{A}[x]", {f"{A}[x]": "", f"{A}[x] y": ""}, PYTEST, (f"{A}[x]",)),
    (f"{A}[1-2]", {f"{A}[MouseButton.LEFT-2]": ""}, PYTEST, (f"{A}[MouseButton.LEFT-2]",)),
    (f"{A}[/file]", {f"{A}[/long/way/to/file]": ""}, PYTEST, (f"{A}[/long/way/to/file]",)),
    (f"{A}[gone]", {A: ""}, PYTEST, ()),
    ("test_a", {A: ""}, PYTEST, ()),
    ("test_a", {A: "", "tests/u.py::test_a": "", "tests/u.py::test_b": ""}, SYMPY, (A, "tests/u.py::test_a")),
    ("test_a (app.tests.C)", {"1": "test_a (app.tests.C)\n"}, DJANGO, ("1",)),
    ("test_a (app.tests.C)", {"1": "test_a (app.tests.C.test_a)\n"}, DJANGO, ("1",)),
    ("test_a (app.tests.C.test_a)", {"1": "test_a (app.tests.C)\n"}, DJANGO, ("1",)),
    ("What it does.", {"1": "test_a (app.tests.C)\nWhat it does.", "2": "test_b (app.tests.C)\nWhat it does."},
     DJANGO, ("1", "2")),
    ("test_a (app.tests.D)", {"1": "test_a (app.tests.C)\n"}, DJANGO, ()),
], ids=["itself", "cut at a blank", "itself before others", "a button", "a path", "gone", "no bare names", "SymPy",
        "Django", "since 3.11", "before 3.11", "docstring", "other class"])  # fmt: skip
def test_what_a_name_means(name: str, told: dict[str, str], runner: str, tests: tuple[str, ...]) -> None:
    assert meant([name], told, runner) == {name: tests}


def test_which_files_are_run() -> None:
    names = ("tests/app/tests.py", "tests/app/data.json", "tests/app/page.html")
    patch = read_patch("".join(f"diff --git a/{name} b/{name}\nnew file mode 100644\n" for name in names))
    assert files_to_run(["t/a.py::b", "t/a.py::c", "t/d.py::e"], patch, PYTEST) == ("t/a.py", "t/d.py")
    assert files_to_run(["test_a (app.tests.C)"], patch, DJANGO) == ("tests/app/tests.py",)
    assert django_label("tests/app/tests.py") == "app.tests"


@pytest.mark.parametrize("path", [
    "../tests/test_a.py", "tests/../../test_a.py", "/tests/test_a.py", "./tests/test_a.py", "", ".git/tests/test_a.py",
    "-ptests.evil", "--rootdir=/tests",
])  # fmt: skip
def test_a_name_leads_to_a_file_of_the_repository_or_is_refused(path: str) -> None:
    with pytest.raises(UsageError, match="row: FAIL_TO_PASS or PASS_TO_PASS: "):
        check_files(files_to_run([f"{path}::test_a"], (), PYTEST), "row")
    check_files(("tests/test_a.py", "a..b/test-a.py"), "row")


def test_the_twelve_repositories_have_rows_and_others_a_default() -> None:
    assert len(REPOSITORIES) == 12 and {row.runner for row in REPOSITORIES.values()} == set(RUNNERS)
    assert all(row.distributions and row.packages for row in REPOSITORIES.values())
    assert repository_of("PyCQA/pylint") is repository_of("pylint-dev/pylint")
    other = repository_of("acme/some-thing")
    assert (other.runner, other.distributions, other.packages) == (PYTEST, ("some-thing",), ("some_thing",))


@pytest.mark.parametrize(("path", "expected"), [
    ("conftest.py", True), ("a/b/conftest.py", True), ("pyproject.toml", True), ("x.egg-info/entry_points.txt", True),
    ("x.DIST-INFO/entry_points.txt", True), ("lib/x.Egg-Info/entry_points.txt", True),
    ("bin/test", True), ("a/my_conftest.py", False), ("src/area.py", False),
])  # fmt: skip
def test_which_files_run_tests(path: str, expected: bool) -> None:
    assert is_harness(path, ("bin/test",)) is expected


def test_what_runs_tests_is_restored_and_not_read_whatever_its_size(tmp_path: Path) -> None:
    """A worker without memory would be a failure of the machine, and the agent would have another try."""
    for name in ("conftest.py", "tests/conftest.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
        os.truncate(tmp_path / name, 1 << 42)
    assert {*restore(str(tmp_path), {"conftest.py": Content(b"# ours")}, ())} == {"conftest.py", "tests/conftest.py"}
    assert (tmp_path / "conftest.py").read_text() == "# ours" and not (tmp_path / "tests" / "conftest.py").exists()


@pytest.mark.parametrize("planted", [
    "tests/test_a/__init__.py", "tests/conftest/__init__.py", "tests/test_a.so", "tests/test_a.cpython-312-x86_64.so",
    "conftest.abi3.so", "tests/test_a/__init__.abi3.so", "tests/__init__.so",
])  # fmt: skip
def test_nothing_is_imported_in_the_place_of_what_was_restored(planted: str, tmp_path: Path) -> None:
    files = {"conftest.py": Content(b""), "tests/conftest.py": Content(b""), "tests/test_a.py": Content(b"# ours"),
             "tests/__init__.py": Content(b"")}  # fmt: skip
    for name in (planted, "shapes/__init__.py", "shapes/area.so", "tests/test_a/data.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("# the agent's")
    assert {*restore(str(tmp_path), files, ())} == {planted, *files}
    assert not (tmp_path / planted).exists() and (tmp_path / "tests" / "test_a" / "data.txt").exists()


def test_a_source_file_with_examples_is_no_test_file() -> None:
    assert is_test("pkg/tests/helpers.py") and is_test("test_a.py") and is_test("pkg/a_test.py")
    assert not is_test("pkg/area.py") and not is_test("pkg/contest.py")


NEWER = (ast.JoinedStr, ast.AnnAssign, ast.NamedExpr, ast.Match, ast.AsyncFunctionDef)


def _newer(source: str) -> list[str]:
    """What Python 3.5 does not know; annotations have to be texts, for it looks them up."""
    tree = ast.parse(source)
    found = [type(node).__name__ for node in ast.walk(tree) if isinstance(node, NEWER)]
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    found += ["/" for node in functions if node.args.posonlyargs]
    notes = [each.annotation for node in functions for each in node.args.args] + [node.returns for node in functions]
    found += [ast.unparse(note) for note in notes if isinstance(note, ast.Subscript | ast.BinOp)]
    return found + (["future"] if "from __future__ import annotations" in source else [])


def test_the_worker_is_written_for_python_3_5() -> None:
    assert _newer(Path(swebench_worker.__file__).read_text()) == []
    assert _newer("def f(a: list[int]) -> int | None:\n    b: int = 1\n    return f'{b}'\n") != []
