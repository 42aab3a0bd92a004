"""Draws tables as bars, in SVG written by hand: it needs no package and reads well at any size.

A bar a contender, a line from the 10th to the 90th percentile, the median and the ratio beside it. The scale is
logarithmic where the largest is far from the smallest, and says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from xml.sax.saxutils import escape

from bench.harness import Row, Table, figure, ratio_text

WIDTH, LEFT, BAR_WIDTH = 960, 330, 430
LINE, TITLE = 26, 44
LOG_FROM = 20.0
"""Above this ratio of largest to smallest a linear bar could no longer be read."""
OURS, OTHERS = "#c2410c", "#64748b"

Scale = Callable[[float], float]


def picture(question: str, tables: tuple[Table, ...], *, foot: str) -> str:
    parts = [_text(14, 26, question, size=15, weight="bold")]
    y = 40.0
    for table in tables:
        parts += _panel(table, y)
        y += TITLE + LINE * len(table.rows)
    parts.append(_text(14, y + 20, foot, size=10, fill="#64748b"))
    size = f'width="{WIDTH}" height="{y + 34:.0f}" viewBox="0 0 {WIDTH} {y + 34:.0f}"'
    frame = f'xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif"'
    background = '<rect width="100%" height="100%" fill="#ffffff"/>'
    return f"<svg {frame}>{background}{''.join(parts)}</svg>\n"


def _panel(table: Table, top: float) -> Iterator[str]:
    scale, kind = _scale(table.rows)
    better = "more is better" if table.more_is_better else "less is better"
    yield _text(14, top + 24, table.title, size=13, weight="bold")
    yield _text(LEFT, top + 24, f"{table.unit}, {kind}, {better}; median, 10 to 90 %, ratio", size=11, fill="#64748b")
    for place, row in enumerate(table.rows):
        yield from _bar(row, scale, top + TITLE - 8 + place * LINE)


def _bar(row: Row, scale: Scale, y: float) -> Iterator[str]:
    colour = OURS if "ringfence" in row.name else OTHERS
    middle, low, high = (scale(value) for value in (row.median, row.low, row.high))
    yield _text(14, y + 13, row.name, size=12)
    yield f'<rect x="{LEFT}" y="{y:.0f}" width="{middle:.1f}" height="17" fill="{colour}"/>'
    yield (
        f'<line x1="{LEFT + low:.1f}" x2="{LEFT + high:.1f}" y1="{y + 8.5:.1f}" y2="{y + 8.5:.1f}" '
        'stroke="#0f172a" stroke-width="1.5"/>'
    )
    yield _text(LEFT + max(high, middle) + 8, y + 13, f"{figure(row.median)}  {ratio_text(row)}", size=12)


def _scale(rows: tuple[Row, ...]) -> tuple[Scale, str]:
    most = max((row.high for row in rows), default=0.0)
    least = min((row.low for row in rows if row.low > 0), default=0.0)
    if not most > 0:
        return (lambda _: 0.0), "linear scale"
    if not least or most / least < LOG_FROM:
        return (lambda value: max(value, 0.0) / most * BAR_WIDTH), "linear scale"
    start = 10 ** math.floor(math.log10(least))
    span = math.log10(most / start)
    return (lambda value: math.log10(max(value / start, 1.0)) / span * BAR_WIDTH), f"log scale from {start:g}"


def _text(x: float, y: float, text: str, *, size: int, weight: str = "normal", fill: str = "#0f172a") -> str:
    style = f'font-size="{size}" font-weight="{weight}" fill="{fill}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(text)}</text>'
