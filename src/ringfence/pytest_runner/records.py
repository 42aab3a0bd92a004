"""Reads what pytest told over the channel. Every byte of it is untrusted and may be garbage."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

OUTCOMES = ("passed", "failed", "error", "skipped", "xfailed", "xpassed")
MAX_NAME_CHARS = 4096


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

    def counts(self) -> dict[str, int]:
        counts = dict.fromkeys((*OUTCOMES, "deselected"), 0)
        for _, outcome, _ in self.tests:
            counts[outcome] += 1
        return counts | {"deselected": self.deselected}


def parse_records(message: bytes | None) -> TestRecords:
    """Never raises: what can't be read is counted."""
    records = TestRecords()
    for line in (message or b"").splitlines():
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            records.garbled += 1
            continue
        if not _take(records, record):
            records.garbled += 1
    return records


def _take(records: TestRecords, record: object) -> bool:
    match record:
        case {"test": str(name), "outcome": str(outcome), "duration_s": float(took)} if outcome in OUTCOMES:
            records.tests.append((name[:MAX_NAME_CHARS], outcome, took))
        case {"deselected": int(count)} if type(count) is int and 0 <= count < 2**31:
            records.deselected += count
        case {"finished": int(status)} if type(status) is int and 0 <= status < 256:
            records.finished = status
        case _:
            return False
    return True
