"""Shows how a proctored run goes: a live line on a terminal, plain lines elsewhere, JSON for machines.

Owns the words and when they are written. Names come out of the sandbox: none of them can move a cursor or end a line. A
reader that goes away costs the run nothing. Several threads use it: samples come from the monitor's.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol, TextIO

from ringfence.model.limits import format_size
from ringfence.model.printed import clock, counted, harmless, json_text
from ringfence.model.record import field_names, record, replace
from ringfence.model.system_text import escape_controls
from ringfence.monitor.sample import Sample
from ringfence.proctor.findings import Finding, counts
from ringfence.proctor.severity import Severity

_REDRAW_S, _TELL_S = 0.1, 1.0
"""How often usage is written: on a terminal, and as JSON."""
_MOST_TOLD = 20
"""Findings of one phase that plain lines name; all of them are in events.jsonl."""
_WARN, _PLAIN = "\x1b[33m", "\x1b[0m"
_CLEAR_REST = "\x1b[K"
_GRAVE = {"breach": "breaches", "attempt": "attempts"}


@record
class Progress:
    """How far one phase is."""

    task: str
    phase: str
    limit_s: float | None
    """None: it may take as long as it likes."""
    elapsed_s: float = 0.0
    sample: Sample | None = None
    """None: nothing was measured yet."""
    found: Mapping[str, int] = MappingProxyType({})
    """How many findings there were of each severity."""
    peak_bytes: int = 0
    """The most memory that was seen."""
    last: Finding | None = None
    """The last attempt or breach; None: there was none."""

    @property
    def grave(self) -> int:
        """How many attempts and breaches there were."""
        return sum(count for name, count in self.found.items() if name != Severity.PROBE)

    @property
    def time(self) -> str:
        limit = f" / {clock(self.limit_s)}" if self.limit_s is not None else ""
        return f"{clock(self.elapsed_s)}{limit}"

    @property
    def usage(self) -> str:
        """What it uses now; once it has ended, its processes use no memory, so the peak is shown."""
        if self.sample is None:
            return ""
        memory = self.sample.memory_bytes or self.peak_bytes
        return f"cpu {self.sample.cpu_s:.0f} s   mem {format_size(memory)}"

    @property
    def offences(self) -> str:
        """How many attempts and breaches, and the last of them; empty: none."""
        if self.last is None:
            return ""
        told = [f"{word} {self.found[name]}" for name, word in _GRAVE.items() if self.found.get(name)]
        return f"{'   '.join(told)} ({self.last.kind} {self.last.target})"


class Output:
    """A stream that may go away."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._encoding = getattr(stream, "encoding", None) or "utf-8"
        self._gone = False

    def write(self, text: str) -> None:
        if self._gone:
            return
        try:
            self._stream.write(text.encode(self._encoding, "backslashreplace").decode(self._encoding))
            self._stream.flush()
        except (OSError, ValueError):
            self._gone = True

    def columns(self) -> int:
        try:
            return os.get_terminal_size(self._stream.fileno()).columns or 80
        except (OSError, ValueError):
            return 80


class _View(Protocol):
    """One way of telling."""

    every_s: float

    def asked(self, task: str, asked: Mapping[str, Sequence[str]]) -> None: ...
    def began(self, now: Progress) -> None: ...
    def measured(self, now: Progress) -> None: ...
    def found(self, now: Progress, finding: Finding) -> None: ...
    def ended(self, now: Progress) -> None: ...
    def decided(self, verdict: Mapping[str, object], report: str) -> None: ...


