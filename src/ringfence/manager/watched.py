"""``Watched``: one execution, as the monitor sees it: what it used, and which of the monitor's limits it passed."""

from __future__ import annotations

from ringfence.errors import SandboxError, UsageError
from ringfence.manager.context import SandboxContext
from ringfence.manager.result import limits_reached
from ringfence.model.outcome import Outcome
from ringfence.monitor.limits import ResourceUsage
from ringfence.monitor.resource_monitor import ResourceMonitor
from ringfence.monitor.violations import MIB, Violation

OPERATIONS = "max_file_operations"
_MOST_FAILED = 10
"""Looks in a row. One may fail, but where none succeeds no limit holds."""


class Watched:
    """Network is counted from the making of this object to the last look, and both look at everything: the monitor's
    own figures may be a second old, and must not charge this execution with what others did. The leader of the
    execution counts its file operations and enforces their limit; at levels without such a count the monitor looks at
    them in the same way."""

    def __init__(self, monitor: ResourceMonitor, context: SandboxContext, *, counted: bool) -> None:
        """``counted``: its leader counts its operations."""
        self._monitor = monitor
        self._counted, self._told = counted, -1
        self._context = context
        self.violations: list[Violation] = []
        self._before: ResourceUsage | None = None
        """Used up to the first look that succeeded; that is not charged to this execution."""
        self._last: ResourceUsage | None = None
        self.problem: SandboxError | None = None
        """Why the last look failed; None: it did not."""
        self._failed = 0
        """Looks in a row that failed."""
        self._look(whole=True)

    def _look(self, *, whole: bool) -> None:
        sandbox_id = self._context.sandbox_id
        try:
            if whole:
                self._monitor.sample(sandbox_id, standing=True)
            usage = self._monitor.get_usage(sandbox_id, standing=True)
            self.violations = self._monitor.violations(sandbox_id, standing=True)
        except SandboxError as error:  # also when the box is gone, and with it what could be looked at
            self.problem = error
            self._failed += 1
            return
        self.problem, self._failed = None, 0
        self._before = self._before or usage
        self._last = usage

    def is_over(self, *, whole: bool = False, told: int = -1) -> bool:
        """Whether a limit has been passed; which, is in ``violations``. ``told``: how many operations it has made, as
        its leader reports; -1: it has not ended, or that is unknown."""
        self._look(whole=whole)
        self._told = told
        limit, count = self._context.resource_limits.max_file_operations, self._operations()
        is_known = self._told >= 0 or not self._counted  # what the monitor sees may belong to another execution
        if is_known and count > limit and not any(each.name == OPERATIONS for each in self.violations):
            text = f"file operations: {count}, limit {limit}"
            self.violations.append(Violation(name=OPERATIONS, limit=limit, measured=count, since=0.0, text=text))
        return bool(self.violations)

    @property
    def is_lost(self) -> bool:
        """Nothing sees any more whether it passes a limit: it is no longer monitored, or all looks fail."""
        return isinstance(self.problem, UsageError) or self._failed >= _MOST_FAILED

    def _operations(self) -> int:
        """As reported by the leader, or seen."""
        return self._told if self._told >= 0 else int(self._since("file_operations"))

    def _since(self, name: str) -> float:
        return float(getattr(self._last, name) - getattr(self._before, name)) if self._last and self._before else 0.0

    def used(self, outcome: Outcome) -> ResourceUsage:
        """Used by the execution from its beginning to its end: mean of the processor, peak of the memory, sums."""
        usage = outcome.usage
        wall_s = usage.wall_s or outcome.duration_ms / 1000
        return ResourceUsage(
            cpu_percent=(usage.cpu_user_s + usage.cpu_system_s) / wall_s * 100 if wall_s else 0.0,
            memory_mb=usage.peak_memory_bytes / MIB,
            disk_mb=max(usage.written_bytes / MIB, self._since("disk_mb")),  # the leader of a box sees no reaped job
            network_kb=self._since("network_kb"),
            execution_time=wall_s,
            file_operations=self._operations(),
            violations=[*limits_reached(outcome), *map(str, self.violations)],
        )
