"""``ContainerMonitor``: what containers use and how they end, as metrics and as lines of the log."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping

from ringfence.metrics import recorder
from ringfence.metrics.life_log import tell
from ringfence.model.record import record, replace

ISOLATION = "container"
MEGABYTE = 1 << 20


@record
class Used:
    """What one container uses: the most memory seen, and its processor time so far."""

    memory_bytes: int = 0
    cpu_s: float = 0.0
    cpu_percent: float = 0.0
    since: float = 0.0
    before_s: float = 0.0
    """Processor time used before the strategy came: a warm container has started and waited."""


class ContainerMonitor:
    """Counts for all containers of one process. May be called from any thread."""

    def __init__(self, alert_above: int = 3) -> None:
        self._lock = threading.Lock()
        self._used: dict[str, Used] = {}
        self._orphans: set[str] = set()
        self._alert_above = alert_above

    def record_container_created(self, container_id: str) -> None:
        """Increment ``active_containers``."""
        with self._lock:
            if container_id in self._used:
                return
            self._used[container_id] = Used(since=time.monotonic())
        recorder.add("active_containers", 1, isolation=ISOLATION)
        tell("container_created", container_id=container_id)

    def record_resource_usage(self, container_id: str, stats: Mapping[str, object]) -> Used:
        """Record memory and processor use, as the engine's statistics have them."""
        memory, cpu_s = memory_bytes(stats), _number(stats, "cpu_stats", "cpu_usage", "total_usage") / 1e9
        with self._lock:
            before = self._used.get(container_id, Used(since=time.monotonic()))
            elapsed = max(time.monotonic() - before.since, 0.001)
            cpu_s = max(cpu_s - before.before_s, before.cpu_s)
            used = replace(before, memory_bytes=max(memory, before.memory_bytes), cpu_s=cpu_s,
                           cpu_percent=round(cpu_s / elapsed * 100, 1))  # fmt: skip
            if container_id in self._used:
                self._used[container_id] = used
            every = [*self._used.values()]
        recorder.set_to("container_memory_usage_bytes", sum(each.memory_bytes for each in every))
        recorder.set_to("container_cpu_usage_percent", sum(each.cpu_percent for each in every))
        return used

    def record_run_begins(self, container_id: str, stats: Mapping[str, object]) -> None:
        """Count processor use from here."""
        before_s = _number(stats, "cpu_stats", "cpu_usage", "total_usage") / 1e9
        with self._lock:
            self._used[container_id] = Used(since=time.monotonic(), before_s=before_s)

    def used(self, container_id: str) -> Used:
        with self._lock:
            return self._used.get(container_id, Used())

    def record_container_kept(self, container_id: str) -> None:
        """Decrement ``active_containers``: it was stopped, and is neither removed nor an orphan."""
        with self._lock:
            was_active = self._used.pop(container_id, None) is not None
        if was_active:
            recorder.add("active_containers", -1, isolation=ISOLATION)

    def record_container_cleanup(self, container_id: str, success: bool) -> None:
        """Track success and failure: what could not be removed is an orphan until it is."""
        with self._lock:
            before = len(self._orphans)
            (self._orphans.discard if success else self._orphans.add)(container_id)
            count = len(self._orphans)
        self.record_container_kept(container_id)
        recorder.add("container_cleanup_total", success=str(success).lower())
        recorder.set_to("orphaned_containers", count)
        recorder.set_to("orphaned_containers_alert", float(count > self._alert_above))
        self._tell(container_id, success, before, count)

    def _tell(self, container_id: str, success: bool, before: int, count: int) -> None:
        if success:
            tell("container_removed", container_id=container_id)
            return
        tell("container_orphaned", f"container {container_id} could not be removed; it is tried again",
             level=logging.WARNING, container_id=container_id, orphaned_containers=count)  # fmt: skip
        if count > self._alert_above >= before:
            tell("orphaned_containers_alert", f"{count} containers could not be removed", level=logging.ERROR,
                 orphaned_containers=count, alert_above=self._alert_above)  # fmt: skip

    @property
    def orphans(self) -> frozenset[str]:
        """The containers that could not be removed yet."""
        with self._lock:
            return frozenset(self._orphans)


def memory_bytes(stats: Mapping[str, object]) -> int:
    """Without file pages that the kernel can reclaim at once, as ``docker stats`` counts."""
    usage = _number(stats, "memory_stats", "usage")
    cached = (_number(stats, "memory_stats", "stats", name) for name in ("total_inactive_file", "inactive_file"))
    return int(max(0.0, usage - next((each for each in cached if each), 0.0)))


def _number(stats: object, *keys: str) -> float:
    """Zero where an engine does not tell, or tells nonsense."""
    for key in keys:
        stats = stats.get(key) if isinstance(stats, Mapping) else None
    return float(stats) if isinstance(stats, int | float) and not isinstance(stats, bool) and stats >= 0 else 0.0
