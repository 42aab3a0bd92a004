"""The curves of a recorded run: what is drawn, in which unit, and how the ends are labelled."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ringfence.model.limits import format_size
from ringfence.model.printed import clock, harmless
from ringfence.model.record import record
from ringfence.monitor.sample import Sample
from ringfence.monitor.usage_log import RecordedRun


def _percent(value: float) -> str:
    return f"{value:.0f} %"


def _bytes(value: float) -> str:
    return format_size(int(value))


def _count(value: float) -> str:
    return f"{value:.0f}"


@record
class Curve:
    """One panel of the picture, one line of the text."""

    name: str
    field: str
    words: Callable[[float], str]
    always: bool = True
    """Otherwise it is drawn only if there is something to see."""

    def values(self, samples: Sequence[Sample]) -> list[float]:
        return [float(getattr(sample, self.field)) for sample in samples]


CURVES: tuple[Curve, ...] = (
    Curve(name="cpu", field="cpu_percent", words=_percent),
    Curve(name="memory", field="memory_bytes", words=_bytes),
    Curve(name="written", field="written_bytes", words=_bytes),
    Curve(name="processes", field="processes", words=_count),
    Curve(name="network", field="network_bytes", words=_bytes, always=False),
)


def curves_of(run: RecordedRun) -> list[Curve]:
    return [curve for curve in CURVES if curve.always or any(curve.values(run.samples))]


def title(run: RecordedRun, width: int = 100) -> str:
    """The command, how it ended and how long it took."""
    command = run.about.get("command")
    words = " ".join(map(str, command)) if isinstance(command, list) else "?"
    return f"{harmless(words, width)}  ·  {_ending(run)}  ·  {clock_of(run)}"


def _ending(run: RecordedRun) -> str:
    if "status" not in run.end:
        return "the recording was interrupted"
    return harmless(f"{run.end['status']} (rc {run.end.get('rc')})", 60)


def clock_of(run: RecordedRun) -> str:
    seconds = duration_s(run)
    return f"{seconds:.1f} s" if seconds < 60 else clock(seconds)


def duration_s(run: RecordedRun) -> float:
    return run.samples[-1].time_s if run.samples else 0.0
