"""``ExecutionResult``: what became of one execution in a sandbox. Everything the guest did is in it as data."""

from __future__ import annotations

import errno
from collections.abc import Iterable
from typing import Any

from ringfence.engine.returned import Returned
from ringfence.manager.permissions import QUIET
from ringfence.model.events import EventKind
from ringfence.model.outcome import PARTIAL_ENFORCEMENT, Outcome, Status, Usage
from ringfence.model.record import record, replace
from ringfence.monitor.limits import ResourceUsage

MAX_VIOLATIONS = 100
"""Of a flood the first ones tell enough."""


@record
class RollbackResult:
    """What a rollback did; one that could not be carried out has ``rollback_type`` ``failed``."""

    success: bool
    checkpoint_id: str
    rollback_type: str
    """``full``, ``partial`` or ``failed``."""
    files_restored: int
    state_restored: bool
    error: str | None = None
    processes_ended: tuple[str, ...] = ()
    """What ran in the sandbox when it was restarted: pid on the host and command, which is the guest's word."""
    processes_restored: tuple[str, ...] = ()
    """Those of the checkpoint that run again, as they were called then. ``success`` is false where they do not."""

    def to_dict(self) -> dict[str, Any]:
        listed = ("processes_ended", "processes_restored")
        return {**self.__dict__, **{name: list(getattr(self, name)) for name in listed}}


@record
class ExecutionResult:
    """How an execution ended."""

    success: bool
    """It ended by itself, with a value, and nothing forbidden was tried."""
    sandbox_id: str
    value: object = None
    """What the function returned; of a command, None."""
    error: str | None = None
    """Why it has no success, in one line."""
    error_type: str = ""
    """The class of the guest's exception; empty: it was something else."""
    traceback: str = ""
    """The guest's, as text."""
    stdout: str = ""
    stderr: str = ""
    status: Status = Status.OK
    rc: int = 0
    reason: str = ""
    violations: tuple[str, ...] = ()
    """Forbidden things that were tried, and limits that were reached."""
    usage: Usage = Usage()
    resource_usage: ResourceUsage | None = None
    """Of the whole sandbox, as the monitor saw it last; absent: it ended before it was looked at."""
    duration_s: float = 0.0
    checkpoint_id: str = ""
    """The state before the execution; empty: none was kept."""
    rolled_back: bool = False
    rollback: RollbackResult | None = None
    partial: bool = False
    """Something that was asked for was not held here (only with ``allow_partial``)."""
    outcome: Outcome | None = None
    """All that is known; absent in plain data."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data but for ``value``, which is as the function gave it: numbers, texts, bytes, lists and so on."""
        plain = {name: item for name, item in self.__dict__.items() if name != "outcome"}
        plain["resource_usage"] = dict(vars(self.resource_usage)) if self.resource_usage else None
        plain |= {"status": str(self.status), "violations": list(self.violations), "usage": dict(self.usage.__dict__)}
        return plain | {"rollback": self.rollback.to_dict() if self.rollback else None}


def of_call(returned: Returned, sandbox_id: str, more: Iterable[str] = ()) -> ExecutionResult:
    """``more``: violations that somebody else has seen."""
    raised, seen = returned.raised, violations(returned.outcome, more)
    error = returned.problem or _told(seen)
    return _result(
        returned.outcome, sandbox_id, seen,
        success=returned.ok and not seen,
        value=returned.reply.value if returned.ok else None,
        error=error or None,
        error_type=raised.type_name if raised else "",
        traceback=raised.traceback if raised else "",
    )  # fmt: skip


def of_command(outcome: Outcome, sandbox_id: str, more: Iterable[str] = ()) -> ExecutionResult:
    seen = violations(outcome, more)
    error = _told(seen) if outcome.ok else f"{outcome.status}: {outcome.reason}"
    return _result(outcome, sandbox_id, seen, success=outcome.ok and not seen, error=error or None)


def _result(outcome: Outcome, sandbox_id: str, seen: tuple[str, ...], **fields: Any) -> ExecutionResult:
    return ExecutionResult(
        sandbox_id=sandbox_id,
        stdout=outcome.stdout.decode("utf-8", "replace"),
        stderr=outcome.stderr.decode("utf-8", "replace"),
        status=outcome.status,
        rc=outcome.rc,
        reason=outcome.reason,
        violations=seen,
        usage=outcome.usage,
        duration_s=outcome.duration_ms / 1000,
        partial=outcome.partial,
        outcome=outcome,
        **fields,
    )


def with_unheld(result: ExecutionResult, unheld: str) -> ExecutionResult:
    """The same, with what was asked for and that nothing held said in it; empty: all was held."""
    if not unheld:
        return result
    reason = result.reason.removeprefix(PARTIAL_ENFORCEMENT).removeprefix(": ")
    told = f"{PARTIAL_ENFORCEMENT}: {unheld}" + (f"; {reason}" if reason else "")
    return replace(result, partial=True, reason=told)


def _told(seen: tuple[str, ...]) -> str:
    return f"violation: {seen[0]}" if seen else ""


def violations(outcome: Outcome, more: Iterable[str] = ()) -> tuple[str, ...]:
    """Each once, in the order in which they came."""
    tried = (_tried(event.details) for event in outcome.events if event.kind is EventKind.VIOLATION)
    hit = (f"limit {name} reached" for name in outcome.limits_hit if name != "output")  # which is only cut
    # What nobody can name may be anything: not to see it is as bad as to see it.
    unnamed = (f"{outcome.unrecorded} attempts not named",) if outcome.unrecorded else ()
    return tuple(dict.fromkeys(text for text in (*unnamed, *tried, *hit, *more) if text))[:MAX_VIOLATIONS]


def _tried(details: Any) -> str:
    """Empty: what honest programs try too, and calls that were answered as if the kernel had none such."""
    path = str(details.get("path", ""))
    unknown_call = details.get("errno") == errno.ENOSYS and details.get("aim") != "hidden"
    if unknown_call or (path in QUIET and not details.get("writes")):
        return ""
    asked = str(details.get("asked") or path)
    return f"{details.get('operation', '')} {ascii(asked)[1:-1]}".strip()
