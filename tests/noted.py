"""A plug-in of pytest (``-p tests.noted --notes FILE``): writes down how a pass ended; tests/run.py adds up several.

Each line of the file is a JSON object: a test that failed, or, last, how many passed and could not be tested. A pass
without that last line did not come to its end. With ``RINGFENCE_TEST_TOOK=FILE`` the time of each test goes there, from
which tests/over_a_second.py makes its list.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests import finality
from tests.testable import is_untestable

_SHOWN = 4000
TOOK = "RINGFENCE_TEST_TOOK"


@dataclass
class Notes:
    """What one pass left."""

    failed: dict[str, str] = field(default_factory=dict)
    """By the name of the test: what its first failure said."""
    final: set[str] = field(default_factory=set)
    """Of those, the ones that no second run can mend."""
    passed: int = 0
    untestable: int = 0
    ended: bool = False

    @classmethod
    def read(cls, path: Path) -> Notes:
        notes = cls()
        for line in path.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            if "failed" in row:
                notes.failed.setdefault(row["failed"], row["said"])
                notes.final.update([row["failed"]] if row["final"] else [])
            else:
                notes.passed, notes.untestable, notes.ended = row["passed"], row["untestable"], True
        return notes


@contextmanager
def file() -> Iterator[Path]:
    """A new file for the notes of one pass, which an ordinary user's tests can write too."""
    with tempfile.NamedTemporaryFile(prefix="notes-", suffix=".jsonl") as made:
        os.chmod(made.name, 0o666)
        yield Path(made.name)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--notes", help="write down here how each test that failed ended, and how many passed")


def pytest_configure(config: pytest.Config) -> None:
    """Workers tell the one who started them, and that one writes."""
    if config.getoption("--notes") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Writer(config.getoption("--notes")), "notes")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """In the process that ran the test: only there the exception is at hand."""
    outcome: Any = yield
    if call.excinfo is not None and finality.is_final(item, call.when, call.excinfo.value):
        outcome.get_result().user_properties.append((finality.PROPERTY, True))


class _Writer:
    def __init__(self, path: str) -> None:
        self._path, self._passed, self._untestable = path, 0, 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._clock(report)
        if report.failed or (report.skipped and not is_untestable(report)):
            final = [finality.PROPERTY, True] in map(list, report.user_properties)
            self._write({"failed": report.nodeid, "said": str(report.longrepr)[-_SHOWN:], "final": final})
        elif report.skipped:
            self._untestable += 1
        elif report.when == "call":
            self._passed += 1

    def _clock(self, report: pytest.TestReport) -> None:
        if report.when == "call" and (file := os.environ.get(TOOK)):
            _append(file, {"test": report.nodeid, "took": round(report.duration, 2)})

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        self._write({"passed": self._passed, "untestable": self._untestable})

    def _write(self, row: dict[str, object]) -> None:
        _append(self._path, row)


def _append(path: str, row: dict[str, object]) -> None:
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
