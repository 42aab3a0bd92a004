"""Series that a server shows with 0 before their first event: Prometheus sees no increase in a counter that first
appears at 1, so an alert on it would miss that event. These are the metrics that ``deploy/prometheus/alerts.yml`` asks
for, with every value that their labels can have.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import product

from ringfence.metrics import recorder
from ringfence.metrics.runs import LOST, RESOURCES
from ringfence.metrics.table import METRICS
from ringfence.model.limits import IsolationLevel
from ringfence.model.outcome import Status

LEVELS = tuple(map(str, IsolationLevel))
STRATEGIES = "container"
"""The level at which strategies are counted, with words of their own."""
FALLBACK_LEVELS = ("process", "strict")
NOT_CREATED = ("create", "image")
REJECTED = ("dangerous_imports", "file_operations", "network_operations", "other")
STRATEGY_STATUSES = ("ok", "failed", "bad_result", "timeout", "resource_limit", "rejected", "creation_failed",
                     "unavailable", "disabled")  # fmt: skip
STRATEGY_RESOURCES = ("cpu", "memory")

_EACH_LEVEL = tuple((level,) for level in LEVELS)
KNOWN: Mapping[str, Iterable[tuple[str, ...]]] = {
    "executions_total": (*product(LEVELS, (*map(str, Status), LOST)), *product((STRATEGIES,), STRATEGY_STATUSES)),
    "start_latency_seconds": _EACH_LEVEL,
    "execution_timeout_total": _EACH_LEVEL,
    "resource_limit_exceeded_total": (*product(LEVELS, sorted(RESOURCES)), *product((STRATEGIES,), STRATEGY_RESOURCES)),
    "security_rejections_total": tuple((reason,) for reason in REJECTED),
    "docker_fallback_total": tuple((level,) for level in FALLBACK_LEVELS),
    "container_creation_failed_total": tuple((reason,) for reason in NOT_CREATED),
}  # fmt: skip
"""Values in the order of the metric's labels."""


def show() -> None:
    """Show them. Only a server does: in a directory, the files of many short processes would grow by each of them."""
    for metric in METRICS:
        for values in KNOWN.get(metric.name, ()):
            recorder.show(metric.name, **dict(zip(metric.labels, values, strict=True)))
