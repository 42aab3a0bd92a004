"""Which files of tests a pass reads at all, and which tests are pure.

A test in ``tests/unit`` that is not marked ``system`` starts nothing: it is pure. Pure tests are thousands and take a
millisecond each, so they run in as many processes as there are cores. To have xdist hand them out costs more than they
do, and each of its workers reads every file of which it may get a test.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
UNIT = ROOT / "tests" / "unit"
VARIABLE = "RINGFENCE_TEST_FILES"
"""The name of the pass; where it is absent all files are read."""
SYSTEM, USER = "system", "user"
_OF_ALL = 250_000
"""What the files directly in tests/unit weigh, measured as processor time: they read the source of the whole package,
and in one process it is parsed once."""


def is_pure(item: pytest.Item) -> bool:
    """Whether it starts nothing, which conftest.py holds."""
    return UNIT in item.path.parents and not item.get_closest_marker("system")


def is_left_out(path: Path) -> bool:
    """Whether this pass has no test in a file: a mark that a file does not name is on none of its tests."""
    name = os.environ.get(VARIABLE)
    if name not in (SYSTEM, USER) or not (path.name.startswith("test_") and path.suffix == ".py"):
        return False
    if name == USER:
        return "privileges" not in path.read_text(encoding="utf-8")
    return UNIT in path.parents and "system" not in path.read_text(encoding="utf-8")


def parts(count: int) -> list[list[str]]:
    """The files of tests/unit in so many parts of about the same weight, which is their length."""
    files = sorted(UNIT.rglob("test_*.py"), key=lambda path: -path.stat().st_size)
    made = [[path for path in files if path.parent == UNIT], *([] for _ in range(count - 1))]
    weights = [_OF_ALL, *(0 for _ in made[1:])]
    for path in (path for path in files if path.parent != UNIT):
        lightest = weights.index(min(weights))
        made[lightest].append(path)
        weights[lightest] += path.stat().st_size
    return [sorted(map(str, paths)) for paths in made if paths]
