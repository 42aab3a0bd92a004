"""Reads what pytest told over the channel. Every byte of it is untrusted and may be garbage.

Reading takes time in proportion to the bytes, and stops where there is more than any run of pytest tells.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from io import BytesIO

OUTCOMES = ("passed", "failed", "error", "skipped", "xfailed", "xpassed")
MAX_NAME_CHARS = 4096
MAX_LINE_BYTES = 64 * 1024
"""A name of MAX_NAME_CHARS takes twelve bytes each at most."""
MAX_LINES = 200_000
MAX_GARBLED_LINES = 1000
MAX_GARBLED_BYTES = 1 << 20


@dataclass(kw_only=True)
class TestRecords:
    """The tests that were told of, in order, and whether the session came to its end."""

    __test__ = False  # not a test class, whatever pytest thinks of its name

    tests: list[tuple[str, str, float]] = field(default_factory=list)
    deselected: int = 0
    finished: int | None = None
    """The exit status that pytest told; absent: it never came to its end."""
    garbled: int = 0
    """Lines that no reporter writes."""
    problem: str = ""
    """Why reading stopped before the end, as half a sentence; absent: all was read."""

    def counts(self) -> dict[str, int]:
        counts = dict.fromkeys((*OUTCOMES, "deselected"), 0)
        for _, outcome, _ in self.tests:
            counts[outcome] += 1
        return counts | {"deselected": self.deselected}


def parse_records(message: bytes | None) -> TestRecords:
    """Never raises: what can't be read is counted, and what is too much is told as a problem."""
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
        case {"test": str(name), "outcome": str(outcome), "duration_s": float(took), **more} if not more:
            if outcome not in OUTCOMES or not 0 <= took < math.inf:
                return False
            records.tests.append((_plain(name[:MAX_NAME_CHARS]), outcome, took))
        case {"deselected": int(count), **more} if type(count) is int and 0 <= count < 2**31 and not more:
            records.deselected += count
        case {"finished": int(status), **more} if type(status) is int and 0 <= status < 256 and not more:
            records.finished = status
        case _:
            return False
    return True


def _plain(name: str) -> str:
    """Half a character, which no encoding has, as an escape."""
    return name.encode("utf-8", "backslashreplace").decode("utf-8")
