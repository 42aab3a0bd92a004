"""The counts of the pytest door are those of pytest's own summary and of the junit file of the same run."""

from __future__ import annotations

import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path

import pytest

from ringfence import SandboxPolicy, run_pytests_v2
from ringfence.pytest_runner.result import SandboxResultV2

pytestmark = [pytest.mark.privileges, pytest.mark.unmeasured]

PLENTY = SandboxPolicy(pids_max=64, mem_bytes=4 << 30, wall_time_s=300, cpu_time_s=200)
KINDS = """
import pytest
def test_passes(): pass
def test_fails(): assert False
@pytest.mark.skip
def test_skips(): pass
@pytest.mark.skipif("True", reason="so")
def test_skips_if(): pass
def test_skips_itself(): pytest.skip("so")
@pytest.mark.xfail
def test_xfails(): assert False
def test_xfails_itself(): pytest.xfail("so")
@pytest.mark.xfail
def test_xpasses(): pass
@pytest.mark.xfail(strict=True)
def test_xpasses_strictly(): pass
@pytest.fixture
def broken(): raise RuntimeError
def test_errors_before(broken): pass
@pytest.fixture
def breaks(): yield; raise RuntimeError
def test_errors_after(breaks): pass
def test_fails_and_errors_after(breaks): assert False
@pytest.fixture
def skips(): pytest.skip("so")
def test_skipped_by_its_fixture(skips): pass
"""
SUBTESTS = """
import unittest
class TestWithSubtests(unittest.TestCase):
    def test_one_fails(self):
        for number in range(4):
            with self.subTest(number=number):
                assert number != 1
    def test_all_pass(self):
        for number in range(4):
            with self.subTest(number=number):
                pass
    @unittest.expectedFailure
    def test_fails_as_expected(self): assert False
def test_two_of_the_fixture_fail(subtests):
    for number in range(4):
        with subtests.test(number=number):
            assert number not in (1, 2)
def test_all_of_the_fixture_pass(subtests):
    for number in range(4):
        with subtests.test(number=number):
            pass
"""
SUITE = {
    "test_kinds.py": KINDS,
    "test_subtests.py": SUBTESTS,
    "test_skipped_module.py": "import pytest\npytest.skip('so', allow_module_level=True)\n",
    "test_missing_module.py": "import pytest\npytest.importorskip('no_such_module')\n",
    "test_deselected.py": "def test_not_wanted(): pass\n",
}
# Without -v the summary of pytest 9 leaves such subtests out, and junit does not.
SKIPPED_SUBTEST = {"test_skipped_subtest.py": "import unittest\nclass TestIt(unittest.TestCase):\n def test_it(self):\n"
                                              "  with self.subTest(): self.skipTest('so')\n"}  # fmt: skip
BROKEN = {"test_broken.py": "import no_such_module\n", "test_syntax.py": "def (\n"}
RERUNS = {"test_reruns.py": "tries = []\ndef test_at_last():\n tries.append(1)\n assert len(tries) == 3\n"
                            "def test_never(): assert False\n"}  # fmt: skip
CRASHES = {"test_crashes.py": "import os\ndef test_kills_itself(): os.kill(os.getpid(), 9)\n"
                              "def test_passes(): pass\n"}  # fmt: skip
CASES: dict[str, tuple[dict[str, str], list[str]]] = {
    "alone": (SUITE, ["-k", "not not_wanted"]),
    "verbose": (SUITE | SKIPPED_SUBTEST, ["-v"]),
    "quiet": (SUITE, ["-q"]),
    "xdist": (SUITE, ["-n", "2"]),
    "broken": (SUITE | BROKEN, []),
    "broken, going on": (SUITE | BROKEN, ["--continue-on-collection-errors"]),
    "broken, xdist": (SUITE | BROKEN, ["-n", "2"]),
    "reruns": ({"test_kinds.py": KINDS} | RERUNS, ["--reruns", "2"]),
    "reruns, xdist": (RERUNS, ["--reruns", "2", "-n", "2"]),
    "crashes, xdist": (SUITE | CRASHES, ["-n", "2"]),
    "stops early": (SUITE, ["-x"]),
}
OLDER = {
    "7.4": ["pytest==7.4.*", "pytest-subtests<0.13"],
    "8.0": ["pytest==8.0.*", "pytest-subtests"],
    "8.4": ["pytest==8.4.*", "pytest-subtests"],
    "9.0": ["pytest==9.0.*"],
}
Install = Callable[..., Path]


@pytest.fixture(scope="session")
def install(tmp_path_factory: pytest.TempPathFactory) -> Install:
    def into_folder(*packages: str) -> Path:
        folder = tmp_path_factory.mktemp("packages")
        command = [sys.executable, "-m", "pip", "install", "-q", "--target", str(folder), *packages]
        subprocess.run(command, check=True, capture_output=True)
        return folder

    return into_folder


@pytest.fixture(scope="session")
def reruns(install: Install) -> Path:
    """The plug-in that runs failed tests again, without a second pytest."""
    return install("--no-deps", "pytest-rerunfailures")


