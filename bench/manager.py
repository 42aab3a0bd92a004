"""What does a manager's sandbox cost: creating, a first command, a checkpoint, a rollback, against ``cp -a``?

Real sandboxes under STRICT with the default config, over a tree of 10,000 files and 200 MB and one of 100,000 files;
ten files are changed by a command inside. Run: python -m bench manager
"""

from __future__ import annotations

import tempfile
import time
from itertools import pairwise
from pathlib import Path

from bench.harness import Answer, Effort, Table, compare
from bench.undo import CHANGED, COPY, FILE_BYTES, copied, make_tree
from ringfence import IsolationLevel, ResourceLimits, SandboxConfig, SandboxManager

QUESTION = "A manager's sandbox over a large tree: creating, checkpoint and rollback, against a copy of the tree"
_CHANGE = f"for n in $(seq 0 {CHANGED - 1}); do head -c {FILE_BYTES} /dev/urandom > d$n/f$n; done"


def turn_of(manager: SandboxManager, base: Path) -> dict[str, float]:
    """One sandbox from its making to its end; in ms."""
    limits = ResourceLimits(max_file_operations=10**6)
    config = SandboxConfig(isolation_level=IsolationLevel.STRICT, allowed_paths=[base], resource_limits=limits,
                           checkpoint_before_execution=False)  # fmt: skip
    marks = [("", time.perf_counter())]
    context = manager.create_sandbox(config)
    marks.append(("create", time.perf_counter()))
    _changed(manager, context)
    marks.append(("first command", time.perf_counter()))
    kept = manager.rollback_system.create_checkpoint(context.sandbox_id, {})
    marks.append(("checkpoint", time.perf_counter()))
    _changed(manager, context)
    marks.append(("", time.perf_counter()))
    restored = manager.rollback_system.rollback_to_checkpoint(kept.checkpoint_id)
    marks.append(("rollback", time.perf_counter()))
    if not restored.success or restored.files_restored < CHANGED:
        raise RuntimeError(f"nothing was restored: {restored}")
    manager.destroy_sandbox(context.sandbox_id)
    marks.append(("destroy", time.perf_counter()))
    spans = pairwise(marks)
    return {name: (end - start) * 1e3 for (_, start), (name, end) in spans if name}


def _changed(manager: SandboxManager, context: object) -> None:
    done = manager.run(context, ["sh", "-c", _CHANGE])  # type: ignore[arg-type]
    if not done.success:
        raise RuntimeError(f"the command failed: {done.error} {done.stderr}")


def kept_bytes(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def ask(effort: Effort) -> Answer:
    times: dict[str, list[float]] = {COPY: []}
    with tempfile.TemporaryDirectory() as name, SandboxManager(sandbox_root=Path(name) / "sandboxes") as manager:
        top = Path(name)
        make_tree(top / "small", effort.pick(10_000, 10_000, 200), FILE_BYTES)
        make_tree(top / "large", effort.pick(100_000, 100_000, 200), 80)
        turn_of(manager, top / "small")  # what is started once for all is started here
        for _ in range(effort.pick(9, 5)):
            times[COPY].append(copied(top / "small", top / "copy"))
            for size, base in (("", top / "small"), (", 100,000 files", top / "large")):
                for step, value in turn_of(manager, base).items():
                    times.setdefault(f"{step}{size}", []).append(value)
        context = manager.create_sandbox(SandboxConfig(isolation_level=IsolationLevel.STRICT))
        empty = kept_bytes(context.folder)
    table = Table(title="a sandbox over 10,000 files and 200 MB", unit="ms", rows=compare(times))
    faster = tuple(f"{row.name}: {1 / row.ratio:.1f} times as fast as cp -a" for row in table.rows[1:] if row.ratio)
    return Answer(tables=(table,), findings=(f"an empty sandbox takes {empty / 1000:.1f} KB on disk", *faster))
