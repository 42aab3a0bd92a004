"""The public names are typed for who installs the wheel: checked from outside by two checkers, on a user's program."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from bench.harness import NotHere
from bench.installing import from_npm
from release.dist import wheel_name
from tests.release_files import release_folder
from tests.testable import not_testable_here

import ringfence

pytestmark = [pytest.mark.long, pytest.mark.unmeasured,
              pytest.mark.skipif(sys.platform != "linux", reason="Linux only")]  # fmt: skip
CONSUMER = Path(__file__).resolve().parents[1] / "material" / "release" / "consumer.py"
WRONG = "\ntoo_few: str = ringfence.run(7)\n"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An interpreter that has nothing but the wheel."""
    folder = tmp_path_factory.mktemp("typed")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    with zipfile.ZipFile(release_folder() / wheel_name(ringfence.__version__, "any")) as archive:
        archive.extractall(packages)
    return str(folder / "bin/python")


def _mypy(python: str, path: Path) -> list[str]:
    return [sys.executable, "-m", "mypy", "--strict", "--config-file=", f"--cache-dir={path.parent}/cache",
            f"--python-executable={python}", str(path)]  # fmt: skip


def _pyright(python: str, path: Path) -> list[str]:
    try:
        return [from_npm("pyright", "pyright"), "--pythonpath", python, str(path)]
    except NotHere as error:
        not_testable_here(str(error))


@pytest.mark.parametrize("checker", [_mypy, _pyright])
def test_a_users_program_is_checked_and_a_mistake_in_it_found(
    installed: str, tmp_path: Path, checker: Callable[[str, Path], list[str]]
) -> None:
    path = tmp_path / "program.py"
    for text, code, told in ((CONSUMER.read_text(), 0, ""), (CONSUMER.read_text() + WRONG, 1, "Sequence")):
        path.write_text(text)
        done = subprocess.run(checker(installed, path), capture_output=True, text=True, check=False, cwd=tmp_path)
        assert done.returncode == code and told in done.stdout, done.stdout + done.stderr
