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
    """The environment of the measured pass; each worker's processes write into a folder of their own."""
    for old in root.glob(".coverage*"):
        old.unlink()
    with tempfile.TemporaryDirectory(prefix="ringfence-coverage-") as folder:
        os.chmod(folder, 0o755)
        yield {
            "COVERAGE_PROCESS_START": str(root / "tests" / "coverage.ini"),
            "COVERAGE_FILE": _file_in(folder, "workers"),
            FOLDER: folder,
            # Much cheaper than tracing, where the interpreter has it.
            **({"COVERAGE_CORE": "sysmon"} if sys.version_info >= (3, 12) else {}),
        }


def own_file(worker: str) -> str:
    """The file that this worker's processes are measured into; they add a number of their own to its name."""
    return _file_in(os.environ[FOLDER], worker)


def _file_in(folder: str, name: str) -> str:
    (Path(folder) / name).mkdir(exist_ok=True)
    return str(Path(folder) / name / "data")


def combine(root: Path, folder: str) -> None:
    """One file out of each worker's folder, side by side, and then one out of those."""
    # By name: of a folder coverage takes only files that are called like the target.
    pieces = {root / f".coverage.{each.name}": sorted(each.iterdir()) for each in Path(folder).iterdir()}
    running = [_combining(root, target, *sources) for target, sources in pieces.items() if sources]
    for process in running:
        process.wait()
    _combining(root, root / ".coverage", *(target for target in pieces if target.exists())).wait()


def _combining(root: Path, target: Path, *sources: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "coverage", "combine", "-q", *OPTIONS, f"--data-file={target}"]
    return subprocess.Popen([*command, *map(str, sources)], cwd=root)


def report(root: Path, say: Callable[[str], None]) -> int:
    """Print what is not covered; non-zero when that is more than promised."""
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
