"""Many idle sandboxes at once, of each kind that can stand: each waits for input that never comes."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

from bench import peers
from bench.contenders import POOL, RUN, STRICT, open_pool
from bench.process_tree import all_asleep, descendants, sandboxes, wait_until
from ringfence import Job, run

PATIENCE_S, _LOOK_S = 300, 2.0
WAITING = ("cat",)
"""Ends when its input does."""

Standing = Callable[[int], AbstractContextManager[object]]


@contextlib.contextmanager
def _gate() -> Iterator[int]:
    """A pipe that stays open, and silent, until the end."""
    read_end, write_end = os.pipe()
    try:
        yield read_end
    finally:
        os.close(write_end)
        os.close(read_end)


@contextlib.contextmanager
def bubblewrap(count: int) -> Iterator[None]:
    command = peers.need("bubblewrap").command
    assert command is not None
    children: list[subprocess.Popen[bytes]] = []
    try:
        with _gate() as gate:
            for _ in range(count):
                children.append(subprocess.Popen(command(WAITING), stdin=gate, stdout=subprocess.DEVNULL))
            yield
    finally:
        for child in children:
            child.wait()


@contextlib.contextmanager
def run_strict(count: int) -> Iterator[None]:
    policy = STRICT.with_changes(wall_time_s=PATIENCE_S * 2)
    threads: list[threading.Thread] = []
    try:
        with _gate() as gate:
            for _ in range(count):
                job = Job(argv=WAITING, stdin=gate)
                threads.append(threading.Thread(target=run, args=(job, policy)))
                threads[-1].start()
            yield
            # The descriptor must not be closed before the last of them has it.
            all_stand(count)
    finally:
        for thread in threads:
            thread.join()


def pool(count: int) -> AbstractContextManager[object]:
    return open_pool(warm=count)


KINDS: dict[str, Standing] = {POOL: pool, RUN: run_strict, "bubblewrap": bubblewrap}


def all_stand(count: int) -> float:
    """Wait until so many sandboxes stand and nobody works any more; return the moment at which a first look had found
    that, on the clock of ``time.perf_counter``. 0: they do not in a long time.

    To look at thousands of processes takes a processor from those that make them: it is done when the machine has so
    many more that all may stand, or when some time has passed, for others may have ended. A second look confirms the
    first, and its time is not theirs.
    """
    seen: list[float] = []
    enough, latest_s = 0, 0.0

    def stand() -> bool:
        nonlocal enough, latest_s
        there = len(os.listdir("/proc"))
        if there < enough and time.monotonic() < latest_s:
            return False
        pids = descendants()
        missing = max(0, count - sandboxes(pids))
        enough, latest_s = there + missing if missing else 0, time.monotonic() + _LOOK_S
        if missing or not all_asleep(pids):
            seen.clear()
        else:
            seen.append(time.perf_counter())
        return len(seen) > 1

    return seen[0] if wait_until(stand, patience_s=PATIENCE_S) else 0.0


def all_gone(before: set[int]) -> set[int]:
    """What is still there some seconds after the end, beside what was there before."""
    wait_until(lambda: not descendants() - before, patience_s=20)
    return descendants() - before
