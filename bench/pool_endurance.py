"""Does anything grow over 100,000 jobs through one pool, and is anything left afterwards?

Looked at between batches, when no job is under way. The same for plain runs, of which fewer are made.
"""

from __future__ import annotations

import contextlib
import os
import re
import statistics
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields

from bench import peers
from bench.contenders import POOL, RUN, Action, gather, pooled_snippet, run_strict
from bench.harness import Answer, Effort, Row, Table, spread
from bench.process_tree import (
    all_asleep,
    descendants,
    descriptors,
    memory,
    resident_bytes,
    sandboxes,
    threads,
    wait_until,
)

QUESTION = "What grows over 100,000 jobs through one pool: the last quarter, and its ratio to the first"
AT_ONCE, WARM, LOOKS = 4, 8, 40
MIB = 2**20
_GROUP = re.compile(r"ringfence-\d+-(\d+)-\d+-\d+")


@dataclass(frozen=True, kw_only=True)
class Look:
    """What stands at one moment, of this process and all below it."""

    own_memory_mib: float
    memory_below_mib: float
    descriptors: int
    processes: int
    threads: int
    control_groups: int
    mounts: int
    temporary_files: int


def ask(effort: Effort) -> Answer:
    jobs = {POOL: effort.pick(100_000, 5_000, 80), RUN: effort.pick(1_000, 200, 40)}
    with _private_tmp() as folder:
        with contextlib.ExitStack() as stack:
            gathered = gather({POOL: lambda: pooled_snippet(stack, warm=WARM), RUN: _run})
            looks = {name: list(_endure(action, jobs[name], folder)) for name, action in gathered.turns.items()}
            pids = {os.getpid(), *descendants()}
        wait_until(lambda: not sandboxes(descendants()), patience_s=20)
        left = {
            "sandboxes": sandboxes(descendants()),
            "control groups": _groups(pids),
            "temporary files": len(os.listdir(folder)),
        }
    tables = [_table(f"{jobs[name]:,} jobs, {name}", seen) for name, seen in looks.items()]
    told = ", ".join(f"{count} {what}" for what, count in left.items())
    return gathered.answer(*tables, findings=(f"left after the end: {told}",))


def _run() -> Action:
    return run_strict([peers.PYTHON, "-c", peers.SNIPPET], peers.ANSWER)


@contextlib.contextmanager
def _private_tmp() -> Iterator[str]:
    """So that what others leave in the common directory is not counted."""
    before = os.environ.get("TMPDIR")
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        os.environ["TMPDIR"] = folder
        try:
            yield folder
        finally:
            os.environ.pop("TMPDIR")
            if before is not None:
                os.environ["TMPDIR"] = before


def _endure(action: Action, jobs: int, folder: str) -> Iterator[Look]:
    each = max(jobs // LOOKS, 1)
    with ThreadPoolExecutor(AT_ONCE) as executor:
        for _ in range(LOOKS):
            for done in [executor.submit(action) for _ in range(each)]:
                done.result()
            yield _look(folder)


def _look(folder: str) -> Look:
    # A job's last process may still be on its way out when its outcome is known.
    wait_until(lambda: all_asleep(descendants()), patience_s=5)
    pids = descendants()
    everybody = {os.getpid(), *pids}
    with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as table:
        mounts = len(table.readlines())
    return Look(
        own_memory_mib=resident_bytes(os.getpid()) / MIB,
        memory_below_mib=memory(pids).private_bytes / MIB,
        descriptors=sum(descriptors(pid) for pid in everybody),
        processes=len(everybody),
        threads=threads(everybody),
        control_groups=_groups(everybody),
        mounts=mounts,
        temporary_files=len(os.listdir(folder)),
    )


def _groups(pids: set[int]) -> int:
    """Control groups that these processes made: the maker's number is in the name."""
    names = (name for _, folders, _ in os.walk("/sys/fs/cgroup") for name in folders)
    return sum(int(found[1]) in pids for found in map(_GROUP.fullmatch, names) if found)


def _table(title: str, looks: list[Look]) -> Table:
    rows = tuple(_row(field.name, [float(getattr(look, field.name)) for look in looks]) for field in fields(Look))
    return Table(title=title, unit="count or MiB", rows=rows)


def _row(name: str, values: list[float]) -> Row:
    """The last quarter against the first; the spread is of all looks."""
    quarter = max(len(values) // 4, 1)
    first, last = statistics.median(values[:quarter]), statistics.median(values[-quarter:])
    label = name.replace("_mib", ", MiB").replace("_", " ")
    low, high = spread(values)
    return Row(name=label, median=last, low=low, high=high, turns=len(values), ratio=last / first if first else None)
