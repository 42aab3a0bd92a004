"""What does undo cost: opening a workspace, a checkpoint of ten changed files, a rollback, against ``cp -a``?

On a tree of 10,000 files and 200 MB, and for the overlay also on one of 100,000 files. The changes are put
where overlayfs would put them, so nothing needs to be mounted. Run: python -m bench undo
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from bench.harness import Answer, Effort, Table, compare
from ringfence.checkpoint.workspace import Workspace, open_overlay, open_snapshot

QUESTION = "A checkpoint of ten changed files and the way back, against a copy of the tree"
FOLDERS, CHANGED = 100, 10
FILE_BYTES = 20_000


def make_tree(top: Path, files: int, size: int) -> None:
    for number in range(FOLDERS):
        (top / f"d{number}").mkdir(parents=True)
    for number in range(files):
        text = number.to_bytes(8, "big") * (size // 8)
        (top / f"d{number % FOLDERS}" / f"f{number}").write_bytes(text)


def change(seen: Path, turn: int) -> None:
    for number in range(CHANGED):
        path = seen / f"d{number}" / f"f{number}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(8) + turn.to_bytes(8, "big") * (FILE_BYTES // 8 - 1))


def turn_of(workspace: Workspace, seen: Path, turn: int) -> dict[str, float]:
    """One change and checkpoint, another change, and the way back from it; in ms."""
    change(seen, turn)
    start = time.perf_counter()
    made = workspace.create_checkpoint()
    kept = time.perf_counter()
    change(seen, turn + 1000)
    changed = time.perf_counter()
    workspace.rollback_to_checkpoint(made.checkpoint_id)
    back = time.perf_counter()
    return {"checkpoint": (kept - start) * 1e3, "rollback": (back - changed) * 1e3}


def copied(base: Path, target: Path) -> float:
    shutil.rmtree(target, ignore_errors=True)
    start = time.perf_counter()
    subprocess.run(["cp", "-a", str(base), str(target)], check=True)
    return (time.perf_counter() - start) * 1e3


def overlay(base: Path, folder: Path) -> tuple[Workspace, Path, float]:
    upper = folder / "upper"
    upper.mkdir(parents=True)
    start = time.perf_counter()
    workspace = open_overlay(str(upper), str(base), str(folder / "store"))
    return workspace, upper, (time.perf_counter() - start) * 1e3


def snapshot(base: Path, folder: Path) -> tuple[Workspace, Path, float]:
    start = time.perf_counter()
    workspace = open_snapshot(str(base), str(folder / "store"))
    return workspace, folder / "store/work", (time.perf_counter() - start) * 1e3


Opened = Callable[[Path, Path], tuple[Workspace, Path, float]]
COPY = "cp -a of the 10,000 files"


def measure(top: Path, contenders: Mapping[str, tuple[Path, Opened]], turns: int) -> tuple[Table, tuple[str, ...]]:
    times: dict[str, list[float]] = {COPY: []}
    beyond = []
    for turn in range(turns):
        times[COPY].append(copied(top / "small", top / "copy"))
        for name, (base, opened) in contenders.items():
            folder = top / "workspace"
            workspace, seen, took_ms = opened(base, folder)
            for step, value in {"open": took_ms, **turn_of(workspace, seen, turn)}.items():
                times.setdefault(f"{name}: {step}", []).append(value)
            if turn == 0:
                extra = workspace.store.used_bytes() - CHANGED * FILE_BYTES
                beyond.append(f"{name}: {extra / 1000:.0f} KB in the store beyond the changed bytes")
            workspace.close()
            shutil.rmtree(folder)
    return Table(title="a tree of 10,000 files and 200 MB", unit="ms", rows=compare(times)), tuple(beyond)


def ask(effort: Effort) -> Answer:
    with tempfile.TemporaryDirectory() as name:
        top = Path(name)
        make_tree(top / "small", effort.pick(10_000, 10_000, 200), FILE_BYTES)
        make_tree(top / "large", effort.pick(100_000, 100_000, 200), 80)
        contenders: dict[str, tuple[Path, Opened]] = {
            "overlay": (top / "small", overlay),
            "overlay, 100,000 files": (top / "large", overlay),
            "snapshot": (top / "small", snapshot),
        }
        table, beyond = measure(top, contenders, effort.pick(7, 3))
    faster = tuple(f"{row.name}: {1 / row.ratio:.1f} times as fast as cp -a" for row in table.rows[1:] if row.ratio)
    return Answer(tables=(table,), findings=(*beyond, *faster))
