"""Where figures are counted: ``enable`` loads ``prometheus_client``; before that every call returns at once.

With a directory, each process keeps its figures in files there, and ``ringfence metrics serve`` adds them up; without,
they stay in this process, for a program that serves them itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from ringfence.errors import UnavailableError, hint_for_extra
from ringfence.metrics.table import COUNTER, GAUGE, METRICS, SECONDS, Metric
from ringfence.model.own_files import make_private
from ringfence.model.ways.walk import absolute

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    from prometheus_client import CollectorRegistry

    class _Child(Protocol):
        def inc(self, amount: float = 1) -> None: ...
        def observe(self, amount: float) -> None: ...
        def set(self, value: float) -> None: ...

VARIABLE = "RINGFENCE_METRICS"
"""The directory of all processes that are to be counted, or ``on`` for this process alone."""
_ON_WORDS = frozenset({"on", "1", "true"})
_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
_made: dict[str, object] = {}
_registry: list[CollectorRegistry] = []


def enable(folder: str = "") -> None:
    """Count from now on. A second call changes nothing; ``RINGFENCE_METRICS`` has the same effect at the first run."""
    if _made:
        return
    named = folder or os.environ.get(VARIABLE, "")
    if named and named.lower() not in _ON_WORDS:
        make_private(absolute(named))
        os.environ[_FOLDER] = absolute(named)  # the library reads it when it is loaded
    registry = _new_registry()
    _made.update({metric.name: _make(metric, registry) for metric in METRICS})
    _registry.append(registry)


def switch_on_if_asked() -> None:
    """Enable it if the environment says so."""
    if not _made and os.environ.get(VARIABLE):
        enable()


def _new_registry() -> CollectorRegistry:
    try:
        from prometheus_client import CollectorRegistry
    except ImportError as error:
        raise UnavailableError("metrics need the package prometheus-client", missing=("prometheus_client",),
                               fixes=(hint_for_extra("metrics"),)) from error  # fmt: skip
    return CollectorRegistry()


def _make(metric: Metric, registry: CollectorRegistry) -> object:
    from prometheus_client import Counter, Gauge, Histogram

    if metric.kind == COUNTER:
        return Counter(metric.name, metric.help, metric.labels, registry=registry)
    if metric.kind == GAUGE:
        return Gauge(metric.name, metric.help, metric.labels, registry=registry,
                     multiprocess_mode=metric.across)  # type: ignore[arg-type]  # fmt: skip
    return Histogram(metric.name, metric.help, metric.labels, registry=registry, buckets=SECONDS)


def registry() -> CollectorRegistry:
    """What a server shows: of this process, or of all that use the directory."""
    from prometheus_client import CollectorRegistry, multiprocess

    enable()
    if _FOLDER not in os.environ:
        return _registry[0]
    shown = CollectorRegistry()
    multiprocess.MultiProcessCollector(shown)  # type: ignore[no-untyped-call]
    return shown


def add(name: str, amount: float = 1, **labels: str) -> None:
    if _made:
        _child(name, labels).inc(amount)


def set_to(name: str, value: float, **labels: str) -> None:
    if _made:
        _child(name, labels).set(value)


def observe(name: str, value: float, **labels: str) -> None:
    if _made:
        _child(name, labels).observe(value)


def show(name: str, **labels: str) -> None:
    """Show a series with 0, before anything is counted in it."""
    if _made:
        _child(name, labels)


def _child(name: str, labels: dict[str, str]) -> _Child:
    found = _made[name]
    return found.labels(**labels) if labels else found  # type: ignore[attr-defined, return-value]


def value(name: str, **labels: str) -> float:
    """What is counted so far, of this process; 0 where nothing was. For tests and for people."""
    found: Callable[..., float | None] = _registry[0].get_sample_value
    return found(name, labels) or 0.0
