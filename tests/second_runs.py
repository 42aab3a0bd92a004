"""What the gate makes of failures: each runs again after all others, alone, at most twice.

A test that passes then is unsteady: it is told with its first failure and leaves the gate green, up to ten in all. What
a second run can't mend (tests/finality.py) and what did not come to its end is red at once.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests import noted

MOST = 10
"""So many unsteady tests leave the gate green."""
TIMES = 2
_NO_FAILURE = (0, 1)
"""Exit codes of pytest's by which all tests were run."""


@dataclass(frozen=True, kw_only=True)
class Pass:
    """One run of pytest over many tests, and how it ended."""

    title: str
    python: tuple[str, ...]
    folder: Path
    environment: Mapping[str, str]
    arguments: tuple[str, ...]
    code: int
    notes: noted.Notes

    @property
    def broken(self) -> bool:
        """Whether not all of its tests were run, or it failed by something that no test says."""
        return self.code not in _NO_FAILURE or not self.notes.ended or (self.code == 1 and not self.notes.failed)


@dataclass(frozen=True, kw_only=True)
class Judged:
    """Of all passes together."""

    passed: int
    untestable: int
    red: tuple[tuple[str, str], ...]
    """Name and first words of each test that failed for good."""
    unsteady: tuple[tuple[str, str], ...]
    broken: tuple[str, ...]
    """Titles of passes."""

    @property
    def green(self) -> bool:
        return not self.red and not self.broken and len(self.unsteady) <= MOST


def judge(passes: Sequence[Pass], again: Callable[[Pass, str], bool] | None = None) -> Judged:
    """``again``: run one test alone; whether it passes."""
    run = again or _alone
    red: list[tuple[str, str]] = []
    unsteady: list[tuple[str, str]] = []
    # More than this many can't become green, and to run them all would take as long as the gate.
    hopeless = sum(len(each.notes.failed) for each in passes) > 2 * MOST
    for each in passes:
        for name, said in each.notes.failed.items():
            mended = not hopeless and name not in each.notes.final and any(run(each, name) for _ in range(TIMES))
            (unsteady if mended else red).append((name, said))
    return Judged(
        passed=sum(each.notes.passed for each in passes) + len(unsteady),
        untestable=sum(each.notes.untestable for each in passes),
        red=tuple(red), unsteady=tuple(unsteady), broken=tuple(each.title for each in passes if each.broken),
    )  # fmt: skip


def _alone(ended: Pass, name: str) -> bool:
    print(f"\n── again: {name}", flush=True)
    # Beside the first run's directory: some of what lies in that one its owner can't remove.
    base = [f"{word}-again" for word in ended.arguments if word.startswith("--basetemp")]
    command = [*ended.python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *base, name]
    return subprocess.run(command, cwd=ended.folder, env=dict(ended.environment), check=False).returncode == 0


def tell(judged: Judged, took: str) -> int:
    """Print the end of the gate, and keep the names of what was unsteady for ``make unsteady``."""
    for name, said in judged.unsteady:
        print(f"\n── unsteady: {name} failed first and passed alone. Its first failure:\n{said}")
    for name, said in judged.red:
        print(f"\n── failed: {name}\n{said}")
    for title in judged.broken:
        print(f"\n── did not come to its end: {title}")
    _remember([name for name, _ in judged.unsteady])
    print(f"\n{judged.passed} passed, {len(judged.red) + len(judged.broken)} failed")
    print(f"{len(judged.unsteady)} unsteady (at most {MOST}), {judged.untestable} not testable here, after {took}")
    sys.stdout.flush()
    return 0 if judged.green else 1


def _file() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "ringfence-tests" / "unsteady.jsonl"


def _remember(names: Sequence[str]) -> None:
    if names:
        _file().parent.mkdir(parents=True, exist_ok=True)
        with _file().open("a", encoding="utf-8") as file:
            file.writelines(json.dumps({"test": name, "at": int(time.time())}) + "\n" for name in names)


def history() -> int:
    """Print which tests were unsteady how often."""
    lines = _file().read_text(encoding="utf-8").splitlines() if _file().exists() else []
    for name, times in Counter(json.loads(line)["test"] for line in lines).most_common():
        print(f"{times:5} {name}")
    print(f"{len(lines)} in all; the file is {_file()}")
    return 0
