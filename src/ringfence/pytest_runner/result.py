"""``SandboxResultV2``: the structured result of the pytest door, and how an outcome becomes one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from ringfence.model.outcome import FIXED_RC, Enforcement, Outcome, Status
from ringfence.pytest_runner.records import TestRecords
from ringfence.pytest_runner.refusals import with_refusals

VERSION = 2


class EnforcedCapability(TypedDict):
    """What was requested of one capability, and whether it was applied."""

    requested: object
    applied: bool
    mechanism: str
    details: str
    by: list[str]
    """What enforces it: texts of ``Mechanism``."""


class TestOutcome(TypedDict):
    """How one test ended, as pytest inside the sandbox reported it."""

    test: str
    outcome: str
    duration_s: float


class SandboxResultV2(TypedDict):
    """How a run of pytest ended, under which limits, and what enforced them."""

    version: int
    status: str
    rc: int
    reason: str
    stdout: str
    stderr: str
    duration_ms: int
    cmd: list[str]
    traceId: str
    enforced: dict[str, EnforcedCapability]
    usage: dict[str, float]
    counts: dict[str, int]
    """As in pytest's summary: passed, failed, error, skipped, xfailed, xpassed, rerun, deselected."""
    tests: list[TestOutcome]
    limits_hit: list[str]
    garbled: int
    """Lines of pytest's report that can't be read; if there are any, the result is not OK."""
    doubt: str
    """Why pytest's exit code 0 is not believed; empty: it is believed, or the code was another."""
    hints: list[str]
    """What to do if tests failed because of the sandbox, e.g. because a file is not in it."""


def from_outcome(outcome: Outcome, records: TestRecords, hints: Sequence[str] = ()) -> SandboxResultV2:
    """The door's own form of an outcome."""
    outcome = with_refusals(outcome, records.refused, records.failed_by)
    doubt = _doubt(records) if outcome.status is Status.OK else ""
    status, rc, reason = _honest_end(outcome, doubt)
    return SandboxResultV2(
        version=VERSION,
        status=str(status),
        rc=rc,
        reason=reason,
        stdout=outcome.stdout.decode("utf-8", "replace"),
        stderr=outcome.stderr.decode("utf-8", "replace"),
        duration_ms=outcome.duration_ms,
        cmd=list(outcome.argv),
        traceId=outcome.run_id,
        enforced=_enforced(outcome),
        usage=dict(vars(outcome.usage)),
        counts=records.counts(),
        tests=[TestOutcome(test=name, outcome=how, duration_s=took) for name, how, took in records.tests],
        limits_hit=list(outcome.limits_hit),
        garbled=records.garbled,
        doubt=doubt,
        hints=list(hints),
    )


def from_refusal(
    reason: str, cmd: list[str], enforced: dict[str, Enforcement], trace_id: str
) -> SandboxResultV2:
    """The result of a run that was never started, or that we lost."""
    outcome = Outcome(
        status=Status.INTERNAL_ERROR, rc=FIXED_RC[Status.INTERNAL_ERROR], reason=reason,
        argv=tuple(cmd), run_id=trace_id, enforced=enforced,
    )  # fmt: skip
    return from_outcome(outcome, TestRecords())


def _honest_end(outcome: Outcome, doubt: str) -> tuple[Status, int, str]:
    """Exit code 0 is not «tests passed» by itself: some test may have ended the process or the session, or written
    into the channel."""
    if doubt:
        return Status.FAILED, 1, f"exit code 0, but {doubt}"
    return outcome.status, outcome.rc, outcome.reason


def _doubt(records: TestRecords) -> str:
    """Why pytest's report is not a success; nothing if it is one."""
    if records.problem:
        return f"pytest's report can't be read to its end: {records.problem}"
    if records.garbled:
        return f"{records.garbled} lines of pytest's report can't be read"
    if records.finished != 0:
        told = "nothing" if records.finished is None else f"exit status {records.finished}"
        return f"pytest did not finish its session with it (it reported {told})"
    if records.broken_off:
        return "the session was interrupted (pytest.exit)"
    counts = records.counts()
    if counts["failed"] or counts["error"]:
        return f"it reported {counts['failed']} failed tests and {counts['error']} errors"
    return "" if records.tests else "no test ran"


def _enforced(outcome: Outcome) -> dict[str, EnforcedCapability]:
    return {
        name: EnforcedCapability(
            requested=list(entry.requested) if isinstance(entry.requested, tuple) else entry.requested,
            applied=entry.applied,
            mechanism=entry.mechanism,
            details=entry.details,
            by=list(map(str, entry.by)),
        )
        for name, entry in outcome.enforced.items()
    }
