"""How long does the smallest program take, each time in a fresh sandbox, against what one would pick instead?"""

from __future__ import annotations

import contextlib

from bench.contenders import POOL, STRICT, everybody, expect, open_pool
from bench.harness import Answer, Effort, Turn, race, timed_ms

QUESTION = "Time for /bin/true in a fresh sandbox"
ARGV = ["/bin/true"]


def ask(effort: Effort) -> Answer:
    with contextlib.ExitStack() as stack:

        def pooled() -> Turn:
            pool = stack.enter_context(open_pool(STRICT, warm=8))
            return timed_ms(lambda: expect(pool.run(ARGV), b""))

        gathered = everybody(ARGV, b"", {POOL: pooled})
        return gathered.answer(race("/bin/true", gathered.turns, turns=effort.pick(60, 12)))
