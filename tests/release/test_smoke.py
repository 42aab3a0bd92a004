"""Each wheel that can run on this machine, installed in clean roots of Debian and with the Pythons that there are.

Ubuntu, Fedora and Alpine, and the wheel of the other machine, are for .github/workflows/release.yml.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from release.dist import wheel_name
from tests.clean_root import enter, python_of, root_of
from tests.framework_environment import version_of
from tests.release_files import release_folder
from tests.testable import not_testable_here
from tests.wheels import download

import ringfence

pytestmark = [pytest.mark.unmeasured, pytest.mark.skipif(sys.platform != "linux", reason="Linux only")]
HERE = Path(__file__).resolve().parent
SUITES = ("bookworm", "trixie", "sid")
KINDS = {"native": os.uname().machine if sys.platform == "linux" else "", "pure": "any"}
TWICE = 2  # as root and as an ordinary user


@pytest.mark.long
def test_the_wheel_of_this_machine_works_in_a_clean_root(tmp_path: Path) -> None:
    _works("trixie", "native", tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("suite", SUITES)
def test_each_wheel_works_in_each_clean_root(suite: str, kind: str, tmp_path: Path) -> None:
    _works(suite, kind, tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("minor", [11, 12, 13, 14])
def test_each_wheel_works_with_each_python(minor: int, kind: str, tmp_path: Path) -> None:
    python = _python(minor)
    _gather(tmp_path, kind, f"3.{minor}")
    subprocess.run([python, "-m", "venv", str(tmp_path / "site-packages-of")], check=True)
    inside = str(tmp_path / "site-packages-of/bin/python")
    install = [inside, "-m", "pip", "install", "--quiet", "--no-index", "--find-links", str(tmp_path), "ringfence"]
    subprocess.run(install, check=True)
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "RINGFENCE_PURE")}
    done = subprocess.run([inside, str(tmp_path / "smoke.py"), kind], capture_output=True, text=True, check=False,
                          env=environment)  # fmt: skip
    assert done.returncode == 0 and done.stdout.count("ALL OK") == 1, done.stdout + done.stderr


def _works(suite: str, kind: str, folder: Path) -> None:
    root = root_of(suite)
    _gather(folder, kind, python_of(root))
    done = enter(root, folder, ["sh", "/given/in_clean_root.sh", kind])
    assert done.returncode == 0 and done.stdout.count("ALL OK") == TWICE, done.stdout


def _gather(folder: Path, kind: str, python: str) -> None:
    """One wheel of ours, and what it needs as pip finds it for that Python."""
    wheel = release_folder() / wheel_name(ringfence.__version__, KINDS[kind])
    assert wheel.exists()
    download(folder, str(wheel), python=python)
    for name in ("smoke.py", "in_clean_root.sh"):
        shutil.copy(HERE / name, folder)
    folder.chmod(0o755)


def _python(minor: int) -> str:
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    places = [shutil.which(f"python3.{minor}") or "", *map(str, pyenv.glob(f"3.{minor}.*/bin/python3"))]
    found = (each for each in places if each and version_of(each) == (3, minor))
    return next(found, "") or not_testable_here(f"there is no Python 3.{minor} on this host")