class _Live:
    """One line per phase, written again and again until the phase ends."""

    every_s = _REDRAW_S

    def __init__(self, out: Output, *, colours: bool) -> None:
        self._out = out
        self._warn, self._plain = (_WARN, _PLAIN) if colours else ("", "")

    def _line(self, now: Progress) -> str:
        room = max(self._out.columns() - 1, 20)  # a line that fills the last column may move the cursor on
        parts = (f"{now.task}  {now.phase:<7}", now.time, now.usage)
        head = "   ".join(filter(None, parts))
        line = harmless("   ".join(filter(None, (head, now.offences))), room)
        tail = line[len(head) :]
        return f"{line[: len(head)]}{self._warn}{tail}{self._plain}" if tail else line

    def asked(self, task: str, asked: Mapping[str, Sequence[str]]) -> None:
        self._out.write(_asked_line(task, asked))

    def began(self, now: Progress) -> None:
        self.measured(now)

    def measured(self, now: Progress) -> None:
        self._out.write(f"\r{self._line(now)}{_CLEAR_REST}")

    def found(self, now: Progress, finding: Finding) -> None:
        self.measured(now)

    def ended(self, now: Progress) -> None:
        self._out.write(f"\r{self._line(now)}{_CLEAR_REST}\n")

    def decided(self, verdict: Mapping[str, object], report: str) -> None:
        self._out.write(_verdict_line(verdict, report))


class _Lines:
    """A line for whatever happens."""

    every_s = float("inf")

    def __init__(self, out: Output) -> None:
        self._out = out

    def _tell(self, now: Progress, text: str) -> None:
        self._out.write(escape_controls(f"{now.task} {now.phase}: {text}") + "\n")

    def asked(self, task: str, asked: Mapping[str, Sequence[str]]) -> None:
        self._out.write(_asked_line(task, asked))

    def began(self, now: Progress) -> None:
        self._tell(now, f"begins, at most {clock(now.limit_s)}" if now.limit_s is not None else "begins")

    def measured(self, now: Progress) -> None:
        pass  # the end has it

    def found(self, now: Progress, finding: Finding) -> None:
        if now.grave > _MOST_TOLD or finding.severity is Severity.PROBE:
            return
        self._tell(now, sentence(finding))
        if now.grave == _MOST_TOLD:
            self._tell(now, "more of these are not shown here; events.jsonl has them")

    def ended(self, now: Progress) -> None:
        told = counted(now.grave, "violation") if now.grave else ""
        usage = now.usage.replace("   ", ", ")
        self._tell(now, ", ".join(filter(None, (clock(now.elapsed_s), usage, told))))

    def decided(self, verdict: Mapping[str, object], report: str) -> None:
        self._out.write(_verdict_line(verdict, report))


class _Json:
    """One object a line."""

    every_s = _TELL_S

    def __init__(self, out: Output) -> None:
        self._out = out

    def _tell(self, event: str, now: Progress, **more: object) -> None:
        common = {"event": event, "task": now.task, "phase": now.phase, "elapsed_s": round(now.elapsed_s, 3)}
        self._out.write(json_text({**common, **more}, indent=None) + "\n")

    def asked(self, task: str, asked: Mapping[str, Sequence[str]]) -> None:
        self._out.write(json_text({"event": "asks", "task": task, **asked}, indent=None) + "\n")

    def began(self, now: Progress) -> None:
        self._tell("phase", now, limit_s=now.limit_s)

    def measured(self, now: Progress) -> None:
        self._tell("usage", now, **_figures(now))

    def found(self, now: Progress, finding: Finding) -> None:
        self._tell("finding", now, **{name: getattr(finding, name) for name in field_names(Finding)})

    def ended(self, now: Progress) -> None:
        self._tell("phase_end", now, **_figures(now), counts=now.found)

    def decided(self, verdict: Mapping[str, object], report: str) -> None:
        self._out.write(json_text({"event": "verdict", **verdict, "report": report}, indent=None) + "\n")


