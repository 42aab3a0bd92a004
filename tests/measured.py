"""Coverage of the package, inside its own processes too: one file for each worker, put together at the end.

The workers are measured by coverage itself, and what they start by ``lines``.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from coverage import CoverageData

from tests import lines

HERE = Path(__file__).resolve().parent
OPTIONS = ("--rcfile=tests/coverage.ini",)
COMMAND = [sys.executable, "-m", "coverage", "run", *OPTIONS]
OVERALL_PERCENT, ENFORCEMENT_PERCENT = 85, 90
ENFORCEMENT = ("kernel", "egress", "sandbox", "steps", "roles", "transport", "backends", "engine")
STARTED = f"""
import sys
sys.path.insert(0, {str(HERE)!r})
import lines
del sys.path[0]
lines.start(os.environ[lines.VARIABLE], {str(HERE.parent / "src" / "ringfence")!r} + os.sep)
"""
FOLDER = "RINGFENCE_COVERAGE_FOLDER"
"""Where each worker has a directory for what its processes write."""


@contextmanager
def files(root: Path) -> Iterator[dict[str, str]]:
    """The environment of the measured pass; each worker's processes write into a directory of their own."""
    for old in root.glob(".coverage*"):
        old.unlink()
    with tempfile.TemporaryDirectory(prefix="ringfence-coverage-") as folder, _at_each_start():
        os.chmod(folder, 0o755)
        yield {
            "COVERAGE_PROCESS_START": str(root / "tests" / "coverage.ini"),
            "COVERAGE_FILE": _file_in(folder, "workers"),
            FOLDER: folder,
            # Much cheaper than tracing, where the interpreter has it.
            **({"COVERAGE_CORE": "sysmon"} if sys.version_info >= (3, 12) else {}),
        }


@contextmanager
def _at_each_start() -> Iterator[None]:
    """Every interpreter of this environment that is started with a file to write to collects lines."""
    file = Path(sysconfig.get_path("purelib")) / "ringfence_lines.pth"
    file.write_text(f"import os; {lines.VARIABLE!r} in os.environ and exec({STARTED!r})\n")
    try:
        yield
    finally:
        file.unlink()


def for_what_is_started(worker: str) -> str:
    """Have what this worker starts write its lines into a file of theirs; that file."""
    for name in ("COVERAGE_PROCESS_START", "COVERAGE_PROCESS_CONFIG"):
        os.environ.pop(name, None)
    file = os.environ[lines.VARIABLE] = f"{os.environ[FOLDER]}/{worker}.lines"
    Path(file).touch()
    os.chmod(file, 0o666)
    return file


def _file_in(folder: str, name: str) -> str:
    (Path(folder) / name).mkdir(exist_ok=True)
    return str(Path(folder) / name / "data")


def combine(root: Path, folder: str) -> None:
    """One file out of each worker's directory and one out of all lines, and then one out of those."""
    # By name: of a directory coverage takes only files that are called like the target.
    pieces = {root / f".coverage.{each.name}": sorted(each.iterdir())
              for each in Path(folder).iterdir() if each.is_dir()}  # fmt: skip
    running = [_combining(root, target, *sources) for target, sources in pieces.items() if sources]
    for process in running:
        process.wait()
    _combining(root, root / ".coverage", _of_lines(root, folder), *filter(Path.exists, pieces)).wait()


def _of_lines(root: Path, folder: str) -> Path:
    """The lines that processes told, as a file of coverage's. A process that was killed may have left half a line."""
    told = {line for file in Path(folder).glob("*.lines") for line in file.read_text("utf-8").splitlines()}
    ran: dict[str, set[int]] = {}
    for name, _, number in (line.partition("\t") for line in told):
        if number.isdigit() and os.path.exists(name):
            ran.setdefault(name, set()).add(int(number))
    data = CoverageData(basename=str(root / ".coverage.lines"))
    data.add_lines(ran)
    data.write()
    return root / ".coverage.lines"


def _combining(root: Path, target: Path, *sources: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "coverage", "combine", "-q", *OPTIONS, f"--data-file={target}"]
    return subprocess.Popen([*command, *map(str, sources)], cwd=root)


def report(root: Path, say: Callable[[str], None]) -> int:
    """Print what is not covered; non-zero when that is more than promised."""
    failed = 0
    for label, least, include in (
        ("everything", OVERALL_PERCENT, "*/src/ringfence/*"),
        ("enforcement code", ENFORCEMENT_PERCENT, ",".join(f"*/src/ringfence/{name}/*" for name in ENFORCEMENT)),
    ):
        say(f"coverage of {label}: at least {least} %")
        command = [sys.executable, "-m", "coverage", "report", *OPTIONS, "--skip-covered"]
        done = subprocess.run([*command, f"--include={include}", f"--fail-under={least}"], cwd=root, check=False)
        failed |= done.returncode
    return failed
