"""``SandboxContext``: one living sandbox as its user sees it. What is done with it is the manager's."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ringfence.checkpoint.transaction import Transaction
from ringfence.manager.config import SandboxConfig
from ringfence.manager.registry import Metadata
from ringfence.model.limits import IsolationLevel
from ringfence.monitor.limits import ResourceLimits


@dataclass(frozen=True, eq=False)
class SandboxContext:
    """A place that takes executions, until it is destroyed."""

    sandbox_id: str
    isolation_level: IsolationLevel
    working_directory: Path
    """Where jobs start: the first allowed path, or the sandbox's own folder, as the job sees it."""
    allowed_paths: list[Path]
    blocked_paths: list[Path]
    environment_vars: dict[str, str]
    timeout_seconds: int
    """For each execution."""
    resource_limits: ResourceLimits
    config: SandboxConfig = field(repr=False)
    folder: Path = field(repr=False)
    """Of the sandbox on disk."""
    state_data: dict[str, Any] = field(default_factory=dict)
    """The caller's own, to be changed at will; kept with every checkpoint and put back by a full rollback. JSON."""


def context_of(config: SandboxConfig, metadata: Metadata, transaction: Transaction) -> SandboxContext:
    """Of a sandbox that is open."""
    places = [Path(transaction.place(base)) for base in transaction.bases]
    return SandboxContext(
        sandbox_id=metadata.sandbox_id,
        isolation_level=config.isolation_level,
        working_directory=places[0],
        allowed_paths=places if config.allowed_paths else [],
        blocked_paths=list(config.blocked_paths),
        environment_vars=dict(config.environment_vars),
        timeout_seconds=config.resource_limits.max_execution_time,
        resource_limits=config.resource_limits,
        config=config,
        folder=Path(transaction.folder),
        state_data=dict(metadata.state_data),
    )
