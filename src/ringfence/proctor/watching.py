"""Watches a running phase: samples for the report's plot, and everything for the display."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ringfence.backends.contract import Visit
from ringfence.engine.streams import Streams
from ringfence.engine.supervision import Attach
from ringfence.model.events import Event, OnEvent
from ringfence.monitor.limits import ResourceLimits
from ringfence.monitor.resource_monitor import ResourceMonitor
from ringfence.monitor.sample import History, Sample
from ringfence.monitor.usage_log import RecordedRun
from ringfence.proctor.display import Display
from ringfence.proctor.findings import Finding, Follower
from ringfence.proctor.severity import Severity
from ringfence.proctor.task import Task

_INTERVAL_S, _MOST_SAMPLES = 0.25, 2000
MOST_GRAVE = 200
"""Attempts and breaches after which a phase is ended: the recorder gives no details of further ones."""
_SIGKILL = 9


class Watching:
    """The watch over one run; each phase is watched on its own."""

    def __init__(self, task: Task, display: Display | None) -> None:
        self._task, self._display = task, display
        self.recorded: list[RecordedRun] = []
        """One for each phase that has ended."""

    def tell(self, findings: Sequence[Finding]) -> None:
        """Show what was found before anything ran."""
        if self._display is not None and findings:
            self._display.phase("submission", None)
            for finding in findings:
                self._display.finding(finding)

    @contextmanager
    def phase(self, name: str, limit_s: float) -> Iterator[tuple[OnEvent, Attach]]:
        """The phase's runner calls these two."""
        samples, follower, grave = History(_MOST_SAMPLES), Follower(self._task.policy), Grave()
        if self._display is not None:
            self._display.phase(name, limit_s)

        def note(_: str, sample: Sample) -> None:
            samples.add(sample)
            if self._display is not None:
                self._display.usage(sample)

        def tell(event: Event) -> None:
            finding = follower.take(event)
            grave.count(finding)
            if self._display is not None and finding is not None:
                self._display.finding(finding)

        with ResourceMonitor(interval_s=_INTERVAL_S, deep_every_s=0.0, on_sample=note) as monitor:

            def attach(visit: Visit, _: Streams) -> None:
                grave.visit = visit
                monitor.start_monitoring(name, ResourceLimits(), visit.source())

            yield tell, attach
        self.recorded.append(RecordedRun(about={"phase": name}, samples=tuple(samples.samples())))


class Grave:
    """Counts attempts and breaches of one phase, and ends it if they become a flood."""

    def __init__(self) -> None:
        self.visit: Visit | None = None
        self._left = MOST_GRAVE

    def count(self, finding: Finding | None) -> None:
        if finding is None or finding.severity is Severity.PROBE:
            return
        self._left -= 1
        if not self._left and self.visit is not None:
            self.visit.signal(_SIGKILL)
