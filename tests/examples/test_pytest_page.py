"""The examples of docs/how-to/pytest.md that need a project around them."""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from release.dist import wheel_name

from ringfence import __version__
from tests.doors.test_pytest_plugin import INSTALLED, MODULE
from tests.egress_world import offered
from tests.examples import filled, program, shell, written
from tests.examples.in_the_world import FILES, Place, world_in
from tests.release_files import release_folder
from tests.testable import not_testable_here

pytestmark = [pytest.mark.system, pytest.mark.privileges, pytest.mark.unmeasured]


def _passed(report: Path) -> int:
    """How many tests of a JUnit file passed: all of them."""
    (suite,) = ElementTree.parse(report).getroot()
    assert (suite.get("failures"), suite.get("errors"), suite.get("skipped")) == ("0", "0", "0")
    return int(suite.get("tests") or 0)


def test_a_junit_file_outside_of_the_current_directory(tmp_path: Path) -> None:
    tests = tmp_path / "work/tests"
    tests.mkdir(parents=True)
    (tests / "test_sum.py").write_text("def test_sum(): assert 1 + 1 == 2\n")
    printed = shell(written("docs/how-to/pytest.md", "mkdir ../reports"), tmp_path)
    assert "1 passed" in printed
    assert _passed(tmp_path / "reports/junit.xml") == 1


TOOL = "import sys; sys.exit(int(open(sys.argv[1]).read()) != {answer})"


@pytest.mark.parametrize(("answer", "summary"), [(41, "1 passed"), (42, "1 failed")])
def test_a_box_for_one_test(tmp_path: Path, answer: int, summary: str) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "test_tool.py").write_text(written("docs/how-to/pytest.md", "import pytest"))
    (work / "tool.py").write_text(TOOL.format(answer=answer))
    plugin = {} if INSTALLED else {"PYTEST_PLUGINS": MODULE}
    assert summary in shell("python3 -m pytest -q test_tool.py || test $? = 1", tmp_path, plugin)


@pytest.mark.parametrize(("asked", "summary"), [("reports", "1 passed"), ("other", "1 failed")])
def test_a_directory_and_a_host_for_the_box_of_one_test(tmp_path: Path, asked: str, summary: str) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (tmp_path / "reports").mkdir()
    example = written("docs/how-to/pytest.md", "def test_report(sandbox)")
    example = example.replace("> /srv/reports", f"> /srv/{asked}").replace("/srv", str(tmp_path))
    (work / "test_tool.py").write_text(f"import pytest\n\n{example}")
    plugin = {} if INSTALLED else {"PYTEST_PLUGINS": MODULE}
    assert summary in shell("python3 -m pytest -q test_tool.py || test $? = 1", tmp_path, plugin)
    assert (tmp_path / "reports/report.txt").exists() == (asked == "reports")


MARKED = """
import pytest
from thing import doubled

def test_small(): assert doubled(1) == 2

@pytest.mark.big
def test_big(): assert len(doubled(b"x" * (200 << 20))) == 400 << 20
"""


def test_some_tests_run_a_second_time_with_more(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "thing.py").write_text("def doubled(what): return 2 * what\n")
    (work / "test_thing.py").write_text(MARKED)
    start = f"{sys.executable} -P -m pytest {'' if INSTALLED else f'-p {MODULE} '}--ringfence "
    own = {"PACKAGE": "thing", "pytest --ringfence ": start, "--timeout 5 ": "--timeout 50 "}
    text = filled(written("docs/how-to/pytest.md", "small.yaml -n 2"), **own)
    shell(text, tmp_path)
    assert [_passed(work / name) for name in ("small.xml", "big.xml")] == [1, 1]
    ended = shell(f"{start} --ringfence-policy small.yaml -m big || test $? = 137", tmp_path)
    assert "ringfence: MEM_LIMIT: " in ended, "without the second policy it gets no more than the others"


# ---- in CI


BESIDE = ("pytest", "pytest-cov", "pytest-timeout", "pytest-xdist")
"""What the recipe installs beside ringfence."""


def _fetched(folder: Path, ringfence: Path) -> list[Path]:
    """The wheels of all that pip installs outside of the sandbox; the world has no other index."""
    command = [sys.executable, "-m", "pip", "download", "-q", "--only-binary=:all:", "-d", str(folder)]
    done = subprocess.run([*command, str(ringfence), *BESIDE], capture_output=True, text=True, check=False)
    if done.returncode:
        not_testable_here(f"{', '.join(BESIDE)} can't be fetched: {done.stderr.strip()[-300:]}")
    return [path for path in folder.glob("*.whl") if path.name != ringfence.name]


def _stand_ins(place: Place) -> None:
    """A ``sudo`` that notes what it is to do, which would change this host; and a ``python3`` whose new environments
    trust the world's authority, for a pip before 24.2 asks the list that it comes with."""
    for name in ("ringfence", "proctor"):  # those of the environment are meant
        (place.home / "bin" / name).unlink()
    program(place.home, "sudo", f'echo "$@" >> {place.home}/sudo')
    listed = '"$3"/lib/python3*/site-packages/pip/_vendor/certifi'
    replaced = f'for each in {listed}; do [ ! -d "$each" ] || cp {place.authority} "$each/cacert.pem"; done'
    program(place.home, "python3", f'{sys.executable} "$@" && {replaced}')


def _project(work: Path) -> None:
    (work / "thing").mkdir()
    (work / "tests").mkdir()
    (work / "thing/__init__.py").write_text("import tiny_thing\n\ndef word():\n    return tiny_thing.WORD\n")
    (work / "tests/test_thing.py").write_text("import thing\n\ndef test(): assert thing.word() == 'installed'\n")
    (work / "requirements.txt").write_text("tiny-thing\n")


@pytest.mark.long
@pytest.mark.once
@pytest.mark.timeout(900)
def test_the_recipe_for_ci(tmp_path: Path) -> None:
    world, home, runner = tmp_path / "world", tmp_path / "home", tmp_path / "runner"
    for folder in (world, home, runner):
        folder.mkdir()
    wheel = release_folder() / wheel_name(__version__, os.uname().machine)
    fetched = _fetched(tmp_path / "wheels", wheel)
    with world_in(world) as made:
        place = Place(made, world, home)
        offered.index(place.served, [*fetched, offered.wheel(world, "tiny-thing")], FILES)
        _stand_ins(place)
        _project(place.work)
        place.environment |= {"RUNNER_TEMP": str(runner), "RINGFENCE": str(wheel), "PIP_CONFIG_FILE": os.devnull}
        place.environment.pop("PYTHONPATH", None)  # the wheel is meant
        printed = place.shell(filled(written("docs/how-to/pytest.md", "sudo sysctl"), PACKAGE="thing"))
    assert (home / "sudo").read_text() == "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0\n"
    assert (place.work / "packages/tiny_thing.py").exists(), printed
    assert _passed(runner / "reports/junit.xml") == 1
    measured = ElementTree.parse(runner / "reports/coverage.xml").getroot().iter("class")
    assert {each.get("name"): each.get("line-rate") for each in measured} == {"__init__.py": "1"}
