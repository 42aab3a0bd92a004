"""What does a suite cost for each task, beside the work itself?

100 tiny tasks, four at once: `proctor bench` against the same commands, agent and grader, run plainly in copies of the
workspaces. A second start finds everything done, and shows what resuming takes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

from bench.contenders import Gathered
from bench.harness import Answer, Effort, Table, Turn, race, timed_ms
from bench.installing import temporary_folder

QUESTION = "100 tiny tasks, four at once: `proctor bench` against the same commands run plainly, for each task"
JOBS = 4
_AGENT = "echo 42 > answer.txt"
_GRADE = 'test "$(cat answer.txt)" = 42\n'
_START = "from ringfence.cli import proctor_main; proctor_main()"


def ask(effort: Effort) -> Answer:
    tasks = effort.pick(100, 100, 3)
    with temporary_folder("bench-suite-") as folder:
        place = Path(folder)
        suite = _suite(place, tasks)
        return Gathered().answer(_table(place, suite, tasks, turns=effort.pick(5, 2)))


def _table(place: Path, suite: Path, tasks: int, *, turns: int) -> Table:
    numbers = count()

    def fresh() -> None:
        out = place / f"out-{next(numbers)}"
        _bench(suite, out)
        shutil.rmtree(out)

    kept = place / "kept"
    _bench(suite, kept)
    contenders = {
        "plain": _of_each(lambda: _plain(suite, place), tasks),
        "proctor bench": _of_each(fresh, tasks),
        "proctor bench, all done before": _of_each(lambda: _bench(suite, kept), tasks),
    }
    return race(f"{tasks} tasks, {JOBS} at once, {os.cpu_count()} cores: share of one", contenders, turns=turns, warm=0)


def _of_each(action: Callable[[], object], tasks: int) -> Turn:
    turn = timed_ms(action)
    return lambda: turn() / tasks


def _suite(place: Path, tasks: int) -> Path:
    for number in range(tasks):
        folder = place / "suite" / f"task-{number:03}"
        (folder / "workspace").mkdir(parents=True)
        (folder / "workspace" / "readme.txt").write_text("What is six times seven?\n")
        (folder / "oracle").mkdir()
        (folder / "grade.sh").write_text(_GRADE)
    return place / "suite"


def _plain(suite: Path, place: Path) -> None:
    def one(folder: Path) -> None:
        with tempfile.TemporaryDirectory(dir=place) as work:
            shutil.copytree(folder / "workspace", work, dirs_exist_ok=True)
            subprocess.run(["/bin/sh", "-c", _AGENT], cwd=work, check=True)
            subprocess.run(["/bin/sh", str(folder / "grade.sh")], cwd=work, check=True)

    with ThreadPoolExecutor(JOBS) as at_once:
        for _ in at_once.map(one, sorted(suite.iterdir())):
            pass


def _bench(suite: Path, out: Path) -> None:
    """As a user calls it; what has no verdict ends the question."""
    words = ["bench", str(suite), "--agent", _AGENT, "--out", str(out), "--jobs", str(JOBS)]
    done = subprocess.run([sys.executable, "-c", _START, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and " 0 failed, 0 compromised;" in done.stdout, done.stdout[-500:] + done.stderr[-500:]
