"""The examples of docs/reference/programs.md, with a Python that lies in a home as an environment of conda does."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.examples import shell, written

pytestmark = [pytest.mark.system, pytest.mark.unmeasured]
_LEFT_OUT = shutil.ignore_patterns("test*", "__pycache__", "site-packages", "dist-packages", "config-*", "idlelib",
                                   "ensurepip", "tkinter", "lib2to3")  # fmt: skip
_REPORT = """\
import os, sys, prices_tools
home = os.path.dirname(os.path.dirname(sys.argv[1]))
print(prices_tools.NAME, open(sys.argv[1]).read().strip())
for path in ("miniconda3/pkgs", "miniconda3/envs/other", ".condarc"):
    print(path, os.path.exists(os.path.join(home, path)))
for path in (sys.argv[1], prices_tools.__file__):
    try:
        open(path, "a")
    except OSError as error:
        print(type(error).__name__, error.errno)
print(os.environ.get("CONDA_PREFIX"))
"""
_SAID = """\
of the environment 1,2,3
miniconda3/pkgs False
miniconda3/envs/other False
.condarc False
OSError 30
OSError 30
None
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With an environment, another one beside it, a package cache and data."""
    made = tmp_path_factory.mktemp("home")
    made.chmod(0o755)
    environment = made / "miniconda3/envs/prices"
    for name in ("envs/prices/bin", "envs/prices/conda-meta", "envs/other", "pkgs"):
        (made / "miniconda3" / name).mkdir(parents=True)
    shutil.copy(os.path.realpath(sys.executable), environment / "bin/python")
    library = Path(sysconfig.get_path("stdlib"))
    shutil.copytree(library, environment / "lib" / library.name, ignore=_LEFT_OUT, symlinks=True)
    for shared in library.parent.glob("libpython3*.so*"):
        shutil.copy(shared, environment / "lib")
    # Not in site-packages: a Debian's Python looks elsewhere for packages.
    (environment / "lib" / library.name / "prices_tools.py").write_text("NAME = 'of the environment'\n")
    (made / ".condarc").write_text("channels: []\n")
    (made / "prices").mkdir()
    (made / "prices/2024.csv").write_text("1,2,3\n")
    return made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    (tmp_path / "work/report.py").write_text(_REPORT)
    return tmp_path


def test_a_file_is_run_by_the_python_of_an_environment_and_reads_data_elsewhere(home: Path, folder: Path) -> None:
    text = written("docs/reference/programs.md", "--interpreter ~/miniconda3")
    assert shell(text, folder, {"HOME": str(home)}) == _SAID
    active = {"HOME": str(home), "CONDA_PREFIX": str(home / "miniconda3/envs/prices")}
    assert shell(text.replace("--interpreter ~/miniconda3/envs/prices ", ""), folder, active) == _SAID


def test_the_same_from_python(home: Path, folder: Path) -> None:
    (folder / "work/example.py").write_text(written("docs/reference/programs.md", "readable_paths"))
    said = shell(f"{sys.executable} example.py", folder, {"HOME": str(home)})
    assert said == f"OK {_SAID}\n"
