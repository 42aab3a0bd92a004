"""``ExecutionResult``: what became of one execution in a sandbox. Everything the guest did is in it as data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ringfence.engine.call_result import CallResult
from ringfence.model.events import EventKind, tried
from ringfence.model.outcome import FIXED_RC, PARTIAL_ENFORCEMENT, Enforcement, Mechanism, Outcome, Status, Usage
from ringfence.model.record import record, replace
from ringfence.monitor.limits import ResourceUsage
from ringfence.monitor.violations import Violation

_KILLED_RC = 128 + 9
_NO_WALL = "holds import statements of honest code; no wall, since Python has other ways to a module: the sandbox is it"
MAX_VIOLATIONS = 100
"""In a flood the first ones tell enough."""


@record(kw_only=False)
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
    """What ran in the sandbox when it was restarted: pid on the host, and the command, which the guest chose."""
    processes_restored: tuple[str, ...] = ()
    """The processes of the checkpoint that run again, by their old names. If one does not, ``success`` is false."""

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
    """What the function returned; None for a command."""
    error: str | None = None
    """Why it did not succeed, in one line."""
    error_type: str = ""
    """The class of the guest's exception; empty: it was something else."""
    traceback: str = ""
    """The guest's traceback, as text."""
    stdout: str = ""
    stderr: str = ""
    status: Status = Status.OK
    rc: int = 0
    reason: str = ""
    violations: tuple[str, ...] = ()
    """Forbidden things that were tried, and limits that were reached."""
    usage: Usage = Usage()
    resource_usage: ResourceUsage | None = None
    """Of this execution: mean CPU use, peak memory, and totals of the rest. Absent: it is not a manager's result."""
    duration_s: float = 0.0
    checkpoint_id: str = ""
    """The state before the execution; empty: none was kept."""
    rolled_back: bool = False
    rollback: RollbackResult | None = None
    partial: bool = False
    """Something that was asked for was not enforced here (only with ``allow_partial``)."""
    outcome: Outcome | None = None
    """Everything that is known; absent in plain data."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data, except ``value``, which stays as the function returned it: numbers, texts, bytes, lists…"""
        plain = {name: item for name, item in self.__dict__.items() if name != "outcome"}
        plain["resource_usage"] = dict(vars(self.resource_usage)) if self.resource_usage else None
        plain |= {"status": str(self.status), "violations": list(self.violations), "usage": dict(self.usage.__dict__)}
        return plain | {"rollback": self.rollback.to_dict() if self.rollback else None}


def of_call(call_result: CallResult, sandbox_id: str, more: Iterable[str] = ()) -> ExecutionResult:
    """``more``: violations that somebody else has seen."""
    raised, seen = call_result.raised, violations(call_result.outcome, more)
    error = call_result.problem or _told(seen)
    return _result(
        call_result.outcome, sandbox_id, seen,
        success=call_result.ok and not seen,
        value=call_result.reply.value if call_result.ok else None,
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


_STATUS: dict[str, Status] = {
    "max_cpu_percent": Status.CPU_LIMIT,
    "max_memory_mb": Status.MEM_LIMIT,
    "max_disk_mb": Status.DISK_LIMIT,
    "max_network_kb": Status.NETWORK_LIMIT,
    "max_execution_time": Status.TIMEOUT,
    "max_file_operations": Status.OPERATIONS_LIMIT,
}
"""Of what the monitor sees, by the field of the limit."""
_BEHIND = frozenset({Status.OK, Status.FAILED, Status.KILLED_KILL, Status.OPERATIONS_LIMIT})
"""Statuses that a limit of the monitor, or of an execution, overrides: it is chance whether the limit is seen while the
job runs or after its end, and the fact that we ended the job is not the reason."""


def with_limit(result: ExecutionResult, passed: Sequence[Violation]) -> ExecutionResult:
    """The same, with the status of the first limit that the monitor saw passed; empty: none was."""
    if not passed or result.status not in _BEHIND:
        return result
    status, told = _STATUS[passed[0].name], str(passed[0])
    reason = f"{PARTIAL_ENFORCEMENT}: {told}" if result.partial else told
    rc = FIXED_RC.get(status, _KILLED_RC)
    return replace(result, status=status, rc=rc, reason=reason, error=f"{status}: {told}")


def with_unheld(result: ExecutionResult, unheld: str) -> ExecutionResult:
    """The same, naming what was asked for but not enforced; empty: everything was enforced."""
    if not unheld:
        return result
    partly = f"{result.reason}; {unheld}" if result.partial else f"{PARTIAL_ENFORCEMENT}: {unheld}; {result.reason}"
    return replace(result, partial=True, reason=partly)


def with_imports(outcome: Outcome, allowed: Sequence[str] | None) -> Outcome:
    """The same, with what its table says of allowed imports; None: all are."""
    if allowed is None:
        return outcome
    entry = Enforcement(requested=tuple(allowed), applied=True, mechanism="import hook", details=_NO_WALL,
                        by=(Mechanism.IMPORT_HOOK,))  # fmt: skip
    return replace(outcome, enforced={**outcome.enforced, "allowed_imports": entry})


def _told(seen: tuple[str, ...]) -> str:
    return f"violation: {seen[0]}" if seen else ""


def violations(outcome: Outcome, more: Iterable[str] = ()) -> tuple[str, ...]:
    """Each once, in the order in which they came."""
    attempts = (tried(event.details) for event in outcome.events if event.kind is EventKind.VIOLATION)
    hit = limits_reached(outcome)
    # An attempt that nobody can name may be anything: not seeing it is as bad as seeing it.
    unnamed = (f"{outcome.unrecorded} attempts not named",) if outcome.unrecorded else ()
    return tuple(dict.fromkeys(text for text in (*unnamed, *attempts, *hit, *more) if text))[:MAX_VIOLATIONS]


def limits_reached(outcome: Outcome) -> list[str]:
    """The limits that the engine holds, except output, which is only cut, and operations, which have a line with their
    number."""
    return [f"limit {name} reached" for name in outcome.limits_hit if name not in ("output", "operations")]
