"""The results of a suite as a table of text, for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from ringfence.model.limits import format_size
from ringfence.model.printed import clock, harmless
from ringfence.proctor.suite.results import Row, summary_of

_HEADS = ("task", "result", "score", "wall", "cpu", "memory", "egress")
_NAME_CHARS, _WORD_CHARS = 50, 60


def table(rows: Sequence[Row]) -> str:
    """A line for each task, and one for all of them."""
    lines = [_HEADS, *map(_cells, rows)]
    widths = [max(len(line[place]) for line in lines) for place in range(len(_HEADS))]
    drawn = ["  ".join(_padded(line, widths)).rstrip() for line in lines]
    return "\n".join([*drawn, "", _sum(rows), ""])


def _cells(row: Row) -> tuple[str, ...]:
    name = harmless(row.id, _NAME_CHARS)
    if not row.has_verdict:
        return (name, harmless(f"{row.word}: {row.error}" if row.error else row.word, _WORD_CHARS), *("",) * 5)
    cost = row.cost
    return (name, row.word, f"{row.score:g}", clock(cost.wall_s), f"{cost.cpu_s:.1f} s", format_size(cost.memory_bytes),
            format_size(cost.egress_bytes))  # fmt: skip


def _padded(line: Sequence[str], widths: Sequence[int]) -> list[str]:
    """Words to the left, figures to the right."""
    cells = enumerate(zip(line, widths, strict=True))
    return [text.ljust(width) if place < 2 else text.rjust(width) for place, (text, width) in cells]


def _sum(rows: Sequence[Row]) -> str:
    told = summary_of(rows)
    without = f", {told['without_verdict']} without a verdict" if told["without_verdict"] else ""
    counts = f"{told['passed']} passed, {told['failed']} failed, {told['compromised']} compromised{without}"
    return f"{told['tasks']} tasks: {counts}; mean score {told['mean_score']:.3f}"
