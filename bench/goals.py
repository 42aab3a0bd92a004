"""Are the figures reached that the project has set itself? Each is a ratio, and both sides take turns in one run.

The parts are other questions', asked once more in a row, so that one command gives the whole table: ``python -m bench
goals``. What a goal needs and this machine does not have (bubblewrap, git) is left out with a word.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench import cli_start, installing, peers, standing, steady_state, thousand_idle, undo
from bench.contenders import POOL, Action, Gathered, gather, pooled_snippet
from bench.harness import Answer, Effort, NotHere, Table, Turn, compare, race, take_turns, timed_ms
from bench.process_tree import processor_s
from bench.throughput import rate
from bench.without_helper import rate_without
from ringfence import IsolationLevel, ResourceLimits, SandboxConfig, SandboxManager

QUESTION = "The goals of the project, each as a ratio of what was measured in turns"
BUBBLEWRAP, MINIMAL = "bubblewrap + python3, same mounts", "bubblewrap + python3, seven mounts"
FORKED, BARE, CALLER = "fork of a preloaded python3", "python -I -S -c pass", "the caller's process"
PURE = f"{POOL}, without the native parts"
_PURE_AT_LEAST = 2.8
"""One and a half times what a snippet took with all its parts before the core was built anew: 1.7 to 2.0."""
# What a python3 needs and no more: the system, a /proc, a /dev, a /tmp.
_SEVEN = (
    "--unshare-all", "--die-with-parent", "--ro-bind", "/usr", "/usr", "--symlink", "usr/bin", "/bin",
    "--symlink", "usr/lib", "/lib", "--ro-bind-try", "/lib64", "/lib64", "--proc", "/proc", "--dev", "/dev",
    "--tmpfs", "/tmp", "--tmpfs", "/job", "--chdir", "/job",
)  # fmt: skip
_FORK_SERVER = f"""
import os, sys
while sys.stdin.buffer.readline():
    child = os.fork()
    if not child:
        exec(compile({peers.SNIPPET!r}, 'snippet', 'exec'))
        sys.stdout.flush()
        os._exit(0)
    os.waitpid(child, 0)
