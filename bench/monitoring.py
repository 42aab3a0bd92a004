"""How much of a core does it take to watch a hundred sandboxes, ten times a second?

Processor time of this process while its monitor looks, in percent of one core, over real strict sandboxes of which
every tenth works and the others wait. The same figures are asked of psutil, where it is installed, over the same trees.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

import ringfence
from bench.contenders import STRICT, Maker, gather
from bench.harness import Answer, Effort, NotHere, Turn, race
from ringfence.model.record import replace
from ringfence.monitor.limits import ResourceLimits
from ringfence.monitor.resource_monitor import ResourceMonitor
from ringfence.monitor.source import Source

QUESTION = "Watching a hundred sandboxes, ten samples a second"
RATE = 10.0
GROUPS, PROC, PSUTIL = "ringfence, control groups", "ringfence, /proc", "psutil"
FREE = ResourceLimits(max_cpu_percent=1e6, max_memory_mb=10**6, max_disk_mb=10**6, max_file_operations=10**12)
# A little of everything, ten times a second.
WORK = """import time
while True:
    with open('file', 'wb') as file: file.write(bytes(10000))
    sum(range(10000))
    time.sleep(0.1)
"""


def ask(effort: Effort) -> Answer:
    count, seconds, turns = effort.pick(100, 50, 2), effort.pick(100, 40, 3) / 10, effort.pick(5, 3)
    with _sandboxes(count) as sources:
        gathered = gather(_contenders(sources, seconds))
        title = f"{count} sandboxes, {RATE:g} a second each"
        table = race(title, gathered.turns, turns=turns, warm=0, unit="% of a core")
    due = f"{RATE * seconds:g} samples of each were due, taken were, in the last turn: {_taken}"
    return gathered.answer(table, findings=[due])


@contextlib.contextmanager
def _sandboxes(count: int) -> Iterator[list[Source]]:
    policy = replace(STRICT, wall_time_s=3600, cpu_time_s=3600)
    with contextlib.ExitStack() as stack:
        boxes = [stack.enter_context(ringfence.open(policy)) for _ in range(count)]
        for number, box in enumerate(boxes):
            box.start([sys.executable, "-c", WORK] if number % 10 == 0 else ["cat"])
        yield [box.watchable for box in boxes]


def _contenders(sources: list[Source], seconds: float) -> dict[str, Maker]:
    return {
        GROUPS: lambda: _by_monitor(GROUPS, sources, seconds),
        PROC: lambda: _by_monitor(PROC, [replace(source, groups={}) for source in sources], seconds),
        PSUTIL: lambda: _by_psutil(sources, seconds),
    }


_taken: dict[str, float] = {}


def _share(name: str, work: Callable[[], float]) -> float:
    """Of a core, at the rate that was asked for: a busy machine may not get to take every sample. ``work`` tells how
    many of each it took."""
    cpu_s = time.process_time()
    _taken[name] = work()
    return (time.process_time() - cpu_s) / max(1.0, _taken[name]) * RATE * 100


def _by_monitor(name: str, sources: list[Source], seconds: float) -> Turn:
    if name == GROUPS and not all(source.groups for source in sources):
        raise NotHere("no control group for this user")
    counts: dict[str, int] = {}

    def count(sandbox: str, _: object) -> None:
        counts[sandbox] = counts.get(sandbox, 0) + 1

    def turn() -> float:
        with ResourceMonitor(interval_s=1 / RATE, on_sample=count) as monitor:
            for number, source in enumerate(sources):
                monitor.start_monitoring(str(number), FREE, source)
            return _share(name, watch)

    def watch() -> float:
        counts.clear()
        time.sleep(seconds)
        return sum(counts.values()) / len(sources)

    return turn


def _by_psutil(sources: list[Source], seconds: float) -> Turn:
    try:
        import psutil
    except ImportError:
        raise NotHere("psutil is not installed") from None

    def look(leader: psutil.Process) -> None:
        for process in leader.children(recursive=True):
            with contextlib.suppress(psutil.Error), process.oneshot():
                process.cpu_times(), process.memory_info(), process.io_counters()

    def watch() -> float:
        leaders = [psutil.Process(pid) for source in sources for pid in source.leaders()]
        end, rounds = time.monotonic() + seconds, 0
        while time.monotonic() < end:
            begun = time.monotonic()
            for leader in leaders:
                look(leader)
            rounds += 1
            time.sleep(max(0.0, begun + 1 / RATE - time.monotonic()))
        return rounds

    return lambda: _share(PSUTIL, watch)
