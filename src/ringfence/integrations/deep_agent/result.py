"""``ToolResult``: what became of one tool call, inside a sandbox or not."""

from __future__ import annotations

from typing import Any

from ringfence.integrations.deep_agent.decision import Decision
from ringfence.integrations.deep_agent.redaction import Redactor
from ringfence.manager.result import ExecutionResult
from ringfence.model.record import record

_MAX_PATHS = 100


@record
class ToolResult:
    """How it ended. What a tool did wrong is here, never an exception."""

    tool: str
    success: bool
    value: Any = None
    error: str | None = None
    """Why it failed, in one line."""
    decision: Decision
    sandboxed: bool = False
    violations: tuple[str, ...] = ()
    """Forbidden things that were tried, and limits that were reached."""
    rolled_back: bool = False
    changed: tuple[str, ...] = ()
    """Paths that differed after its end and, if it failed, after the rollback."""
    changed_complete: bool = True
    """False: there are more, too deep or too many to be listed; these can't be committed."""
    committed: tuple[str, ...] = ()
    """Paths that now are in the allowed paths."""
    execution: ExecutionResult | None = None
    """All that the sandbox says; absent: it ran outside."""

    def told(self, redact: Redactor) -> dict[str, Any]:
        """The result for the audit log: no value in clear."""
        told = {
            "success": self.success,
            "sandboxed": self.sandboxed,
            "value": redact.digest(self.value),
            "violations": [redact.text(text) for text in self.violations],
            "rolled_back": self.rolled_back,
            "changed": printable(self.changed),
            "changed_total": len(self.changed),
            "changed_complete": self.changed_complete,
            "committed": printable(self.committed),
            "committed_total": len(self.committed),
        }
        return {**told, **_stats(self.execution)} if self.execution else told


def _stats(execution: ExecutionResult) -> dict[str, Any]:
    return {
        "sandbox_id": execution.sandbox_id,
        "status": str(execution.status),
        "checkpoint_id": execution.checkpoint_id,
        "duration_ms": round(execution.duration_s * 1000),
        "usage": {name: value for name, value in vars(execution.usage).items() if isinstance(value, int | float)},
        "partial": execution.partial,
    }


def printable(paths: tuple[str, ...]) -> list[str]:
    """Names may hold anything; these can be read and written anywhere."""
    return [ascii(path)[1:-1] for path in paths[:_MAX_PATHS]]
