"""How much memory does a sandbox take, idle and while it runs a Python program?

What this process and all below it hold more than before (Pss_Anon of /proc/PID/smaps_rollup, which counts each page
once, also those that a fork shares). What the kernel holds for namespaces and mounts is not in there;
``thousand_idle`` shows that too.
"""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial

from bench import peers, standing
from bench.contenders import POOL, RUN, Action, Gathered, Maker, expect, gather, open_pool, run_strict
from bench.harness import Answer, Effort, NotHere, Table, Turn, compare, take_turns
from bench.process_tree import Memory, descendants, memory, tree

QUESTION = "Memory that one sandbox adds, idle and running a Python program"
MIB = 2**20
# The processes of an engine's containers are the engine's own children, not ours.
NOT_OURS = ("docker run", "podman run")


def ask(effort: Effort) -> Answer:
    turns, seconds, count = effort.pick(5, 3), effort.pick(3, 2), effort.pick(50, 10, 2)
    with contextlib.ExitStack() as stack:
        running = gather(_running(stack, seconds))
        tables = [_table(f"running Python for {seconds} s, at its largest", running, turns)]
    idle = gather({name: partial(_idle, kind, count) for name, kind in standing.KINDS.items()})
    tables.append(_table(f"idle, each of {count}", idle, turns))
    both = Gathered(turns={**running.turns, **idle.turns}, skipped={**idle.skipped, **running.skipped})
    return both.answer(*tables)


def _table(title: str, gathered: Gathered, turns: int) -> Table:
    return Table(title=title, unit="MiB", rows=compare(take_turns(gathered.turns, turns=turns)))


def _running(stack: contextlib.ExitStack, seconds: int) -> dict[str, Maker]:
    source = f"import time\ntime.sleep({seconds})"
    argv = [peers.PYTHON, "-c", source]

    def pooled() -> Turn:
        pool = stack.enter_context(open_pool(warm=2))
        return _growth(lambda: expect(pool.run_source(source), b""))

    def peer(name: str) -> Turn:
        ready = peers.need(name)
        return _growth(lambda: ready.run(argv))

    makers: dict[str, Maker] = {POOL: pooled, RUN: lambda: _growth(run_strict(argv, b""))}
    makers |= {name: partial(peer, name) for name in peers.NAMES if name not in NOT_OURS}
    return {**makers, "no sandbox": lambda: _growth(lambda: peers.plain(argv))}


def _growth(action: Action) -> Turn:
    """The largest that the tree becomes while the action runs, less what it was before."""

    def turn() -> float:
        before = memory(tree())
        samples: list[Memory] = []
        with ThreadPoolExecutor(1) as executor:
            running = executor.submit(action)
            while not running.done():
                samples.append(memory(tree()))
                wait([running], timeout=0.1)
            running.result()
        return _grown(before, samples) / MIB

    return turn


def _grown(before: Memory, samples: list[Memory]) -> int:
    if sum(sample.unreadable > before.unreadable for sample in samples) * 2 > len(samples):
        raise NotHere("the memory of its processes is not for this user to read")
    return max(sample.anonymous_bytes for sample in samples) - before.anonymous_bytes


def _idle(stand: standing.Standing, count: int) -> Turn:
    def turn() -> float:
        before, pids = memory(tree()), descendants()
        with stand(count):
            if not standing.all_stand(count):
                raise NotHere(f"{count} did not come to stand")
            grown = _grown(before, [memory(tree())])
        standing.all_gone(pids)
        return grown / count / MIB

    return turn
