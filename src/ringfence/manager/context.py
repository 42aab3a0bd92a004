"""``SandboxContext``: one living sandbox as its user sees it. The manager does everything with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ringfence.backends import own_paths
from ringfence.checkpoint.transaction import Transaction
from ringfence.engine.run import traits_of
from ringfence.manager.config import SandboxConfig
from ringfence.manager.registry import Metadata
from ringfence.model.limits import IsolationLevel
from ringfence.model.record import field_names, made_by, record
from ringfence.monitor.limits import ResourceLimits


@record(kw_only=False, eq=False)
class SandboxContext:
    """A sandbox that takes executions until it is destroyed."""

    sandbox_id: str
    isolation_level: IsolationLevel
    working_directory: Path
    """Where jobs start: the first allowed path, or the sandbox's own directory, as the job sees it."""
    allowed_paths: list[Path]
    blocked_paths: list[Path]
    environment_vars: dict[str, str]
    timeout_seconds: int
    """For each execution."""
    resource_limits: ResourceLimits
    config: SandboxConfig
    folder: Path
    """The directory of the sandbox on disk."""
    state_data: dict[str, Any] = made_by(default_factory=dict)
    """The caller's own data, as JSON. Every checkpoint keeps it, and a full rollback restores it."""

    def __repr__(self) -> str:
        """Leaves out what is the same for many sandboxes, or says no more than the id."""
        shown = [name for name in field_names(self) if name not in ("config", "folder")]
        return f"SandboxContext({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"


def context_of(config: SandboxConfig, metadata: Metadata, transaction: Transaction) -> SandboxContext:
    """Return the context of a sandbox that is open."""
    has_walls = traits_of(config.isolation_level).isolates
    found = own_paths.places(transaction) if has_walls else map(transaction.place, transaction.bases)
    places = [Path(place) for place in found]
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
