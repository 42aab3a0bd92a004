"""The results of a suite as JUnit XML, which CI services show.

A task without a verdict is an error, a compromised run and a fail are failures. XML has no sign for control characters:
they are written as escapes.
"""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import escape, quoteattr

from ringfence.model.printed import json_text
from ringfence.model.system_text import escape_controls as plain
from ringfence.proctor.suite.results import Row, as_dict


def junit(rows: Sequence[Row], suite: str) -> str:
    """One test suite, a test case for each task."""
    failures = sum(row.has_verdict and row.word != "pass" for row in rows)
    errors = sum(not row.has_verdict for row in rows)
    seconds = sum(row.cost.wall_s for row in rows)
    counts = f'tests="{len(rows)}" failures="{failures}" errors="{errors}" time="{seconds:.3f}"'
    cases = "\n".join(_case(row, suite) for row in rows)
    return (f'<?xml version="1.0" encoding="UTF-8"?>\n<testsuites {counts}>\n<testsuite name={_quoted(suite)} {counts}>'
            f"\n{cases}\n</testsuite>\n</testsuites>\n")  # fmt: skip


def _case(row: Row, suite: str) -> str:
    named = f'classname={_quoted(suite)} name={_quoted(row.id)} time="{row.cost.wall_s:.3f}"'
    told = f"<system-out>{escape(plain(json_text(as_dict(row), indent=None)))}</system-out>"
    if row.word == "pass":
        return f"<testcase {named}>{told}</testcase>"
    tag = "failure" if row.has_verdict else "error"
    return f"<testcase {named}><{tag} type={_quoted(row.word)} message={_quoted(_message(row))}/>{told}</testcase>"


def _message(row: Row) -> str:
    if not row.has_verdict:
        return row.error or row.word
    return f"{row.violations} violations" if row.status == "compromised" else "the grader did not pass it"


def _quoted(text: str) -> str:
    return quoteattr(plain(text))
