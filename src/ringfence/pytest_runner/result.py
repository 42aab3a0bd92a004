"""``SandboxResultV2``: the structured result of the pytest door, and how an outcome becomes one."""

from __future__ import annotations

from typing import TypedDict

from ringfence.model.outcome import FIXED_RC, Enforcement, Outcome, Status
from ringfence.pytest_runner.records import TestRecords

VERSION = 2


class EnforcedCapability(TypedDict):
    """What was asked of one capability and what became of it."""

    requested: object
    applied: bool
    mechanism: str
    details: str


class TestOutcome(TypedDict):
    """How one test ended, as pytest inside the sandbox told it."""

    test: str
    outcome: str
    duration_s: float


class SandboxResultV2(TypedDict):
    """How a run of pytest ended, under which limits, with what they were enforced by."""

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
    """Tests by outcome: passed, failed, error, skipped, xfailed, xpassed, and deselected."""
    tests: list[TestOutcome]
    limits_hit: list[str]


def from_outcome(outcome: Outcome, records: TestRecords) -> SandboxResultV2:
    """The door's own form of an outcome."""
    status, rc, reason = _honest_end(outcome, records)
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


def _honest_end(outcome: Outcome, records: TestRecords) -> tuple[Status, int, str]:
    """Exit code 0 without a finished session is not «tests passed»: some test ended the process, or wrote into the
    channel itself."""
    if outcome.status is Status.OK and records.problem:
        return Status.FAILED, 1, f"exit code 0, but what pytest told can't be read to its end: {records.problem}"
    if outcome.status is Status.OK and records.finished != 0:
        told = "nothing" if records.finished is None else f"exit status {records.finished}"
        reason = f"exit code 0, but pytest did not finish its session with it (it told {told})"
        return Status.FAILED, 1, reason
    return outcome.status, outcome.rc, outcome.reason


def _enforced(outcome: Outcome) -> dict[str, EnforcedCapability]:
    return {
        name: EnforcedCapability(
            requested=list(entry.requested) if isinstance(entry.requested, tuple) else entry.requested,
            applied=entry.applied,
            mechanism=entry.mechanism,
            details=entry.details,
        )
        for name, entry in outcome.enforced.items()
    }
