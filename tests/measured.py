"""Coverage of the package, inside its own processes too: one file for each worker, put together at the end."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

OPTIONS = ("--rcfile=tests/coverage.ini",)
COMMAND = [sys.executable, "-m", "coverage", "run", *OPTIONS]
OVERALL_PERCENT, ENFORCEMENT_PERCENT = 85, 90
ENFORCEMENT = ("posix", "linux", "backends", "engine")
FOLDER = "RINGFENCE_COVERAGE_FOLDER"
"""Where each worker has a folder for what its processes write."""


@contextmanager
def files(root: Path) -> Iterator[dict[str, str]]:
    """The environment of the measured pass; what its workers leave is combined into ``.coverage`` at the end."""
    for old in root.glob(".coverage*"):
        old.unlink()
    with tempfile.TemporaryDirectory(prefix="ringfence-coverage-") as folder:
        os.chmod(folder, 0o755)
        yield {
            "COVERAGE_PROCESS_START": str(root / "tests" / "coverage.ini"),
            "COVERAGE_FILE": str(Path(folder) / "controller" / "data"),
            FOLDER: folder,
            # Much cheaper than tracing, where the interpreter has it.
            **({"COVERAGE_CORE": "sysmon"} if sys.version_info >= (3, 12) else {}),
        }


def own_file(worker: str) -> str:
    """The file that this worker's processes are measured into; they add a number of their own to its name."""
    folder = Path(os.environ[FOLDER]) / worker
    folder.mkdir(exist_ok=True)
    return str(folder / "data")


def combine_own(worker: str, root: Path) -> None:
    """One file out of all that this worker's processes wrote."""
    folder = Path(os.environ[FOLDER]) / worker
    _combine(root, root / f".coverage.{worker}", folder)


def _combine(root: Path, target: Path, *sources: Path) -> None:
    command = [sys.executable, "-m", "coverage", "combine", "-q", *OPTIONS, f"--data-file={target}"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
    subprocess.run([*command, *map(str, sources)], cwd=root, env=environment, check=False)


def report(root: Path, say: Callable[[str], None]) -> int:
    """Print what is not covered; non-zero when that is more than promised."""
    _combine(root, root / ".coverage", *root.glob(".coverage.*"))
    failed = 0
    for label, least, include in (
        ("everything", OVERALL_PERCENT, "*/src/ringfence/*"),
        ("enforcement code", ENFORCEMENT_PERCENT, ",".join(f"*/ringfence/{name}/*" for name in ENFORCEMENT)),
    ):
        say(f"coverage of {label}: at least {least} %")
        command = [sys.executable, "-m", "coverage", "report", *OPTIONS, "--skip-covered"]
        done = subprocess.run([*command, f"--include={include}", f"--fail-under={least}"], cwd=root, check=False)
        failed |= done.returncode
    return failed