def _check(case: str, folder: Path, packages: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, arguments = CASES[case]
    for name, text in files.items():
        (folder / name).write_text(text)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PYTHONPATH", str(packages))
    junit = ["--junitxml", str(folder / "junit.xml"), "-o", "junit_family=xunit1"]
    result = run_pytests_v2([folder], PLENTY, arguments=[*arguments, *junit, "-p", "no:cacheprovider"])
    assert result["status"] == "FAILED", result["reason"]
    assert _counted(result) == _summary(result["stdout"]), result["stdout"]
    assert result["garbled"] == 0
    assert _by_junit(folder / "junit.xml") == _as_junit(result)
    told = [test["outcome"] for test in result["tests"]]
    assert {name: told.count(name) for name in set(told)} == {
        name: count for name, count in _counted(result).items() if name != "deselected"
    }


def _counted(result: SandboxResultV2) -> dict[str, int]:
    return {name: count for name, count in result["counts"].items() if count}


def _summary(printed: str) -> dict[str, int]:
    """The last line, e.g. «1 failed, 2 passed, 3 subtests passed in 0.1s», without what is no outcome of a test."""
    last = printed.rstrip().splitlines()[-1]
    found = {name: int(count) for count, name in re.findall(r"(\d+) (subtests \w+|\w+)", last.partition(" in ")[0])}
    names = {"errors": "error"}
    ignored = ("warning", "warnings", "subtests passed")
    return {names.get(name, name): count for name, count in found.items() if name not in ignored}


def _by_junit(path: Path) -> tuple[int, int]:
    suite = ElementTree.parse(path).getroot().find("testsuite")
    assert suite is not None
    return int(suite.attrib["failures"]) + int(suite.attrib["errors"]), int(suite.attrib["skipped"])


def _as_junit(result: SandboxResultV2) -> tuple[int, int]:
    """Crashed workers are errors there, and what was expected to fail is skipped."""
    counts = result["counts"]
    return counts["failed"] + counts["error"], counts["skipped"] + counts["xfailed"]


@pytest.mark.parametrize("case", CASES)
def test_counts_are_those_of_pytests_summary_and_of_junit(
    case: str, tmp_path: Path, reruns: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _check(case, tmp_path, reruns, monkeypatch)


@pytest.mark.long
@pytest.mark.once
@pytest.mark.parametrize(
    "version", [pytest.param(name, marks=() if name == "9.0" else pytest.mark.soak) for name in OLDER]
)
def test_counts_are_right_with_other_versions_of_pytest(
    version: str, tmp_path: Path, install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = install(*OLDER[version], "pytest-rerunfailures", "pytest-xdist")
    for case in CASES:
        folder = tmp_path / case
        folder.mkdir()
        _check(case, folder, packages, monkeypatch)


def test_subtests_that_pass_at_last_are_no_failures(
    tmp_path: Path, reruns: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(reruns))
    body = "tries = []\ndef test_a(subtests):\n tries.append(1)\n with subtests.test(): assert len(tries) == 2\n"
    (tmp_path / "test_a.py").write_text(body)
    result = run_pytests_v2(["test_a.py"], PLENTY, arguments=["--reruns", "1"])
    assert (result["status"], _counted(result)) == ("OK", {"passed": 1, "rerun": 1}), result["stdout"]
    assert _summary(result["stdout"]) == {"passed": 1, "rerun": 1}


def test_a_replaced_worker_finds_what_the_first_one_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = mine: from the ini file\naddopts = --strict-markers\n")
    (tmp_path / "conftest.py").write_text("import pytest\n@pytest.fixture\ndef seven(): return 7\n")
    body = (
        "import os, pytest\n"
        "def test_kills_itself(): os.kill(os.getpid(), 9)\n"
        "@pytest.mark.mine\ndef test_ok(seven, request):\n"
        f" assert seven == 7 and str(request.config.rootpath) == {str(tmp_path)!r}\n"
        " assert os.listdir('.') == []\n"
    )
    (tmp_path / "test_k.py").write_text(body)
    result = run_pytests_v2(["test_k.py"], PLENTY, arguments=["-n", "1"])
    told = {test["test"]: test["outcome"] for test in result["tests"]}
    assert told == {"test_k.py::test_kills_itself": "failed", "test_k.py::test_ok": "passed"}, result["stdout"]
    assert (result["status"], result["rc"]) == ("FAILED", 1)


def test_a_copy_of_pytest_that_a_test_forks_reports_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    body = (
        "import os\n"
        "def test_forks():\n child = os.fork()\n"
        " if child: os.waitpid(child, 0)\n else: assert False, 'it goes on in pytest'\n"
        "def test_after_it(): pass\n"
    )
    (tmp_path / "test_f.py").write_text(body)
    result = run_pytests_v2(["test_f.py"], PLENTY)
    told = [(test["test"], test["outcome"]) for test in result["tests"]]
    assert told == [("test_f.py::test_forks", "passed"), ("test_f.py::test_after_it", "passed")], result["stdout"]
    assert (result["status"], result["rc"]) == ("OK", 0)
