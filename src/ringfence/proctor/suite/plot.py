"""Scores and costs of a suite as an SVG picture, written by hand: it needs no package and no network."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from html import escape

from ringfence.model.limits import format_size
from ringfence.model.printed import harmless
from ringfence.model.record import record
from ringfence.proctor.suite.results import Row

WIDTH, LEFT, RIGHT, TOP, LINE = 960, 220, 24, 84, 18
MOST_ROWS = 500
"""More than these are not drawn; the table has them."""
DARK, FAINT, RULE = "#0f172a", "#64748b", "#e2e8f0"
COLOURS = {"pass": "#15803d", "fail": "#b45309", "compromised": "#b91c1c"}
_NAME_CHARS, _GAP = 30, 18


@record
class _Column:
    """One measure, as a bar for each task."""

    name: str
    value: Callable[[Row], float]
    words: Callable[[float], str]


_COLUMNS = (
    _Column(name="score", value=lambda row: max(0.0, row.score), words=lambda value: f"{value:g}"),
    _Column(name="processor time", value=lambda row: row.cost.cpu_s, words=lambda value: f"{value:.1f} s"),
    _Column(name="wall time", value=lambda row: row.cost.wall_s, words=lambda value: f"{value:.1f} s"),
    _Column(name="memory", value=lambda row: row.cost.memory_bytes, words=lambda value: format_size(int(value))),
    _Column(name="egress", value=lambda row: row.cost.egress_bytes, words=lambda value: format_size(int(value))),
)


def picture(rows: Sequence[Row], heading: str) -> str:
    """A line for each task, a column for each measure, and the colour of how it ended."""
    drawn = rows[:MOST_ROWS]
    height = TOP + LINE * len(drawn) + 24
    parts = [_text(14, 28, harmless(heading, 110), size=15, weight="bold"), *_legend(), *_columns(drawn)]
    parts += [_text(14, TOP + LINE * place + 12, harmless(row.id, _NAME_CHARS)) for place, row in enumerate(drawn)]
    if len(rows) > len(drawn):
        parts.append(_text(14, height - 8, f"and {len(rows) - len(drawn)} more", fill=FAINT))
    frame = f'width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif"'
    background = '<rect width="100%" height="100%" fill="#ffffff"/>'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {frame}>{background}{"".join(parts)}</svg>\n'


def _legend() -> Iterator[str]:
    for place, (word, colour) in enumerate({**COLOURS, "no verdict": FAINT}.items()):
        x = 14 + 120 * place
        yield f'<rect x="{x}" y="42" width="10" height="10" fill="{colour}"/>'
        yield _text(x + 16, 51, word, fill=FAINT)


def _columns(rows: Sequence[Row]) -> Iterator[str]:
    each = (WIDTH - LEFT - RIGHT) / len(_COLUMNS)
    for place, column in enumerate(_COLUMNS):
        left, room = LEFT + each * place, each - _GAP
        values = [column.value(row) for row in rows]
        most = max(values, default=0.0)
        yield _text(left, TOP - 14, column.name, weight="bold")
        yield _text(left + room, TOP - 14, f"≤ {column.words(most)}", fill=FAINT, anchor="end")
        yield f'<line x1="{left:.1f}" x2="{left:.1f}" y1="{TOP - 6}" y2="{TOP + LINE * len(rows)}" stroke="{RULE}"/>'
        for number, (row, value) in enumerate(zip(rows, values, strict=True)):
            length = room * value / most if most > 0 else 0.0
            colour = COLOURS.get(row.word, FAINT)
            y = TOP + LINE * number
            yield f'<rect x="{left:.1f}" y="{y + 2}" width="{length:.1f}" height="{LINE - 6}" fill="{colour}"/>'


def _text(
    x: float, y: float, text: str, *, size: int = 11, weight: str = "normal", fill: str = DARK, anchor: str = "start"
) -> str:
    style = f'font-size="{size}" font-weight="{weight}" fill="{fill}" text-anchor="{anchor}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(text, quote=False)}</text>'
