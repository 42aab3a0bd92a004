"""How many Python snippets a second, when 1, 2, 4 or 16 threads ask for them at once?"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from bench import peers
from bench.contenders import POOL, RUN, Action, gather, pooled_snippet, run_strict
from bench.harness import Answer, Effort, Table, Turn, compare, take_turns

QUESTION = "Python snippets a second, each in a fresh sandbox, asked for by several threads at once"
AT_ONCE = (1, 2, 4, 16)


def ask(effort: Effort) -> Answer:
    jobs, turns = effort.pick(160, 32, 2), effort.pick(7, 3)
    with contextlib.ExitStack() as stack:
        gathered = gather(_makers(stack))
        tables = [_table(gathered.turns, threads, jobs, turns) for threads in AT_ONCE]
    return gathered.answer(*tables)


def _makers(stack: contextlib.ExitStack) -> dict[str, Callable[[], Action]]:
    argv = [peers.PYTHON, "-c", peers.SNIPPET]

    def bubblewrap() -> Action:
        ready = peers.need("bubblewrap")
        return lambda: ready.run(argv)

    return {
        POOL: lambda: pooled_snippet(stack, warm=16),
        RUN: lambda: run_strict(argv, peers.ANSWER),
        "bubblewrap": bubblewrap,
        "no sandbox": lambda: lambda: peers.plain(argv),
    }


def _table(actions: dict[str, Action], threads: int, jobs: int, turns: int) -> Table:
    with ThreadPoolExecutor(threads) as executor:
        rates = {name: rate(executor, action, jobs) for name, action in actions.items()}
        rows = compare(take_turns(rates, turns=turns))
    return Table(title=f"{threads} at once", unit="runs/s", rows=rows, more_is_better=True)


def rate(executor: ThreadPoolExecutor, action: Action, jobs: int) -> Turn:
    def turn() -> float:
        start = time.perf_counter()
        for done in [executor.submit(action) for _ in range(jobs)]:
            done.result()
        return jobs / (time.perf_counter() - start)

    return turn
