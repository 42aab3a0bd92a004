"""What becomes of an answer: a table on the screen, a JSON file and a picture, with where it was measured.

Nothing is written that would name the machine: no host name, no user, no path.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path

import ringfence
from bench.harness import Answer, Effort, Table, figure, ratio_text
from bench.picture import picture

RESULTS = Path(__file__).parent / "results"


def environment() -> dict[str, object]:
    """Of this moment; the load is the only part that changes in a run."""
    return {
        "ringfence": ringfence.__version__,
        "python": platform.python_version(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
        "caller": "root" if os.geteuid() == 0 else "ordinary user",
        "date": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "load": round(os.getloadavg()[0], 2),
    }


def _cpu() -> str:
    if shutil.which("lscpu"):
        told = subprocess.run(["lscpu"], capture_output=True, text=True, check=False, env={**os.environ, "LC_ALL": "C"})
        for line in told.stdout.splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "Model name":
                return value.strip()
    return platform.processor() or "unknown"


def report(
    name: str, question: str, answer: Answer, *, before: Mapping[str, object], effort: Effort, folder: Path
) -> None:
    """Print the tables; write the JSON and the picture."""
    answer = replace(answer, skipped={name: _nameless(why) for name, why in answer.skipped.items()})
    surroundings = {**before, "load_at_end": round(os.getloadavg()[0], 2), "versions": dict(answer.versions)}
    print("\n".join(lines(question, answer, surroundings)), flush=True)
    data = {"question": question, "effort": effort.name.lower(), "environment": surroundings, **asdict(answer)}
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / f"{name}.json", json.dumps(data, indent=2, ensure_ascii=False) + "\n")
    _write(folder / f"{name}.svg", picture(question, answer.tables, foot=_foot(surroundings)))


def _nameless(text: str) -> str:
    """What a peer says of its failure may have a path in it."""
    private = {str(RESULTS.parent.parent): ".", str(Path.home()): "~", platform.node(): "host"}
    for name in sorted((name for name in private if len(name) > 1), key=len, reverse=True):
        text = re.sub(rf"{re.escape(name)}(?!\w)", private[name], text)
    return text


def _write(path: Path, text: str) -> None:
    beside = path.with_name(path.name + ".new")
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)


def lines(question: str, answer: Answer, surroundings: Mapping[str, object]) -> Iterator[str]:
    yield f"\n{question}"
    for table in answer.tables:
        yield from _table_lines(table)
    for name, why in answer.skipped.items():
        yield f"  not here: {name}: {why}"
    for finding in answer.findings:
        yield f"  {finding}"
    yield f"  ({_foot(surroundings)})"


def _table_lines(table: Table) -> Iterator[str]:
    title = f"{table.title}, {table.unit}" + (" (more is better)" if table.more_is_better else "")
    yield f"  {title:<52} {'median':>10} {'10 %':>10} {'90 %':>10} {'ratio':>8}"
    for row in table.rows:
        figures = " ".join(f"{figure(value):>10}" for value in (row.median, row.low, row.high))
        yield f"    {row.name:<50} {figures} {ratio_text(row):>8}"


def _foot(surroundings: Mapping[str, object]) -> str:
    words = "{cpu}, {cores} cores, kernel {kernel}, Python {python}, {caller}, load {load} to {load_at_end}, {date}"
    return words.format(**surroundings)
