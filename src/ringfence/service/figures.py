"""Figures of a service for Prometheus: a table of the metrics, and the counts so far.

Written by hand: a few lines of text need no further package, and no client chooses a label.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

COUNTERS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "ringfence_service_requests_total": ("requests that were answered", ("route", "status")),
    "ringfence_service_request_seconds_total": ("time that was spent on them, waiting included", ("route",)),
    "ringfence_service_runs_total": ("runs that ended", ("policy", "status")),
    "ringfence_service_run_seconds_total": ("wall time of runs", ("policy",)),
    "ringfence_service_refused_total": ("requests that were refused", ("reason",)),
    "ringfence_service_attempts_total": ("attempts on what is forbidden, as they were recorded", ("kind",)),
    "ringfence_service_boxes_parked_total": ("boxes that were closed because nobody used them", ()),
    "ringfence_service_boxes_removed_total": ("boxes that were removed because nobody used them", ()),
}
GAUGES: Mapping[str, str] = {
    "ringfence_service_sandboxes": "sandboxes that have a place now",
    "ringfence_service_sandboxes_limit": "how many may have one",
    "ringfence_service_memory_reserved_bytes": "memory that they may use together",
    "ringfence_service_memory_limit_bytes": "how much that may be",
    "ringfence_service_queue": "runs that wait",
    "ringfence_service_queue_limit": "how many may wait",
    "ringfence_service_boxes": "boxes, open or parked",
    "ringfence_service_pools": "pools that clients made",
    "ringfence_service_draining": "1: it is ending and takes nothing new",
}


class Figures:
    """The counts of one service; for the event loop alone."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, tuple[str, ...]]] = Counter()

    def add(self, name: str, *labels: str, amount: float = 1) -> None:
        self._counts[name, labels] += amount  # type: ignore[assignment]

    def of(self, name: str, *labels: str) -> float:
        return self._counts[name, labels]

    def text(self, gauges: Mapping[str, float]) -> str:
        """All of them."""
        lines: list[str] = []
        for name, (help_line, labels) in COUNTERS.items():
            lines += [f"# HELP {name} {help_line}", f"# TYPE {name} counter"]
            found = sorted((values, count) for (each, values), count in self._counts.items() if each == name)
            lines += [f"{name}{_labels(labels, values)} {count:g}" for values, count in found]
        for name, help_line in GAUGES.items():
            lines += [f"# HELP {name} {help_line}", f"# TYPE {name} gauge", f"{name} {gauges.get(name, 0):g}"]
        return "\n".join(lines) + "\n"


def _labels(names: Iterable[str], values: Iterable[str]) -> str:
    pairs = ",".join(f'{name}="{_escaped(value)}"' for name, value in zip(names, values, strict=True))
    return f"{{{pairs}}}" if pairs else ""


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
