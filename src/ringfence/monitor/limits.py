"""``ResourceLimits`` and ``ResourceUsage``: how much a sandbox may use, and how much it does.

Plain data, checked when it is made. Other modules measure, and decide what follows.
"""

from __future__ import annotations

from collections.abc import Iterable

from ringfence.errors import PolicyError
from ringfence.model.record import field_names, made_by, record

_TOO_LARGE = 2**63
_WHOLE = frozenset({"max_memory_mb", "max_disk_mb", "max_network_kb", "max_execution_time", "max_file_operations"})


@record(kw_only=False)
class ResourceLimits:
    """The most that a sandbox may use. 0 allows nothing; a MB has 2**20 bytes, a KB 2**10."""

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
        problems = [problem for name in field_names(self) for problem in _problems(name, getattr(self, name))]
        if problems:
            raise PolicyError(problems[0].field, problems[0].problem, more=tuple(problems[1:]))


def is_figure(value: object) -> bool:
    """A usable number from 0 on: not NaN, and not an integer too large for a float or a message."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < _TOO_LARGE


def shown_figure(value: object) -> str:
    """For messages: Python refuses to write out an integer of some thousand digits."""
    return "a very large number" if isinstance(value, int) and abs(value) >= _TOO_LARGE else repr(value)


def _problems(name: str, value: object) -> Iterable[PolicyError]:
    wanted = "a whole number" if name in _WHOLE else "a number"
    kinds = int if name in _WHOLE else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds):
        yield PolicyError(name, f"{shown_figure(value)} must be {wanted}")
    elif not is_figure(value):
        yield PolicyError(name, f"{shown_figure(value)} must be {wanted}, 0 or more and less than 2**63")


@record(kw_only=False)
class ResourceUsage:
    """What a sandbox used up to one moment, all of its processes together, the ended ones too."""

    cpu_percent: float
    """Of one core, over the last interval."""
    memory_mb: float
    disk_mb: float
    network_kb: float
    execution_time: float
    file_operations: int
    violations: list[str] = made_by(default_factory=list)
    """One line for each limit that was passed."""
