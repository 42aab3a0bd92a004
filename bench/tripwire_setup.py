"""How much does hiding N paths cost: to set up, for each attempt, and for what stays visible beside them?

Two ways side by side, as an ordinary user: a veil over the directory, and (set-up only) one FUSE mount on each path.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "unit" / "kernel"))

from tripwire_cage import ARENA, Cage, as_caller, enter_namespaces, furnish, mount, why_not

from bench.harness import Answer, Effort, Table, compare, race
from ringfence.kernel.recorder import BUDGETS, Budget, Recorder
from ringfence.kernel.tripwire import mount as tripwire_mount
from ringfence.kernel.tripwire.layout import FILE_MODE as FILE
from ringfence.kernel.tripwire.layout import Entry, Layout, Veil, lay_out

QUESTION = "Hiding paths behind tripwires: set-up, an attempt, and what stays visible beside them"
FOLDER = ARENA + b"/f"
VISIBLE = 20


def prepare(count: int) -> None:
    os.mkdir(FOLDER)
    for name in [b"h%d" % number for number in range(count)] + [b"v%d" % number for number in range(VISIBLE)]:
        os.close(os.open(FOLDER + b"/" + name, os.O_CREAT | os.O_WRONLY))


def stat_us(name: bytes, times: int) -> float:
    started = time.perf_counter()
    for _ in range(times):
        os.path.exists(FOLDER + name)
    return (time.perf_counter() - started) / times * 1e6


def measure(layout: Layout, count: int) -> tuple[float, float, float]:
    """Set-up in ms, then one attempt and one visible stat in µs."""

    def scenario() -> tuple[float, float, float]:
        cage = Cage(layout, lambda: prepare(count), lambda: (stat_us(b"/h0", 2000), stat_us(b"/v0", 20000)))
        cage.recorder = Recorder(budgets=dict.fromkeys(BUDGETS, Budget(names=0, full=0)))
        ran = cage.serve()
        return ran.setup_s * 1e3, *ran.result

    return as_caller("user", scenario)  # type: ignore[no-any-return]


def one_mount_each(count: int) -> float:
    """Set-up in ms without any answering, so less than it would really be."""

    def scenario() -> float:
        enter_namespaces()
        furnish(lambda: prepare(count))
        started = time.perf_counter()
        for number in range(count):
            device = tripwire_mount.open_device()
            options = b"fd=%d,rootmode=%o,user_id=0,group_id=0,allow_other" % (device, FILE)
            mount(b"none", FOLDER + b"/h%d" % number, b"fuse", tripwire_mount.MOUNT_FLAGS, options)
        return (time.perf_counter() - started) * 1e3

    return as_caller("user", scenario)  # type: ignore[no-any-return]


def veil(count: int) -> Layout:
    visible = tuple(Entry(name=b"v%d" % number, mode=FILE) for number in range(VISIBLE))
    hidden = frozenset(b"h%d" % number for number in range(count))
    return lay_out(veils=[Veil(folder=FOLDER, hidden=hidden, visible=visible)])


def ask(effort: Effort) -> Answer:
    why = why_not("user")
    if why:
        return Answer(tables=(), skipped={"tripwires": why})
    runs = effort.pick(5, 3)
    tables = [table for count in effort_counts(effort) for table in _three(count, runs)]
    each = {f"a mount for each of {count}": (lambda count=count: one_mount_each(count)) for count in (100, 500)}
    return Answer(tables=(*tables, race("a mount for each, set-up", each, turns=runs, warm=0)))


def effort_counts(effort: Effort) -> tuple[int, ...]:
    return (0, 100) if effort is Effort.TINY else (0, 100, 10_000)


def _three(count: int, runs: int) -> list[Table]:
    """Set-up, one attempt at a hidden path, one look at a visible path."""
    found = [measure(veil(count), count) for _ in range(runs)]
    kinds = (("set-up", "ms"), ("attempt", "µs"), ("visible stat", "µs"))
    return [
        Table(
            title=f"{count:,} hidden: {kind}",
            unit=unit,
            rows=compare({"ringfence veil": [run[place] for run in found]}),
        )
        for place, (kind, unit) in enumerate(kinds)
        if count or kind != "attempt"
    ]
