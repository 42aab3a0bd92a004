"""Runs all entries of a suite through an executor: each until it has a verdict, or has failed often enough.

Only failures of the machine are tried again. A fail, a compromised run and a refused task stand.
"""

from __future__ import annotations

from collections.abc import Sequence

from ringfence.errors import SandboxError
from ringfence.proctor.suite.entry import Entry, Order, Result, State
from ringfence.proctor.suite.executor import Executor
from ringfence.proctor.suite.progress import SuiteProgress
from ringfence.proctor.suite.results import Row, row_of


def run_all(
    entries: Sequence[Entry], order: Order, executor: Executor, *,
    public_key: str, retries: int, progress: SuiteProgress,
) -> tuple[Row, ...]:  # fmt: skip
    """A row for each entry, in their order. Entries whose tasks have the same id have no verdict."""
    by_id = {entry.id: entry for entry in entries}
    attempts = dict.fromkeys(by_id, 0)
    rows: dict[str, Row] = {}
    progress.begin(len(entries), executor.slots)
    for entry in entries:
        executor.submit(entry)
    for result in executor.results():
        if result.id not in by_id or result.id in rows:
            continue  # each once, whatever an executor says
        attempts[result.id] += 1
        row = _row(by_id[result.id], result, order, public_key, attempts[result.id])
        if row.state is State.FAILED and attempts[row.id] <= retries:
            progress.again(row)
            executor.submit(by_id[row.id])
            continue
        rows[row.id] = row
        progress.end(row)
    return _without_doubles([rows[entry.id] for entry in entries if entry.id in rows])


def _row(entry: Entry, result: Result, order: Order, public_key: str, attempts: int) -> Row:
    """A verdict that does not verify counts as a failure of the machine."""
    try:
        return row_of(entry, result, suite=order.suite, public_key=public_key, attempts=attempts)
    except (SandboxError, OSError) as error:
        failed = Result(id=entry.id, state=State.FAILED, error=f"its bundle is not valid: {error}")
        return row_of(entry, failed, suite=order.suite, public_key=public_key, attempts=attempts)


def _without_doubles(rows: Sequence[Row]) -> tuple[Row, ...]:
    """One task, one verdict: a suite that has a task twice would count it twice."""
    owners: dict[str, list[str]] = {}
    for row in rows:
        if row.has_verdict:
            owners.setdefault(row.task_id, []).append(row.id)
    return tuple(_double(row, owners[row.task_id]) if len(owners.get(row.task_id, ())) > 1 else row for row in rows)


def _double(row: Row, owners: Sequence[str]) -> Row:
    others = ", ".join(repr(each) for each in owners if each != row.id)
    return Row(id=row.id, kind=row.kind, folder=row.folder, state=State.REFUSED, attempts=row.attempts,
               error=f"its task has the id {row.task_id!r}, as has that of {others}")  # fmt: skip
