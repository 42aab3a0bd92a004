"""``DockerExecutionResult``: the result of a strategy."""

from __future__ import annotations

from collections.abc import Mapping

from ringfence.model.record import field_names, made_by, record
from ringfence.model.str_enum import StrEnum


class StrategyStatus(StrEnum):
    """How an execution ended."""

    OK = "ok"
    FAILED = "failed"
    """The strategy raised, or ended without a result."""
    BAD_RESULT = "bad_result"
    """The result can't be read, or is too large."""
    TIMEOUT = "timeout"
    RESOURCE_LIMIT = "resource_limit"
    REJECTED = "rejected"
    """The validator refused the code, and nothing ran."""
    CREATION_FAILED = "creation_failed"
    """The container could not be made."""
    UNAVAILABLE = "unavailable"
    """There is no engine, or it was lost, and no fallback is configured."""
    DISABLED = "disabled"
    """Containers are switched off, and no fallback is configured."""


@record(kw_only=False)
class DockerExecutionResult:
    """The result of a strategy. ``metrics``, and the error that a strategy raised, come from the strategy itself."""

    success: bool
    metrics: dict[str, object]
    container_id: str
    execution_time: float
    memory_used_mb: float
    cpu_percent: float
    error_message: str | None = None
    security_rejections: list[str] | None = None
    status: StrategyStatus = StrategyStatus.OK
    isolation: str = "container"
    """``strict`` or ``process`` after a fallback."""
    trace_id: str = ""
    log: str = ""
    """The end of what the strategy printed."""
    enforced: Mapping[str, object] = made_by(default_factory=dict)
    """By capability, what the engine really applied."""


def as_dict(result: DockerExecutionResult) -> dict[str, object]:
    """All fields by name, as ``dataclasses.asdict`` has them."""
    return {name: getattr(result, name) for name in field_names(result)}


def failed(status: StrategyStatus, words: str, **more: object) -> DockerExecutionResult:
    """A result without metrics."""
    values: dict[str, object] = {"container_id": "", "execution_time": 0.0, "memory_used_mb": 0.0, "cpu_percent": 0.0}
    return DockerExecutionResult(success=False, metrics={}, error_message=words, status=status,
                                 **{**values, **more})  # type: ignore[arg-type]  # fmt: skip
