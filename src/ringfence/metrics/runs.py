"""Counts runs of the engine, whatever level they have: called by ``engine.supervision`` where metrics are on."""

from __future__ import annotations

import time
from collections.abc import Callable

from ringfence.metrics import recorder
from ringfence.model.outcome import Outcome, Status

RESOURCES = frozenset({"memory", "pids", "cpu_time", "disk", "file_size", "nofile"})
LOST = "LOST"
"""The status of a run that ended with an exception."""


def begin(isolation: str) -> Callable[[Outcome | None], None]:
    """A run begins; the returned function is called with its outcome, or None if that is unknown."""
    recorder.switch_on_if_asked()
    recorder.add("active_containers", 1, isolation=isolation)
    began = time.monotonic()

    def end(outcome: Outcome | None) -> None:
        recorder.add("active_containers", -1, isolation=isolation)
        tell(isolation, outcome, time.monotonic() - began)

    return end


def tell(isolation: str, outcome: Outcome | None, elapsed_s: float) -> None:
    if outcome is None:
        recorder.add("executions_total", isolation=isolation, status=LOST)
        return
    ran_s = outcome.usage.wall_s or outcome.duration_ms / 1000
    recorder.add("executions_total", isolation=isolation, status=str(outcome.status))
    recorder.observe("execution_duration_seconds", ran_s, isolation=isolation)
    recorder.observe("start_latency_seconds", max(0.0, elapsed_s - ran_s), isolation=isolation)
    if outcome.status is Status.TIMEOUT:
        recorder.add("execution_timeout_total", isolation=isolation)
        recorder.observe("execution_timeout_duration_seconds", ran_s, isolation=isolation)
    for resource in RESOURCES.intersection(outcome.limits_hit):
        recorder.add("resource_limit_exceeded_total", isolation=isolation, resource=resource)
