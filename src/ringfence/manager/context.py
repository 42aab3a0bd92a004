"""``SandboxContext``: one living sandbox as its user sees it. What is done with it is the manager's."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ringfence.manager.config import SandboxConfig
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
