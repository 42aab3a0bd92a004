"""Shows how a suite's run goes: a bar on a terminal, a line for each task elsewhere, JSON for machines.

Names come from others: none of them can move a cursor or end a line. A reader that goes away costs the run nothing.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import Protocol, TextIO

from ringfence.model.limits import format_size
from ringfence.model.printed import clock, harmless, json_text
from ringfence.model.record import record, replace
from ringfence.model.system_text import escape_controls
from ringfence.proctor.display import Display, Output
from ringfence.proctor.suite.results import Row, as_dict

_REDRAW_S = 0.25
_BAR_CHARS = 20
_CLEAR_REST = "\x1b[K"


@record
class Count:
    """How far a suite is."""

    total: int
    slots: int
    done: int = 0
    reused: int = 0
    passed: int = 0
    compromised: int = 0
    without_verdict: int = 0
    elapsed_s: float = 0.0

    @property
    def running(self) -> int:
        return min(self.slots, self.total - self.done)

    @property
    def left_s(self) -> float | None:
        """How long the rest takes if it goes on like this; None: nobody knows yet."""
        worked = self.done - self.reused
        return self.elapsed_s / worked * (self.total - self.done) if worked > 0 else None

    def with_row(self, row: Row) -> Count:
        return replace(
            self, done=self.done + 1, reused=self.reused + row.reused,
            passed=self.passed + (row.passed and row.status == "clean"),
            compromised=self.compromised + (row.status == "compromised"),
            without_verdict=self.without_verdict + (not row.has_verdict),
        )  # fmt: skip


def bar(now: Count, width: int) -> str:
    """One line of at most this many characters."""
    full = _BAR_CHARS * now.done // now.total if now.total else _BAR_CHARS
    left = "" if now.left_s is None else f"   left {clock(now.left_s)}"
    without = f"   without a verdict {now.without_verdict}" if now.without_verdict else ""
    told = f"passed {now.passed}   compromised {now.compromised}{without}"
    line = f"[{'#' * full}{'.' * (_BAR_CHARS - full)}] {now.done}/{now.total}   running {now.running}   {told}{left}"
    return harmless(line, width)


def sentence(row: Row) -> str:
    """How one task ended, for people."""
    if not row.has_verdict:
        return f"{row.id}: {row.word}: {row.error}" if row.error else f"{row.id}: {row.word}"
    reward = "" if row.reward is None else f", reward {row.reward:g}"
    again = ", done before" if row.reused else ""
    cost = row.cost
    used = f"{clock(cost.wall_s)}, cpu {cost.cpu_s:.1f} s, mem {format_size(cost.memory_bytes)}"
    violated = f", violations {row.violations}" if row.violations else ""
    return f"{row.id}: {row.word}{reward}{violated}, {used}{again}"


class _View(Protocol):
    """One way of telling."""

    def began(self, now: Count) -> None: ...
    def waiting(self, now: Count) -> None: ...
    def ended(self, now: Count, row: Row) -> None: ...
    def again(self, now: Count, row: Row) -> None: ...
    def closed(self, now: Count) -> None: ...


class _Live:
    """One line that changes; a task without a verdict gets a line of its own above it."""

    def __init__(self, out: Output) -> None:
        self._out = out

    def waiting(self, now: Count) -> None:
        self._out.write(f"\r{bar(now, max(self._out.columns() - 1, 20))}{_CLEAR_REST}")

    began = waiting

    def ended(self, now: Count, row: Row) -> None:
        if not row.has_verdict:
            self._out.write(f"\r{escape_controls(sentence(row))}{_CLEAR_REST}\n")
        self.waiting(now)

    def again(self, now: Count, row: Row) -> None:
        self._out.write(f"\r{escape_controls(sentence(row))}; once more{_CLEAR_REST}\n")
        self.waiting(now)

    def closed(self, now: Count) -> None:
        self.waiting(now)
        self._out.write("\n")


class _Lines:
    """A line for whatever ends."""

    def __init__(self, out: Output) -> None:
        self._out = out

    def _tell(self, now: Count, text: str) -> None:
        self._out.write(f"{now.done}/{now.total} {escape_controls(text)}\n")

    def began(self, now: Count) -> None:
        self._tell(now, f"at most {now.slots} at once")

    def waiting(self, now: Count) -> None:
        pass  # the end has it

    def ended(self, now: Count, row: Row) -> None:
        self._tell(now, sentence(row))

    def again(self, now: Count, row: Row) -> None:
        self._tell(now, f"{sentence(row)}; once more")

    def closed(self, now: Count) -> None:
        pass


class _Json:
    """One object a line."""

    def __init__(self, out: Output) -> None:
        self._out = out

    def _tell(self, event: str, now: Count, **more: object) -> None:
        common = {"event": event, "done": now.done, "total": now.total, "elapsed_s": round(now.elapsed_s, 3)}
        self._out.write(json_text({**common, **more}, indent=None) + "\n")

    def began(self, now: Count) -> None:
        self._tell("suite", now, slots=now.slots)

    def waiting(self, now: Count) -> None:
        pass

    def ended(self, now: Count, row: Row) -> None:
        self._tell("result", now, **as_dict(row))

    def again(self, now: Count, row: Row) -> None:
        self._tell("retry", now, **as_dict(row))

    def closed(self, now: Count) -> None:
        pass


class SuiteProgress:
    """Tells of one suite."""

    def __init__(
        self, stream: TextIO | None = None, *, as_json: bool = False, live: bool | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        """``live``: a bar; absent: where the stream is a terminal."""
        stream = sys.stdout if stream is None else stream
        self._stream, self._as_json = stream, as_json
        out, is_live = Output(stream), stream.isatty() if live is None else live
        self._view: _View = _Json(out) if as_json else _Live(out) if is_live else _Lines(out)
        self._now = now
        self._began_s = self._drawn_s = now()
        self._count = Count(total=0, slots=0)

    def asks(self, suite: str, variables: Sequence[str], hosts: Sequence[str]) -> None:
        """Before anything runs: say which variables of the caller's the tasks want, and where these may be sent."""
        Display(suite, self._stream, as_json=self._as_json, live=False).asks(variables, hosts)

    def begin(self, total: int, slots: int) -> None:
        self._began_s = self._now()
        self._count = Count(total=total, slots=slots)
        self._view.began(self._count)

    def wait(self) -> None:
        """Nothing has happened; the clock goes on."""
        if self._count.total and self._now() - self._drawn_s >= _REDRAW_S:
            self._drawn_s = self._now()
            self._view.waiting(self._at())

    def end(self, row: Row) -> None:
        self._count = self._count.with_row(row)
        self._view.ended(self._at(), row)

    def again(self, row: Row) -> None:
        """It had no verdict, and is tried once more."""
        self._view.again(self._at(), row)

    def close(self) -> None:
        if self._count.total:
            self._view.closed(self._at())

    def _at(self) -> Count:
        self._count = replace(self._count, elapsed_s=self._now() - self._began_s)
        return self._count
