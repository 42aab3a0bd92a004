"""A recorded run as a PNG picture: the same panels as the SVG, for places that show nothing else."""

from __future__ import annotations

from ringfence.cli.png import Canvas
from ringfence.monitor.usage_curves import Curve, clock_of, curves_of, duration_s, title
from ringfence.monitor.usage_log import RecordedRun

WIDTH, LEFT, RIGHT, PANEL, HEIGHT = 960, 190, 24, 150, 96
LINE, AREA, FAINT, DARK = (194, 65, 12), (254, 215, 170), (100, 116, 139), (15, 23, 42)
_TITLE_LETTERS = 70


def picture(run: RecordedRun) -> bytes:
    curves = curves_of(run)
    canvas = Canvas(WIDTH, 60 + PANEL * len(curves))
    canvas.text(14, 16, title(run, _TITLE_LETTERS), DARK)
    for place, curve in enumerate(curves):
        _panel(canvas, run, curve, 50 + PANEL * place)
    return canvas.png()


def _panel(canvas: Canvas, run: RecordedRun, curve: Curve, top: int) -> None:
    values = curve.values(run.samples)
    most = max(values, default=0.0)
    floor, across = top + 16 + HEIGHT, WIDTH - LEFT - RIGHT
    canvas.text(14, top + 20, curve.name, DARK)
    canvas.text(14, top + 40, f"max {curve.words(most)}", FAINT)
    if values and most > 0:
        for column, value in enumerate(_columns(run, values, across)):
            height = round(value / most * HEIGHT)
            canvas.fill(LEFT + column, floor - height, 1, height, AREA)
            canvas.fill(LEFT + column, floor - height - 1, 1, 2, LINE)
    canvas.fill(LEFT, floor, across, 1, FAINT)
    canvas.text(LEFT, floor + 6, "0", FAINT)
    canvas.text(LEFT + across - 8 * len(clock_of(run)), floor + 6, clock_of(run), FAINT)


def _columns(run: RecordedRun, values: list[float], across: int) -> list[float]:
    """The value in each column of the picture: the last sample up to that moment, or a larger one within it."""
    whole_s = duration_s(run) or 1.0
    columns = [0.0] * across
    place = 0
    for column in range(across):
        begin = place
        while place + 1 < len(values) and run.samples[place + 1].time_s <= (column + 1) / across * whole_s:
            place += 1
        columns[column] = max(values[begin + (place > begin) : place + 1])
    return columns
