"""How every question is measured: contenders take turns in one run; medians, spread and ratios come out.

These machines are noisy, so no figure stands alone and no test asserts a time. A question is a module with a
``QUESTION`` and an ``ask(effort)`` that gives an ``Answer``; ``report`` prints and keeps it. This module knows
nothing of sandboxes.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum

Turn = Callable[[], float]
"""One turn of a contender; gives the figure."""


class Effort(IntEnum):
    """How long a question may take. A question gives its numbers for each, in this order."""

    FULL = 0
    SHORT = 1
    TINY = 2
    """One turn of each, for the tests: the figures mean nothing."""

    def pick(self, full: int, short: int, tiny: int = 1) -> int:
        return (full, short, tiny)[self]


class NotHere(Exception):
    """A contender can't take part on this machine; the text says why."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One contender's figures, in the unit of its table."""

    name: str
    median: float
    low: float
    """The 10th percentile of its turns, and in ``high`` the 90th."""
    high: float
    turns: int
    ratio: float | None = None
    """Median of the ratios of each turn to the first contender's in the same turn; absent: nothing to compare."""


@dataclass(frozen=True, kw_only=True)
class Table:
    title: str
    unit: str
    rows: tuple[Row, ...]
    more_is_better: bool = False


@dataclass(frozen=True, kw_only=True)
class Answer:
    tables: tuple[Table, ...]
    skipped: Mapping[str, str] = field(default_factory=dict)
    """Contenders that could not take part, with the reason."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Of the contenders that did."""
    findings: tuple[str, ...] = ()
    """What is not a figure: what was left behind, what was not readable."""


def take_turns(contenders: Mapping[str, Turn], *, turns: int, warm: int = 0) -> dict[str, list[float]]:
    """One turn of each, again and again, so that whatever else the machine does meets all of them.

    A single turn asks whether it works and not how long it takes, so none is made before it to warm up.
    """
    warm = warm if turns > 1 else 0
    figures: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(turns + warm):
        for name, turn in contenders.items():
            figure = turn()
            if number >= warm:
                figures[name].append(figure)
        _progress(number + 1, turns + warm)
    return figures


def timed_ms(action: Callable[[], object]) -> Turn:
    def turn() -> float:
        start = time.perf_counter()
        action()
        return (time.perf_counter() - start) * 1e3

    return turn


def compare(figures: Mapping[str, list[float]]) -> tuple[Row, ...]:
    """Rows of contenders that took turns; the first is what the others are compared with."""
    reference = next(iter(figures.values()), [])
    return tuple(_row(name, values, reference) for name, values in figures.items())


def _row(name: str, values: list[float], reference: list[float]) -> Row:
    ratios = [value / other for value, other in zip(values, reference, strict=True) if other]
    low, high = spread(values)
    ratio = statistics.median(ratios) if ratios else None
    return Row(name=name, median=statistics.median(values), low=low, high=high, turns=len(values), ratio=ratio)


def spread(values: list[float]) -> tuple[float, float]:
    """The 10th and the 90th percentile."""
    ordered = sorted(values)
    return ordered[len(ordered) // 10], ordered[-1 - len(ordered) // 10]


def race(title: str, contenders: Mapping[str, Turn], *, turns: int, warm: int = 1, unit: str = "ms") -> Table:
    return Table(title=title, unit=unit, rows=compare(take_turns(contenders, turns=turns, warm=warm)))


def figure(value: float) -> str:
    """Three places that mean something, whatever the size."""
    size = abs(value)
    places = 0 if size >= 100 or value == int(value) else 1 if size >= 10 else 2 if size >= 0.1 else 4
    return f"{value:,.{places}f}"


def ratio_text(row: Row) -> str:
    return "" if row.ratio is None else f"×{figure(row.ratio)}"


def _progress(turn: int, turns: int) -> None:
    if sys.stderr.isatty():
        print(f"\r  turn {turn} of {turns} ", end="" if turn < turns else "\r", file=sys.stderr, flush=True)