class Display:
    """Tells of one run. Every method may be called from any thread, and none raises for what a reader does."""

    def __init__(
        self,
        task: str,
        stream: TextIO | None = None,
        *,
        as_json: bool = False,
        live: bool | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """``live``: one line per phase that changes; absent: where the stream is a terminal."""
        stream = sys.stdout if stream is None else stream
        self._task, self._now = task, now
        self._view = _view(stream, as_json=as_json, live=stream.isatty() if live is None else live)
        self._lock = threading.Lock()
        self._progress: Progress | None = None
        self._began_s = self._told_s = 0.0

    def asks(self, variables: Sequence[str], hosts: Sequence[str]) -> None:
        """Before anything runs: say which variables of the caller's the task wants, and where they may be sent; say
        nothing where it wants nothing."""
        asked = {"variables": [*variables], "hosts": [*hosts]}
        if any(asked.values()):
            with self._lock:
                self._view.asked(self._task, asked)

    def phase(self, name: str, limit_s: float | None) -> None:
        """A phase begins, and the one before it has ended."""
        with self._lock:
            self._end()
            self._began_s = self._told_s = self._now()
            self._progress = Progress(task=self._task, phase=name, limit_s=limit_s, found=counts(()))
            self._view.began(self._progress)

    def usage(self, sample: Sample) -> None:
        """Take what the phase has used so far; this also keeps the clock going."""
        with self._lock:
            if self._progress is None:
                return
            peak = max(self._progress.peak_bytes, sample.memory_bytes)
            now = self._at(self._progress, sample=sample, peak_bytes=peak)
            if self._now() - self._told_s >= self._view.every_s:
                self._told_s = self._now()
                self._view.measured(now)

    def finding(self, finding: Finding) -> None:
        """Somebody in the sandbox tried something."""
        with self._lock:
            before = self._progress
            if before is None:
                return
            found = {**before.found, str(finding.severity): before.found.get(finding.severity, 0) + 1}
            last = before.last if finding.severity is Severity.PROBE else finding
            self._view.found(self._at(before, found=found, last=last), finding)

    def verdict(self, verdict: Mapping[str, object], report: str = "") -> None:
        """The run has ended with a verdict; ``report``: where the page about it lies."""
        with self._lock:
            self._end()
            self._view.decided(verdict, report)

    def close(self) -> None:
        """The run is over, also without a verdict: nothing is left half written."""
        with self._lock:
            self._end()

    def _at(self, before: Progress, **changes: object) -> Progress:
        now = replace(before, elapsed_s=self._now() - self._began_s, **changes)  # type: ignore[arg-type]
        self._progress = now
        return now

    def _end(self) -> None:
        if self._progress is not None:
            self._view.ended(self._at(self._progress))
            self._progress = None


def sentence(finding: Finding) -> str:
    """Return one finding in one line, for people; the names in it are as the guest chose them."""
    who = f" by {finding.process or 'a process'} (pid {finding.pid})" if finding.pid else ""
    result = f": {finding.result}" if finding.result else ""
    return f"{finding.severity}: {finding.kind} {finding.target}{who}{result}"


def _asked_line(task: str, asked: Mapping[str, Sequence[str]]) -> str:
    parts = [f"the {what} {', '.join(names)}" for what, names in asked.items() if names]
    return escape_controls(f"{task}: the task asks for {' and '.join(parts)}") + "\n"


def _view(stream: TextIO, *, as_json: bool, live: bool) -> _View:
    out = Output(stream)
    if as_json:
        return _Json(out)
    return _Live(out, colours=not os.environ.get("NO_COLOR")) if live else _Lines(out)


def _figures(now: Progress) -> dict[str, object]:
    if now.sample is None:
        return {}
    sample = now.sample
    return {"cpu_s": sample.cpu_s, "memory_bytes": sample.memory_bytes, "peak_memory_bytes": now.peak_bytes,
            "processes": sample.processes}  # fmt: skip


def _verdict_line(verdict: Mapping[str, object], report: str) -> str:
    told = {"pass": verdict.get("pass"), "status": verdict.get("status"), "violations": verdict.get("violations_count"),
            "reward": verdict.get("reward")}  # fmt: skip
    words = [f"{name}={str(value).lower()}" for name, value in told.items() if value is not None]
    return escape_controls(f"verdict: {' '.join(words)}{f'     {report}' if report else ''}") + "\n"
