"""Small repositories and instances in the form of SWE-bench's data set: pytest, Django's runner, SymPy's runner."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.image_folder import libraries, make_root

Files = dict[str, str]
_CLEAN = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", "GIT_AUTHOR_NAME": "A",
          "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "A", "GIT_COMMITTER_EMAIL": "a@b"}  # fmt: skip

AREA = '''"""Areas."""


def square(side):
    return side * side


def triangle(base, height):
    return base * height


def named(kind, *sides):
    return {"square": square, "triangle": triangle}[kind](*sides)
'''
FIXED = AREA.replace("    return base * height\n", '''    if base < 0 or height < 0:
        raise ValueError("negative")
    return base * height / 2
''')
TESTS = '''import pytest

from shapes.area import named, square


def test_square():
    assert square(3) == 9


@pytest.mark.parametrize("side, expected", [(1, 1), (4, 16)])
def test_squares(side, expected):
    assert square(side) == expected


def test_named(unit):
    assert named("square", unit) == 1
'''
NEW_TESTS = TESTS.replace("import named, square", "import named, square, triangle") + '''

def test_triangle():
    assert triangle(4, 3) == 6


class TestTriangle:
    def test_negative(self):
        with pytest.raises(ValueError):
            triangle(-1, 2)

    def test_by_name(self):
        assert named("triangle", 10, 4) == 20
'''
CONFTEST = "import pytest\n\n\n@pytest.fixture\ndef unit():\n    return 1\n"
BASE: Files = {
    "shapes/__init__.py": "", "shapes/area.py": AREA, "tests/test_area.py": TESTS, "tests/conftest.py": CONFTEST,
    "setup.cfg": "[tool:pytest]\ntestpaths = tests\n", "README.rst": "shapes\n",
}  # fmt: skip
FAIL_TO_PASS = ["tests/test_area.py::test_triangle", "tests/test_area.py::TestTriangle::test_negative",
                "tests/test_area.py::TestTriangle::test_by_name"]  # fmt: skip
PASS_TO_PASS = ["tests/test_area.py::test_square", "tests/test_area.py::test_squares[1-1]",
                "tests/test_area.py::test_squares[4-16]", "tests/test_area.py::test_named"]  # fmt: skip


def git(folder: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=folder, env={**os.environ, **_CLEAN}, check=True, capture_output=True)
    return done.stdout.decode()


def write(folder: Path, files: Files) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def commit(folder: Path, files: Files, words: str) -> str:
    write(folder, files)
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", words)
    return git(folder, "rev-parse", "HEAD").strip()


def make(
    folder: Path, base: Files, solution: Files, tests: Files, *, repo: str, fail_to_pass: list[str],
    pass_to_pass: list[str], **more: object,
) -> Path:  # fmt: skip
    """A clone with its base, the solution and the tests as later commits, and beside it ``instance.json``."""
    clone = folder / "clone"
    clone.mkdir(parents=True)
    git(clone, "init", "--quiet", "--initial-branch=main")
    first = commit(clone, base, "base")
    fixed = commit(clone, solution, "the fix")
    tested = commit(clone, tests, "its tests")
    git(clone, "tag", "v2")
    row = {
        "instance_id": repo.replace("/", "__") + "-1", "repo": repo, "base_commit": first, "version": "1.0",
        "problem_statement": "The area of a triangle is wrong.\n", "hints_text": "", "created_at": "2024",
        "patch": git(clone, "diff", first, fixed), "test_patch": git(clone, "diff", fixed, tested),
        # One as the data set has it in its files, one as it is loaded elsewhere.
        "FAIL_TO_PASS": json.dumps(fail_to_pass), "PASS_TO_PASS": pass_to_pass, **more,
    }  # fmt: skip
    (folder / "instance.json").write_text(json.dumps(row))
    return folder


def shapes(folder: Path, **more: object) -> Path:
    """An instance that pytest runs."""
    given = {"repo": "acme/shapes", "fail_to_pass": FAIL_TO_PASS, "pass_to_pass": PASS_TO_PASS}
    return make(folder, BASE, {"shapes/area.py": FIXED}, {"tests/test_area.py": NEW_TESTS}, **{**given, **more})  # type: ignore[arg-type]


# ---- a repository with Django's runner, which is unittest's

RUNTESTS = '''#!/usr/bin/env python
import argparse, os, sys, unittest
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
parser = argparse.ArgumentParser()
parser.add_argument("modules", nargs="*")
parser.add_argument("--settings")
parser.add_argument("--parallel", type=int)
parser.add_argument("-v", "--verbosity", type=int)
options = parser.parse_args()
suite = unittest.defaultTestLoader.loadTestsFromNames(options.modules)
result = unittest.TextTestRunner(verbosity=options.verbosity).run(suite)
sys.exit(not result.wasSuccessful())
'''
DJANGO_TESTS = '''from unittest import TestCase, skip

from django.area import square


class Mixed:
    def test_inherited(self):
        self.assertEqual(self.side * self.side, square(self.side))


class AreaTests(Mixed, TestCase):
    side = 5

    def test_square(self):
        """Squares are squared."""
        self.assertEqual(square(3), 9)

    def test_parts(self):
        for side in (1, 2):
            with self.subTest(side=side):
                self.assertEqual(square(side), side * side)

    @skip("not today")
    def test_never(self):
        pass
'''
NEW_DJANGO_TESTS = DJANGO_TESTS.replace("import square\n", "import square, triangle\n") + '''
    def test_triangle(self):
        self.assertEqual(triangle(4, 3), 6)
'''
PLACE = "areas.tests.AreaTests"


def django(folder: Path) -> Path:
    """An instance whose names are Django's: the method with its class, or the first line of a docstring."""
    base = {"django/__init__.py": "", "django/area.py": AREA, "tests/runtests.py": RUNTESTS,
            "tests/areas/__init__.py": "", "tests/areas/tests.py": DJANGO_TESTS}  # fmt: skip
    return make(
        folder, base, {"django/area.py": FIXED}, {"tests/areas/tests.py": NEW_DJANGO_TESTS}, repo="django/django",
        fail_to_pass=[f"test_triangle ({PLACE})"],
        pass_to_pass=["Squares are squared.", f"test_parts ({PLACE})", f"test_inherited ({PLACE})"],
    )  # fmt: skip


