"""A warm pool whose sandboxes are made without the native parts: in a process of its own, which never loads them.

The switch is in the environment of the process that has the pool, so this pool can't share one with the usual pool.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench.contenders import pooled_snippet
from bench.harness import Turn
from bench.throughput import rate

AT_ONCE = 2


def rate_without(stack: contextlib.ExitStack, jobs: int) -> Turn:
    """Snippets a second, as ``throughput.rate`` counts them over there."""
    words = [sys.executable, "-P", "-m", __name__, str(jobs)]
    top = str(Path(__file__).parent.parent)
    environment = os.environ | {"RINGFENCE_PURE": "1", "PYTHONPATH": os.pathsep.join([top, *filter(None, sys.path)])}
    server = stack.enter_context(
        subprocess.Popen(words, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    )
    into, out = server.stdin, server.stdout
    assert into is not None and out is not None
    stack.callback(into.close)

    def turn() -> float:
        into.write("\n")
        into.flush()
        return float(out.readline())

    return turn


def _serve(jobs: int) -> None:
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(AT_ONCE) as executor:
        turn = rate(executor, pooled_snippet(stack, warm=16), jobs)
        for _ in sys.stdin:
            print(turn(), flush=True)


if __name__ == "__main__":
    _serve(int(sys.argv[1]))
