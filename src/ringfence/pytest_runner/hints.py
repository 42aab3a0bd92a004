"""What a user can do if tests failed because of the sandbox and not by themselves: whole sentences."""

from __future__ import annotations

import os
from collections.abc import Iterator

from ringfence.model.outcome import Outcome
from ringfence.pytest_runner.records import TestRecords

_USAGE_ERROR = 4
"""Of pytest, and of ``guest/start.py`` where there is none."""


def hints(outcome: Outcome, records: TestRecords) -> list[str]:
    """One sentence for each reason that was found; none where all is well."""
    return [*_missing_pytest(outcome, records), *_private_folder(records), *_unreadable(records)]


def _missing_pytest(outcome: Outcome, records: TestRecords) -> Iterator[str]:
    """With ``-I``: without it Python takes a ``pip.py`` of the current directory, which is the tests' own."""
    if records.missing and outcome.rc == _USAGE_ERROR and records.finished is None and not records.tests:
        python = outcome.argv[0]
        yield f"{python} has no pytest: {python} -I -m pip install pytest, or name another Python with --interpreter"


def _private_folder(records: TestRecords) -> Iterator[str]:
    if records.elsewhere:
        yield "a test looked in its private working directory for a file of the current one: --here runs tests there"


def _unreadable(records: TestRecords) -> Iterator[str]:
    """Check it again, and its directory: the sandbox may refuse what the user may read."""
    path = records.unreadable
    if not os.path.isabs(path) or "\0" in path:
        return
    closed = [each for each in (path, os.path.dirname(path)) if os.path.lexists(each) and not os.access(each, os.R_OK)]
    yield from (f"{each} can't be read by this user" for each in closed[:1])
