"""Every metric as data: name, kind, labels and meaning. Dashboards and alert rules are checked against it."""

from __future__ import annotations

from ringfence.model.record import record

COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)


@record
class Metric:
    """Describes one metric. A counter's name ends in ``_total``."""

    name: str
    kind: str
    help: str
    labels: tuple[str, ...] = ()
    across: str = "livesum"
    """How a gauge is combined if several processes report it."""

    @property
    def series(self) -> tuple[str, ...]:
        """The names under which Prometheus finds it."""
        if self.kind == HISTOGRAM:
            return (f"{self.name}_bucket", f"{self.name}_sum", f"{self.name}_count")
        return (self.name,)


def _counter(name: str, help: str, *labels: str) -> Metric:
    return Metric(name=name, kind=COUNTER, help=help, labels=labels)


def _gauge(name: str, help: str, *labels: str, across: str = "livesum") -> Metric:
    return Metric(name=name, kind=GAUGE, help=help, labels=labels, across=across)


def _histogram(name: str, help: str, *labels: str) -> Metric:
    return Metric(name=name, kind=HISTOGRAM, help=help, labels=labels)


METRICS: tuple[Metric, ...] = (
    _gauge("active_containers", "sandboxes that run now, warm containers included", "isolation"),
    _gauge("container_memory_usage_bytes", "memory that the containers use"),
    _gauge("container_cpu_usage_percent", "processor use of the containers; 100 is one core"),
    _counter("executions_total", "jobs and strategies that ended", "isolation", "status"),
    _histogram("execution_duration_seconds", "from the start of the program to its end", "isolation"),
    _histogram("start_latency_seconds", "from the call to the start of the program", "isolation"),
    _counter("execution_timeout_total", "ended because their time was over", "isolation"),
    _histogram("execution_timeout_duration_seconds", "how long those ran", "isolation"),
    _counter("resource_limit_exceeded_total", "jobs that reached a limit, whether or not it ended them, by limit",
             "isolation", "resource"),
    _counter("security_rejections_total", "code that the validator refused, by what was wrong", "reason"),
    _counter("docker_fallback_total", "strategies sent to fallback_level because there was no engine", "level"),
    _counter("container_creation_failed_total", "containers that could not be made", "reason"),
    _counter("container_cleanup_total", "containers that were to be removed", "success"),
    _gauge("orphaned_containers", "containers that could not be removed yet"),
    _gauge("orphaned_containers_alert", "1: more of them than alert_on_orphaned_containers", across="livemax"),
)  # fmt: skip
