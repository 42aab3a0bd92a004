"""How much honest code does the validator reject?

Every ``.py`` file of a package counts, except its tests, ``__init__.py`` and files of fewer than three lines. Versions
are pinned, so the figure is the same everywhere. Only wheels are fetched, since a source package would run code.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from bench.harness import Answer, Effort, NotHere, Row, Table
from bench.installing import wheel_of
from ringfence.validation import SecurityValidator

QUESTION = "How many files of packages for which no rule was made does the validator reject?"
TEXTBOOK = ("algorithms==1.0.1", "pygorithm==1.0.4", "algos-py==0.5.1", "pydatastructs==1.2.3", "structlinks==1.1.4",
            "HeapDict==1.0.1", "numpy-ml==0.1.2", "finta==1.3", "stockstats==0.6.10", "ffn==1.4.1")  # fmt: skip
LIBRARIES = ("networkx==3.6.1", "mlxtend==0.25.0", "backtrader==1.9.78.123", "vectorbt==1.2.0", "toolz==1.2.0")
SETS = {"textbook algorithms and indicators": TEXTBOOK, "whole libraries": LIBRARIES}


def ask(effort: Effort) -> Answer:
    rows, skipped = [], {}
    for title, packages in SETS.items():
        try:
            rows.append(_row(title, packages[: effort.pick(len(packages), len(packages), 1)]))
        except NotHere as why:
            skipped[title] = str(why)
    return Answer(tables=(Table(title="rejected", unit="%", rows=tuple(rows)),) if rows else (), skipped=skipped)


def _row(title: str, packages: Sequence[str]) -> Row:
    validator = SecurityValidator()
    valid = [validator.validate(text).is_valid for package in packages for text in _texts(wheel_of(package))]
    share = 100 * valid.count(False) / len(valid)
    return Row(name=f"{title}: {valid.count(False)} of {len(valid)}", median=share, low=share, high=share, turns=1)


def _texts(wheel: Path) -> Iterator[str]:
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            text = archive.read(name).decode("utf-8", "surrogateescape") if _counts(PurePosixPath(name)) else ""
            if len(text.splitlines()) >= 3:
                yield text


def _counts(name: PurePosixPath) -> bool:
    tests = {"test", "tests", "tests.py"}.intersection(name.parts) or name.stem.startswith("test_")
    return name.suffix == ".py" and name.name != "__init__.py" and not tests and not name.stem.endswith("_test")
