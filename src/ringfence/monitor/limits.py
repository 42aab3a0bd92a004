"""``ResourceLimits`` and ``ResourceUsage``: how much a sandbox may use, and how much it does.

Plain data, checked when it is made. What is measured and how is elsewhere, and so is what follows from it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, fields

from ringfence.errors import PolicyError

_WHOLE = frozenset({"max_memory_mb", "max_disk_mb", "max_network_kb", "max_execution_time", "max_file_operations"})


@dataclass(frozen=True)
class ResourceLimits:
    """The most that a sandbox may use. 0 allows none of it; a MB has 2**20 bytes, a KB 2**10."""

    max_cpu_percent: float = 80.0
    """Of one core: two busy cores are 200."""
    max_memory_mb: int = 512
    max_disk_mb: int = 1024
    """Written to storage since the sandbox began."""
    max_network_kb: int = 10240
    """Received and sent, loopback left out."""
    max_execution_time: int = 300
    """Seconds."""
    max_file_operations: int = 1000
    """Calls of the read and the write family."""

    def __post_init__(self) -> None:
        problems = [problem for each in fields(self) for problem in _problems(each.name, getattr(self, each.name))]
        if problems:
            raise PolicyError(problems[0].field, problems[0].problem, more=tuple(problems[1:]))


def _problems(name: str, value: object) -> Iterable[PolicyError]:
    wanted = "a whole number" if name in _WHOLE else "a number"
    kinds = int if name in _WHOLE else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds):
        yield PolicyError(name, f"{value!r} is not {wanted}")
    elif not math.isfinite(value) or value < 0:
        yield PolicyError(name, f"{value!r} is not {wanted} from 0 on")


@dataclass(frozen=True)
class ResourceUsage:
    """What a sandbox used up to one moment, all of its processes together, the ended ones too."""

    cpu_percent: float
    """Of one core, over the last interval."""
    memory_mb: float
    disk_mb: float
    network_kb: float
    execution_time: float
    file_operations: int
    violations: list[str] = field(default_factory=list)
    """One line for each limit that is passed."""
