"""How every question is measured: contenders take turns in one run; medians, spread and ratios come out.

These machines are noisy, so no figure stands alone and no test asserts a time. Each question leaves a
JSON file with the environment it was measured in, and a picture.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One contender's figures, in milliseconds."""

    name: str
    median_ms: float
    low_ms: float
    high_ms: float
    ratio: float
    """Median of the ratios of each turn to the first contender's in the same turn."""


def measure(contenders: Mapping[str, Callable[[], object]], *, turns: int, warm: int = 2) -> list[Row]:
    """Let the contenders take turns; the first is what the others are compared with."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(turns + warm):
        for name, action in contenders.items():
            start = time.perf_counter()
            action()
            if turn >= warm:
                times[name].append((time.perf_counter() - start) * 1e3)
        _progress(turn + 1, turns + warm)
    return compare(times)


def compare(times_ms: Mapping[str, list[float]]) -> list[Row]:
    """Figures of contenders that took turns; the first is what the others are compared with."""
    reference = next(iter(times_ms.values()))
    return [_row(name, values, reference) for name, values in times_ms.items()]


def _row(name: str, values: list[float], reference: list[float]) -> Row:
    ratios = [value / other for value, other in zip(values, reference, strict=True)]
    ordered = sorted(values)
    return Row(
        name=name,
        median_ms=statistics.median(values),
        low_ms=ordered[len(ordered) // 10],
        high_ms=ordered[-1 - len(ordered) // 10],
        ratio=statistics.median(ratios),
    )


def _progress(turn: int, turns: int) -> None:
    if sys.stderr.isatty():
        print(f"\r  turn {turn} of {turns} ", end="" if turn < turns else "\r", file=sys.stderr, flush=True)


def environment() -> dict[str, object]:
    return {
        "python": sys.version.split()[0],
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "uid": os.geteuid(),
        "time": time.strftime("%Y-%m-%d %H:%M:%S"),
    }


def report(name: str, question: str, rows: list[Row]) -> None:
    """Print the table, write the JSON and the picture."""
    print(f"\n{question}")
    print(f"  {'':<44} {'median':>10} {'10 %':>10} {'90 %':>10} {'ratio':>8}")
    for row in rows:
        figures = f"{row.median_ms:>8.1f}ms {row.low_ms:>8.1f}ms {row.high_ms:>8.1f}ms {row.ratio:>8.2f}"
        print(f"  {row.name:<44} {figures}")
    RESULTS.mkdir(exist_ok=True)
    data = {"question": question, "environment": environment(), "rows": [asdict(row) for row in rows]}
    (RESULTS / f"{name}.json").write_text(json.dumps(data, indent=2) + "\n")
    (RESULTS / f"{name}.svg").write_text(picture(question, rows))


def picture(question: str, rows: list[Row]) -> str:
    """A bar a contender, with a line from the 10th to the 90th percentile."""
    widest = max(row.high_ms for row in rows) or 1.0
    scale = 420 / widest
    parts = [f'<text x="10" y="22" font-size="14" font-weight="bold">{_escape(question)}</text>']
    for place, row in enumerate(rows):
        y = 44 + place * 34
        label = f"{row.median_ms:.1f} ms  ×{row.ratio:.2f}"
        parts.append(f'<text x="10" y="{y + 14}" font-size="12">{_escape(row.name)}</text>')
        parts.append(f'<rect x="300" y="{y}" width="{row.median_ms * scale:.1f}" height="18" fill="#4878a8"/>')
        line = f'x1="{300 + row.low_ms * scale:.1f}" x2="{300 + row.high_ms * scale:.1f}" y1="{y + 9}" y2="{y + 9}"'
        parts.append(f'<line {line} stroke="#222"/>')
        parts.append(f'<text x="{310 + row.high_ms * scale:.1f}" y="{y + 14}" font-size="12">{label}</text>')
    height = 60 + 34 * len(rows)
    body = "".join(parts)
    frame = f'xmlns="http://www.w3.org/2000/svg" width="880" height="{height}" font-family="sans-serif"'
    return f"<svg {frame}>{body}</svg>\n"


def _escape(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
