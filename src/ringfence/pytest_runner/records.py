"""Reads what pytest reported over the channel. Every byte of it is untrusted and may be garbage.

Reading takes time in proportion to the bytes, and stops where there is more than any run of pytest tells.
"""

from __future__ import annotations

import json
from io import BytesIO

from ringfence.pytest_runner.refusals import NAMES

OUTCOMES = ("passed", "failed", "error", "skipped", "xfailed", "xpassed", "rerun")
_SUPERSEDED = "superseded"
MAX_NAME_CHARS = 4096
MAX_DURATION_S = 1e9
MAX_LINE_BYTES = 64 * 1024
"""A name of MAX_NAME_CHARS takes twelve bytes each at most."""
MAX_LINES = 200_000
MAX_GARBLED_LINES = 1000
MAX_GARBLED_BYTES = 1 << 20


class TestRecords:
    """The reported tests, in order, and whether the session came to its end."""

    __test__ = False  # not a test class, whatever pytest thinks of its name

    def __init__(self) -> None:
        self.tests: list[tuple[str, str, float]] = []
        self.failures: dict[str, list[int]] = {}
        """By name, where in ``tests`` it failed."""
        self.deselected: int = 0
        self.finished: int | None = None
        """The exit status that pytest told; absent: it never came to its end."""
        self.broken_off: bool = False
        """The session did not run all its tests: Ctrl-C, or ``pytest.exit``."""
        self.refused: set[str] = set()
        """What kinds of exception told that a limit was met: names of ``refusals``."""
        self.failed_by: set[str] = set()
        """Those of them that made a test fail."""
        self.elsewhere: bool = False
        """A test failed for lack of a file that is in the caller's current directory, not in the private one."""
        self.unreadable: str = ""
        """A path that pytest was not allowed to read while it looked for tests; absent: none."""
        self.missing: bool = False
        """The interpreter has no pytest."""
        self.garbled: int = 0
        """Lines that no reporter writes."""
        self.problem: str = ""
        """Why reading stopped before the end, as half a sentence; absent: all was read."""

    def counts(self) -> dict[str, int]:
        counts = dict.fromkeys((*OUTCOMES, "deselected"), 0)
        for _, outcome, _ in self.tests:
            counts[outcome] += 1
        return counts | {"deselected": self.deselected}


def parse_records(message: bytes | None) -> TestRecords:
    """Never raises: unreadable lines are counted, and too many lines are reported as a problem."""
    records = TestRecords()
    garbled_bytes = 0
    for number, line in enumerate(BytesIO(message or b"")):
        if number == MAX_LINES:
            records.problem = f"more than {MAX_LINES} lines"
            break
        if _take(records, _read(line)):
            continue
        records.garbled += 1
        garbled_bytes += len(line)
        if records.garbled > MAX_GARBLED_LINES or garbled_bytes > MAX_GARBLED_BYTES:
            records.problem = f"{records.garbled} lines or more that are not pytest's"
            break
    records.tests = [test for test in records.tests if test[1] != _SUPERSEDED]
    return records


def _read(line: bytes) -> object:
    if line.isspace() or len(line) > MAX_LINE_BYTES:
        return None
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _take(records: TestRecords, record: object) -> bool:
    match record:
        case {"test": str(name), "outcome": str(outcome), "duration_s": float() | int() as took, **more} if not more:
            if outcome not in OUTCOMES or isinstance(took, bool) or not 0 <= took <= MAX_DURATION_S:
                return False
            _add(records, _plain(name[:MAX_NAME_CHARS]), outcome, float(took))
        case {"superseded": str(name), **more} if not more:
            for place in records.failures.pop(_plain(name[:MAX_NAME_CHARS]), ()):
                records.tests[place] = (name, _SUPERSEDED, 0.0)
        case {"deselected": int(count), **more} if type(count) is int and 0 <= count < 2**31 and not more:
            records.deselected += count
        case {"finished": int(status), **more} if type(status) is int and 0 <= status < 256 and not more:
            records.finished = status
        case {"refused": str(name), "failed": bool(failed), **more} if name in NAMES and not more:
            records.refused.add(name)
            if failed:
                records.failed_by.add(name)
        case {"broken_off": True, **more} if not more:
            records.broken_off = True
        case {"elsewhere": True, **more} if not more:
            records.elsewhere = True
        case {"unreadable": str(path), **more} if not more:
            records.unreadable = records.unreadable or _plain(path[:MAX_NAME_CHARS])
        case {"missing": "pytest", **more} if not more:
            records.missing = True
        case _:
            return False
    return True


def _add(records: TestRecords, name: str, outcome: str, took: float) -> None:
    if outcome == "failed":
        records.failures.setdefault(name, []).append(len(records.tests))
    records.tests.append((name, outcome, took))


def _plain(name: str) -> str:
    """Half a character, which no encoding has, as an escape."""
    return name.encode("utf-8", "backslashreplace").decode("utf-8")