"""


@dataclass(frozen=True, kw_only=True)
class Goal:
    """A row of a table that is to be at least, or at most, so many times the first."""

    name: str
    row: str
    at_least: float | None = None
    at_most: float | None = None
    of_first: bool = False
    """How often the row goes into the first one: how much quicker it is."""

    def told(self, table: Table) -> str:
        ratio = next((row.ratio for row in table.rows if row.name == self.row), None)
        if not ratio:
            return f"{self.name}: not measured here"
        value = 1 / ratio if self.of_first else ratio
        sign, asked = ("≥", self.at_least) if self.at_least is not None else ("≤", self.at_most)
        assert asked is not None
        held = value >= asked if sign == "≥" else value <= asked
        return f"{self.name}: {value:.2f}, asked {sign} {asked:g}: {'reached' if held else 'not reached'}"


Measured = Iterator[tuple[Table, tuple[Goal, ...]]]


def ask(effort: Effort) -> Answer:
    tables: list[Table] = []
    findings: list[str] = []
    skipped: dict[str, str] = {}
    for measure in (_latency, _throughput, _callers, _processor, _standing, _command_line, _checkpoint, _inside):
        try:
            for table, goals in measure(effort):
                tables.append(table)
                findings += [goal.told(table) for goal in goals]
        except NotHere as reason:
            skipped[measure.__name__.strip("_").replace("_", " ")] = str(reason)
    return Answer(tables=tuple(tables), skipped=skipped, findings=tuple(findings))


def _snippets(stack: contextlib.ExitStack, warm: int) -> Gathered:
    """The first two only where there is a bubblewrap."""
    argv = [peers.PYTHON, "-c", peers.SNIPPET]

    def same() -> Action:
        ready = peers.need("bubblewrap")
        return lambda: _right(ready.run(argv))

    def minimal() -> Action:
        program = installing.from_debian("bwrap", ["bubblewrap"])
        return lambda: _right(peers.plain([program, *_SEVEN, *argv]))

    return gather({
        BUBBLEWRAP: same, MINIMAL: minimal, FORKED: lambda: _forked(stack),
        POOL: lambda: pooled_snippet(stack, warm=warm),
    })  # fmt: skip


def _forked(stack: contextlib.ExitStack) -> Action:
    """The floor of all that starts from a warm interpreter: no sandbox at all."""
    command = [peers.PYTHON, "-c", _FORK_SERVER]
    server = stack.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
    into, out = server.stdin, server.stdout
    assert into is not None and out is not None
    stack.callback(into.close)

    def once() -> None:
        into.write(b"\n")
        into.flush()
        _right(out.readline())

    return once


def _right(told: bytes) -> None:
    assert told == peers.ANSWER, f"printed {told!r}"


def _latency(effort: Effort) -> Measured:
    with contextlib.ExitStack() as stack:
        gathered = _snippets(stack, warm=8)
        turns = {name: timed_ms(action) for name, action in gathered.turns.items()}
        found = take_turns(turns, turns=effort.pick(60, 15), warm=1)
    quick = Goal(name="warm snippet, times as quick as bubblewrap", row=POOL, at_least=14, of_first=True)
    near = Goal(name="warm snippet against the fork of a preloaded python3", row=POOL, at_most=1.8)
    for other, goal in ((BUBBLEWRAP, quick), (FORKED, near)):
        if other in found and POOL in found:
            rows = compare({other: found[other], POOL: found[POOL]})
            yield Table(title=f"a snippet, from the call to its output, against {other}", unit="ms", rows=rows), (goal,)
    _tell_of(gathered)


def _tell_of(gathered: Gathered) -> None:
    if gathered.skipped:
        raise NotHere("; ".join(f"{name}: {why}" for name, why in gathered.skipped.items()))


def _throughput(effort: Effort) -> Measured:
    jobs = effort.pick(160, 40, 4)
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(2) as executor:
        gathered = _snippets(stack, warm=16)
        turns = {name: rate(executor, action, jobs) for name, action in gathered.turns.items() if name != FORKED}
        if POOL in turns:
            turns[PURE] = rate_without(stack, jobs)
        found = take_turns(turns, turns=effort.pick(7, 3))
    for other, row, asked in ((BUBBLEWRAP, POOL, 4.5), (MINIMAL, POOL, 3.0), (BUBBLEWRAP, PURE, _PURE_AT_LEAST)):
        if other in found and row in found:
            rows = compare({other: found[other], row: found[row]})
            table = Table(title=f"2 at once, against {other}", unit="runs/s", rows=rows, more_is_better=True)
            yield table, (Goal(name=f"snippets a second, {row}, times {other}", row=row, at_least=asked),)
    _tell_of(gathered)


def _callers(effort: Effort) -> Measured:
    """The best number of callers comes first, so that the ratio of the last is against it."""
    jobs = effort.pick(240, 64, 16)
    with contextlib.ExitStack() as stack:
        action = pooled_snippet(stack, warm=16)
        executors = {count: stack.enter_context(ThreadPoolExecutor(count)) for count in (1, 2, 4, 8, 16)}
        rates = {f"{count} callers": rate(executor, action, jobs) for count, executor in executors.items()}
        found = take_turns(rates, turns=effort.pick(7, 3))
    best = max(found, key=lambda name: sorted(found[name])[len(found[name]) // 2])
    rows = compare({best: found.pop(best), **found})
    table = Table(title="callers of one pool", unit="runs/s", rows=rows, more_is_better=True)
    yield table, (Goal(name="throughput of 16 callers against the best number", row="16 callers", at_least=0.95),)


def _processor(effort: Effort) -> Measured:
    jobs = effort.pick(100, 30, 2)
    bare = [peers.PYTHON, "-I", "-S", "-c", "pass"]
    with contextlib.ExitStack() as stack:
        gathered = gather({BARE: lambda: lambda: peers.plain(bare), POOL: lambda: pooled_snippet(stack, warm=4)})
        turns = {name: _processor_ms(action, jobs) for name, action in gathered.turns.items()}
        table = race("processor time of one, of the whole machine", turns, turns=effort.pick(7, 3))
        yield table, (Goal(name="processor time of a snippet against python3 -I -S -c pass", row=POOL, at_most=0.8),)
        if POOL in gathered.turns:
            yield _share(_processor_ms(gathered.turns[POOL], jobs, time.process_time), effort)


def _share(turn: Turn, effort: Effort) -> tuple[Table, tuple[Goal, ...]]:
    found = take_turns({CALLER: turn}, turns=effort.pick(7, 3))
    rows = compare({"1 ms": [1.0] * len(found[CALLER]), **found})
    goal = Goal(name="processor time of the caller for a snippet, ms", row=CALLER, at_most=0.5)
    return Table(title="of it in the process of the caller", unit="ms", rows=rows), (goal,)


def _processor_ms(action: Action, jobs: int, used_s: Callable[[], float] = processor_s) -> Turn:
    def turn() -> float:
        before = used_s()
        for _ in range(jobs):
            action()
        time.sleep(0.2)  # the sandboxes that are made in place of the used ones
        return max(used_s() - before, 1e-6) / jobs * 1e3

    return turn


def _standing(effort: Effort) -> Measured:
    count = effort.pick(1000, 200, 3)
    stood = [thousand_idle.stand(standing.KINDS[POOL], count) for _ in range(effort.pick(3, 1))]
    name = f"{count:,} in a pool"
    seconds = {"one second": [1.0] * len(stood), name: [one.seconds for one in stood]}
    asked_s = 6 * count / 1000
    yield (
        Table(title="until all stand", unit="s", rows=compare(seconds)),
        (Goal(name=f"seconds until {count:,} stand", row=name, at_most=asked_s),),
    )
    private = [one.private_mib for one in stood if one.private_mib is not None]
    if private:
        sizes = {"1 MiB": [1.0] * len(private), name: private}
        table = Table(title="private memory of each", unit="MiB", rows=compare(sizes))
        yield table, (Goal(name="MiB of one that stands by", row=name, at_most=1.5),)


def _command_line(effort: Effort) -> Measured:
    table = cli_start.ask(effort).tables[0]
    yield (
        table,
        (
            Goal(name="ringfence run --strict -- true against python -I -S", row=cli_start.STRICT, at_most=6),
            Goal(name="ringfence run --isolation process -- true", row=cli_start.PROCESS, at_most=2.5),
        ),
    )


def _checkpoint(effort: Effort) -> Measured:
    """At once after the sandbox is made: its box is still opening."""
    name = "first checkpoint of a manager's sandbox"
    with tempfile.TemporaryDirectory() as folder, SandboxManager(sandbox_root=Path(folder) / "sandboxes") as manager:
        top = Path(folder)
        undo.make_tree(top / "tree", effort.pick(10_000, 10_000, 200), undo.FILE_BYTES)
        copy = partial(undo.copied, top / "tree", top / "copy")
        turns = {undo.COPY: copy, name: partial(_first, manager, top / "tree")}
        table = race("a checkpoint against a copy", turns, turns=effort.pick(9, 5))
    yield table, (Goal(name="first checkpoint, times as quick as cp -a", row=name, at_least=20, of_first=True),)


def _first(manager: SandboxManager, base: Path) -> float:
    limits = ResourceLimits(max_file_operations=10**6)
    config = SandboxConfig(isolation_level=IsolationLevel.STRICT, allowed_paths=[base], resource_limits=limits)
    with manager.sandbox(config) as context:
        start = time.perf_counter()
        manager.rollback_system.create_checkpoint(context.sandbox_id, {})
        return (time.perf_counter() - start) * 1e3


_ASKED_INSIDE: Sequence[tuple[str, float]] = (("grep", 1.35), ("git", 1.15), ("importing", 1.05), ("pytest", 1.03))


def _inside(effort: Effort) -> Measured:
    with tempfile.TemporaryDirectory() as folder:
        tree = steady_state.large_tree(Path(folder), effort.pick(10_000, 3_000, 50), with_git=_has("git"))
        for word, asked in _ASKED_INSIDE:
            work = next(each for each in steady_state.WORKS if word in each.name)
            if word == "git" and not _has("git"):
                continue
            table = steady_state.measured(work, tree, effort.pick(6, 2), effort.pick(7, 3))
            yield table, (Goal(name=f"inside against outside, {word}", row=steady_state.INSIDE, at_most=asked),)


def _has(program: str) -> bool:
    return any(os.access(f"{folder}/{program}", os.X_OK) for folder in os.get_exec_path())
