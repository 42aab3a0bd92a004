"""The first commands of README.md, the tutorial, CONTRIBUTING.md and platforms.md, in a copy of this tree."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.examples import ROOT, shell, written

pytestmark = [pytest.mark.long, pytest.mark.once, pytest.mark.root]
PATIENCE_S = 1500


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory whose ``work`` is what somebody has who has just cloned the project."""
    made = tmp_path_factory.mktemp("start")
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, check=True).stdout.decode().split("\0")
    for name in filter(None, names):
        target = made / "work" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target, follow_symlinks=False)
    return made


@pytest.fixture
def own(folder: Path) -> dict[str, str]:
    """No installation of ours is on the PATH, and no module of this tree in sight."""
    return {"PATH": f"{Path(sys.executable).resolve().parent}:/usr/local/bin:/usr/bin:/bin", "PYTHONPATH": ""}


def test_the_two_commands_of_the_readme(folder: Path, own: dict[str, str]) -> None:
    """The second one is the gate, which runs this project's tests already; it is only asked what it would do."""
    text = written("README.md", "make run")
    assert "make test " in text
    printed = shell(text.replace("make test ", "make --dry-run test "), folder, own, timeout_s=PATIENCE_S)
    assert "status MEM_LIMIT" in printed and "python -m tests.run test" in printed


def test_the_tutorial_begins(folder: Path, own: dict[str, str]) -> None:
    printed = shell(written("docs/tutorial/index.md", "make run"), folder, own, timeout_s=PATIENCE_S)
    assert "status MEM_LIMIT" in printed and "\nstrict\n" in printed


def test_an_installation_by_pip(folder: Path, own: dict[str, str]) -> None:
    printed = shell(written("README.md", "pip install ."), folder, own, timeout_s=PATIENCE_S)
    assert printed.endswith("\nhello\n"), printed


def test_the_commands_for_a_mac_work_here_too(folder: Path, own: dict[str, str]) -> None:
    (folder / "work" / "script.py").write_text("print(6 * 7)\n")
    shutil.rmtree(folder / "work" / ".venv", ignore_errors=True)
    printed = shell(written("docs/reference/platforms.md", "python3 -m venv"), folder, own, timeout_s=PATIENCE_S)
    assert printed.endswith("\n42\n"), printed


def test_the_commands_for_contributors() -> None:
    """The last one measures the whole suite, which `make test-all` does."""
    *lines, last = written("CONTRIBUTING.md", ".venv/bin/python").splitlines()
    assert last.startswith(".venv/bin/python -m tests.run coverage ")
    for line in lines:
        command = line.replace(".venv/bin/python", sys.executable, 1)
        done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (command, done.stdout[-2000:], done.stderr[-2000:])
        assert " passed" in done.stdout or "tests.unit.walk" in command, done.stdout[-500:]