# ---- a repository with SymPy's runner

SYMPY_RUNNER = '''import os, sys
class Skipped(Exception): pass
class PyTestReporter:
    def entering_filename(self, filename, n): pass
    def entering_test(self, f): print(f.__name__, end=" ")
    def test_pass(self, char="."): print("ok")
    def test_fail(self, exc_info): print("F")
    def test_exception(self, exc_info): print("E")
    def test_skip(self, v=None): print("s")
    def test_xfail(self): print("f")
    def test_xpass(self, v): print("X")
    def import_error(self, filename, exc_info): print(filename, exc_info[1])
def run_in_subprocess_with_hash_randomization(name, function_args): raise SystemExit("another process")
def test(*paths, **more):
    if run_in_subprocess_with_hash_randomization("_test", function_args=paths) is not False:
        return False
    return _test(*paths)
def _test(*paths):
    reporter, good = PyTestReporter(), True
    for path in paths:
        names = {}
        reporter.entering_filename(os.path.abspath(path), 0)
        try:
            exec(compile(open(path).read(), path, "exec"), names)
        except Exception:
            reporter.import_error(os.path.abspath(path), sys.exc_info())
            good = False
            continue
        for name in [name for name in names if name.startswith("test_")]:
            reporter.entering_test(names[name])
            try:
                names[name]()
            except AssertionError:
                reporter.test_fail(sys.exc_info())
                good = False
            except Exception:
                reporter.test_exception(sys.exc_info())
                good = False
            else:
                reporter.test_pass()
    return good
'''
BIN_TEST = '''#!/usr/bin/env python
import sys
from get_sympy import path_hack
path_hack()
import sympy
sys.exit(0 if sympy.test(*[word for word in sys.argv[1:] if not word.startswith("-")]) else 1)
'''
GET_SYMPY = '''import os, sys
def path_hack():
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
'''
SYMPY_TESTS = "from sympy.area import square\n\n\ndef test_square():\n    assert square(3) == 9\n"
NEW_SYMPY_TESTS = SYMPY_TESTS.replace("square\n", "square, triangle\n", 1) + (
    "\n\ndef test_triangle():\n    assert triangle(4, 3) == 6\n")  # fmt: skip


def sympy(folder: Path) -> Path:
    """An instance whose names are functions alone."""
    base = {"sympy/__init__.py": "from sympy.testing.runtests import test\n", "sympy/area.py": AREA,
            "sympy/testing/__init__.py": "", "sympy/testing/runtests.py": SYMPY_RUNNER, "bin/test": BIN_TEST,
            "bin/get_sympy.py": GET_SYMPY, "sympy/tests/test_area.py": SYMPY_TESTS}  # fmt: skip
    return make(
        folder, base, {"sympy/area.py": FIXED}, {"sympy/tests/test_area.py": NEW_SYMPY_TESTS}, repo="sympy/sympy",
        fail_to_pass=["test_triangle"], pass_to_pass=["test_square"],
    )  # fmt: skip


# ---- an image with a Python and pytest


def python_root(folder: Path) -> tuple[Path, str]:
    """A root with this interpreter, and the path of that inside."""
    root, python = make_root(folder), os.path.realpath(sys.executable)
    library = Path(os.__file__).parent
    left_out = shutil.ignore_patterns("test", "tests", "idlelib", "site-packages", "dist-packages", "__pycache__",
                                      "*.a", "config-*", "*.pyc", "sitecustomize.py", "ensurepip")  # fmt: skip
    shutil.copytree(library, _inside(root, library), ignore=left_out, ignore_dangling_symlinks=True)
    programs = [Path(python), *(library / "lib-dynload").glob("*.so")]
    for path in (python, *libraries(programs)):
        if not _inside(root, path).exists():
            shutil.copy(os.path.realpath(path), _inside(root, path))
    for name in ("pytest", "_pytest", "pluggy", "iniconfig", "packaging", "pygments", "py"):
        found = importlib.util.find_spec(name)
        assert found is not None and found.origin is not None, name
        if found.submodule_search_locations:
            shutil.copytree(Path(found.origin).parent, _inside(root, library / name), ignore=left_out)
        else:
            shutil.copy(found.origin, _inside(root, library / f"{name}.py"))
    return root, python


def _inside(root: Path, path: str | Path) -> Path:
    place = root / str(path).lstrip("/")
    place.parent.mkdir(parents=True, exist_ok=True)
    return place
