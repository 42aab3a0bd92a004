"""Which limits a sandbox has passed, judged from its samples. It judges; it ends nothing."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ringfence.errors import UsageError
from ringfence.model.record import record
from ringfence.monitor.limits import ResourceLimits, is_figure, shown_figure
from ringfence.monitor.sample import Sample, Window

MIB, KIB = 2**20, 2**10


@record
class Violation:
    """A limit that was passed; it stays passed."""

    name: str
    """The field of ``ResourceLimits``."""
    limit: float
    measured: float
    """The most that was measured, in the limit's unit."""
    since: float
    """Seconds from the beginning of monitoring to when it was first over; for a mean, when its window begins."""
    text: str

    def __str__(self) -> str:
        return self.text


@record
class _Rule:
    field: str
    measured: str
    """The field of a sample."""
    unit: float
    words: str


RULES: tuple[_Rule, ...] = (
    _Rule(field="max_cpu_percent", measured="cpu_percent", unit=1, words="cpu: {0:.0f} % of a core{2}, limit {1} %"),
    _Rule(field="max_memory_mb", measured="memory_bytes", unit=MIB, words="memory: {0:.1f} MB{2}, limit {1} MB"),
    _Rule(field="max_disk_mb", measured="written_bytes", unit=MIB, words="disk: {0:.1f} MB written{2}, limit {1} MB"),
    _Rule(field="max_network_kb", measured="network_bytes", unit=KIB, words="network: {0:.1f} KB{2}, limit {1} KB"),
    _Rule(field="max_execution_time", measured="time_s", unit=1, words="time: {0:.1f} s{2}, limit {1} s"),
    _Rule(field="max_file_operations", measured="operations", unit=1, words="file operations: {0:.0f}{2}, limit {1}"),
)
RISE_AND_FALL = frozenset({"cpu_percent", "memory_bytes"})
"""Fields judged by their mean if they must be over for some time; the others only grow."""

OVER_FOR_S: Mapping[str, float] = MappingProxyType({"max_cpu_percent": 10.0})
"""How long a field must be over before that is a violation; 0 for fields not named here."""


def checked_times(over_for_s: Mapping[str, float]) -> dict[str, float]:
    known = [rule.field for rule in RULES]
    for name, seconds in over_for_s.items():
        if name not in known:
            raise UsageError(f"there is no limit {name!r}", hint=f"one of {', '.join(known)}")
        if not is_figure(seconds):
            raise UsageError(f"{name}: {shown_figure(seconds)} must be a number of seconds, 0 or more")
    return {**OVER_FOR_S, **over_for_s}


class Judge:
    """Compares one sandbox with its limits, and remembers which it passed."""

    def __init__(self, limits: ResourceLimits, over_for_s: Mapping[str, float]) -> None:
        self.violations: dict[str, Violation] = {}
        self._limits = {rule.field: float(getattr(limits, rule.field)) for rule in RULES}
        self._windows: list[tuple[_Rule, float, float, Window]] = []
        self._plain: list[tuple[int, float, _Rule, float]] = []
        for rule in RULES:
            limit, seconds = self._limits[rule.field], over_for_s.get(rule.field, 0.0)
            if seconds and rule.measured in RISE_AND_FALL:
                self._windows.append((rule, limit, seconds, Window(seconds)))
            else:
                self._plain.append((Sample._fields.index(rule.measured), limit * rule.unit, rule, seconds))
        self._first_over_s: dict[str, float] = {}
        self._byte_seconds = 0.0
        self._last_s = 0.0

    def judge(self, sample: Sample) -> list[Violation]:
        """Return the new violations."""
        new: list[Violation] = []
        for place, most, rule, seconds in self._plain:
            if sample[place] > most:
                new += self._over(rule, sample[place], sample.time_s, seconds)
        if self._windows:
            self._byte_seconds += sample.memory_bytes * (sample.time_s - self._last_s)
            self._last_s = sample.time_s
            for rule, limit, seconds, window in self._windows:
                total = sample.cpu_s * 100 if rule.measured == "cpu_percent" else self._byte_seconds
                mean = window.mean(sample.time_s, total)
                if mean is not None and mean > limit * rule.unit:
                    new += self._note(rule, mean, sample.time_s - seconds, seconds)
        return new

    def _over(self, rule: _Rule, measured: float, time_s: float, seconds: float) -> list[Violation]:
        since = self._first_over_s.setdefault(rule.field, time_s)
        return self._note(rule, measured, since, seconds) if time_s - since >= seconds else []

    def _note(self, rule: _Rule, measured: float, since: float, seconds: float) -> list[Violation]:
        known = self.violations.get(rule.field)
        shown = measured / rule.unit
        if known is not None and known.measured >= shown:
            return []
        over = f" over {seconds:g} s" if seconds else ""
        limit = self._limits[rule.field]
        text = rule.words.format(shown, f"{limit:.12g}", over)
        since = since if known is None else known.since
        noted = Violation(name=rule.field, limit=limit, measured=shown, since=since, text=text)
        self.violations[rule.field] = noted
        return [noted] if known is None else []
