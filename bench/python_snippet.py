"""How long from a Python snippet to its result, each time in a fresh sandbox, against what one would pick instead?"""

from __future__ import annotations

import contextlib

from bench import peers
from bench.contenders import POOL, everybody, pooled_snippet
from bench.harness import Answer, Effort, race, timed_ms

QUESTION = "Time to the result of a Python snippet, print(1+1), in a fresh sandbox"


def ask(effort: Effort) -> Answer:
    argv = [peers.PYTHON, "-c", peers.SNIPPET]
    with contextlib.ExitStack() as stack:
        pooled = {POOL: lambda: timed_ms(pooled_snippet(stack, warm=8))}
        gathered = everybody(argv, peers.ANSWER, pooled)
        return gathered.answer(race("print(1+1)", gathered.turns, turns=effort.pick(60, 12)))
