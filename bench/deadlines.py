"""How late does a job end whose time is over: alone, beside floods of its warden, and with a warden that is stopped?

From the caller's clock: from the first word of the job to its outcome, less the time that the policy gives it. So what
the job and its outcome take to be told is in it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from bench.contenders import STRICT, open_pool
from bench.harness import Answer, Effort, NotHere, Row, Table, spread
from bench.process_tree import descendants, wait_until
from ringfence import Pool, Status

QUESTION = "How late a deadline is enforced in a pool: alone, beside floods, with a warden that is stopped"
WALL_S, AT_ONCE, FLOODERS, MOST_MS = 0.5, 4, 3, 200.0
SLEEPS = "print(1, flush=True)\nimport time\ntime.sleep(600)"
BUSY = "print(1, flush=True)\nwhile True: pass"
# As fast as a job can: calls that its filter reports, output, processes.
FLOODS = {
    "reported calls": "from socket import *\nwhile True:\n try: socket(AF_INET, SOCK_RAW)\n except OSError: pass",
    "output": "import os\nwhile True: os.write(1, b'x' * 65536)",
    "processes": "import os\nwhile True:\n try:\n  if os.fork() == 0: os._exit(0)\n except OSError: pass",
}
WARDEN = "ringfence-ward"


def ask(effort: Effort) -> Answer:
    rounds = effort.pick(10, 3, 1)
    late: dict[str, list[float]] = {}
    with open_pool(replace(STRICT, wall_time_s=WALL_S), warm=AT_ONCE + FLOODERS) as pool:
        late["alone"] = _measured(pool, SLEEPS, rounds)
        late["alone, busy"] = _measured(pool, BUSY, rounds)
        for name, source in FLOODS.items():
            with _flooded(pool, source):
                late[f"beside floods of {name}"] = _measured(pool, SLEEPS, rounds)
        late["its warden is stopped"] = [_late_beside_stopped(pool) for _ in range(rounds)]
    rows = tuple(_row(name, values) for name, values in late.items())
    table = Table(title=f"after a deadline of {WALL_S:g} s", unit="ms", rows=rows)
    told = [f"{name}: {max(values):.0f} ms at most, {'within' if max(values) <= MOST_MS else 'over'} {MOST_MS:g} ms"
            for name, values in late.items()]  # fmt: skip
    return Answer(tables=(table,), findings=tuple(told))


def _row(name: str, values: list[float]) -> Row:
    low, high = spread(values)
    return Row(name=name, median=statistics.median(values), low=low, high=high, turns=len(values))


def _measured(pool: Pool, source: str, rounds: int) -> list[float]:
    with ThreadPoolExecutor(AT_ONCE) as executor:
        return list(executor.map(lambda _: _late_ms(pool, source), range(rounds * AT_ONCE)))


def _late_ms(pool: Pool, source: str, hurt: Callable[[], None] = lambda: None) -> float:
    begun: list[float] = []

    def note(*_: object) -> None:
        begun.append(time.monotonic())
        hurt()

    outcome = pool.run_source(source, on_output=note)
    if outcome.status is not Status.TIMEOUT or not begun:
        raise AssertionError(f"{outcome.status}: {outcome.reason}")
    return (time.monotonic() - begun[0] - WALL_S) * 1e3


@contextlib.contextmanager
def _flooded(pool: Pool, source: str) -> Iterator[None]:
    over = threading.Event()

    def flood() -> None:
        while not over.is_set():
            pool.run_source(source)

    threads = [threading.Thread(target=flood) for _ in range(FLOODERS)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def _late_beside_stopped(pool: Pool) -> float:
    """The pool ends what does not answer, with all that it leads, and makes a new one for what comes next."""
    stopped: set[int] = set()

    def stop() -> None:
        stopped.update(_wardens())
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)

    late_ms = _late_ms(pool, SLEEPS, stop)
    if not stopped:
        raise NotHere("no warden leads the sandboxes of this pool")
    assert wait_until(lambda: not stopped & _wardens(), patience_s=20), "a stopped warden lives on"
    assert wait_until(lambda: pool.run_source("print(1)").ok, patience_s=20), "the pool does not go on"
    return late_ms


def _wardens() -> set[int]:
    return {pid for pid in descendants() if _name(pid) == WARDEN}


def _name(pid: int) -> str:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/comm") as file:
        return file.read().strip()
    return ""
