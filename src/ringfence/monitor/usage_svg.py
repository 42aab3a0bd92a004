"""A recorded run as an SVG picture, written by hand: it needs no package and reads well at any size."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from ringfence.model.printed import squeezed
from ringfence.monitor.usage_curves import Curve, clock_of, curves_of, duration_s, title
from ringfence.monitor.usage_log import RecordedRun

WIDTH, LEFT, RIGHT, PANEL, HEIGHT = 960, 110, 24, 150, 96
LINE, AREA, FAINT, DARK = "#c2410c", "#fed7aa", "#64748b", "#0f172a"


def picture(run: RecordedRun, heading: str = "") -> str:
    """Return it under a heading; without one that is the command and how it ended."""
    curves = curves_of(run)
    height = 60 + PANEL * len(curves)
    parts = [_text(14, 28, heading or title(run), size=15, weight="bold")]
    for place, curve in enumerate(curves):
        parts += _panel(run, curve, 50 + PANEL * place)
    frame = f'width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif"'
    background = '<rect width="100%" height="100%" fill="#ffffff"/>'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {frame}>{background}{"".join(parts)}</svg>\n'


def _panel(run: RecordedRun, curve: Curve, top: float) -> Iterator[str]:
    values = curve.values(run.samples)
    most = max(values, default=0.0)
    floor, right = top + 16 + HEIGHT, WIDTH - RIGHT
    yield _text(14, top + 30, curve.name, size=13, weight="bold")
    yield _text(14, top + 48, f"at most {curve.words(most)}", size=11, fill=FAINT)
    yield f'<line x1="{LEFT}" x2="{right}" y1="{floor}" y2="{floor}" stroke="{FAINT}" stroke-width="1"/>'
    yield _text(LEFT, floor + 14, "0", size=10, fill=FAINT)
    yield _text(right - 40, floor + 14, clock_of(run), size=10, fill=FAINT)
    if values and most > 0:
        points = _points(run, values, most, floor)
        yield f'<polygon points="{LEFT},{floor} {points} {right},{floor}" fill="{AREA}"/>'
        yield f'<polyline points="{points}" fill="none" stroke="{LINE}" stroke-width="1.5"/>'


def _points(run: RecordedRun, values: list[float], most: float, floor: float) -> str:
    whole_s = duration_s(run) or 1.0
    across = WIDTH - RIGHT - LEFT
    # No more points than there are places for them, each with the highest value of those that share it.
    times, heights = (squeezed(row, WIDTH) for row in ([sample.time_s for sample in run.samples], values))
    places = (LEFT + time_s / whole_s * across for time_s in times)
    return " ".join(f"{x:.1f},{floor - value / most * HEIGHT:.1f}" for x, value in zip(places, heights, strict=True))


def _text(x: float, y: float, text: str, *, size: int, weight: str = "normal", fill: str = DARK) -> str:
    style = f'font-size="{size}" font-weight="{weight}" fill="{fill}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(text, quote=False)}</text>'
