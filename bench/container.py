"""What does a strategy in a container cost? A warm container against ``docker run`` of the same, and the parts of it.

Both have the same limits. Between two strategies there is time to make the next container, as in a loop that waits
for a model; ``back to back`` leaves none.
"""

from __future__ import annotations

import json
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

from bench import docker_engine, image
from bench.harness import Answer, Effort, NotHere, Row, Table, compare, race, spread, take_turns
from ringfence import DockerConfig, DockerExecutor

QUESTION = "A strategy in a warm container against docker run of the same; making, running and removing one"
PYTHON = "/usr/bin/python3"
RUN, WARM, COLD = "docker run --rm", "ringfence, a warm container", "ringfence, a new container"
INSIDE = "ringfence, in the container"
_CLOCKS = {"computing inside, by the clock on the wall": "perf_counter",
           "computing inside, by processor time, which is nobody else's": "process_time"}  # fmt: skip
STRATEGY = "def run(data):\n    return {'sum': sum(data or [])}\n"
BUSY = """
def run(data):
    total = 0
    for number in range(data):
        total += number * number % 7
    return {"total": total}
"""
DATA = [*range(100)]
_LIMITS = ("--memory=256m", "--memory-swap=256m", "--cpus=1", "--pids-limit=64", "--network=none", "--read-only",
           "--cap-drop=ALL", "--security-opt=no-new-privileges", "--user=65534:65534",
           "--tmpfs=/tmp:rw,noexec,nosuid,size=16m")  # fmt: skip
_AT_ONCE, _IN_A_ROW = 10, 6


def ask(effort: Effort) -> Answer:
    try:
        engine = docker_engine.client()
        image.ensure(engine, PYTHON)
    except NotHere as error:
        return Answer(tables=(), skipped={"Docker": str(error)})
    config = DockerConfig(image.NAME, "256m", 1.0, 120, tmpfs_size="16m", output_dir="", validate=False,
                          max_containers=_AT_ONCE, warm_containers=2)  # fmt: skip
    with DockerExecutor(config) as warm, DockerExecutor(config.with_arguments(warm_containers=0)) as cold:
        computing = [_overhead(cold, effort, title, clock) for title, clock in _CLOCKS.items()]
        tables = (_against_run(engine, warm, cold, effort), _parts(cold, effort), *computing,
                  _memory(cold, effort), _at_once(config, effort))  # fmt: skip
    ratio = next(row.ratio for row in tables[0].rows if row.name == WARM)
    found = [f"a warm container answers {1 / ratio:.1f} times as fast as docker run (asked: 4)"] if ratio else []
    for table in computing:
        more = next(row.ratio for row in table.rows if row.name == INSIDE)
        found += [f"{table.title}: {(more - 1) * 100:+.1f} % against outside (asked: less than 5 %)"] if more else []
    return Answer(tables=tables, findings=tuple(found))


def _against_run(engine: str, warm: DockerExecutor, cold: DockerExecutor, effort: Effort) -> Table:
    program = f"{STRATEGY}\nimport json, sys\nprint(json.dumps(run(json.load(sys.stdin))))"
    command = [engine, "run", "--rm", "--interactive", *_LIMITS, image.NAME, PYTHON, "-I", "-B", "-c", program]

    def plain() -> float:
        began = time.perf_counter()
        done = subprocess.run(command, input=json.dumps(DATA).encode(), capture_output=True, check=True)
        assert json.loads(done.stdout) == {"sum": sum(DATA)}
        return (time.perf_counter() - began) * 1e3

    def ours(executor: DockerExecutor) -> float:
        began = time.perf_counter()
        result = executor.execute(STRATEGY, DATA)
        assert result.metrics == {"sum": sum(DATA)}, result.error_message
        return (time.perf_counter() - began) * 1e3

    def waited() -> float:
        _stand_by(warm)
        return ours(warm)

    def in_a_row() -> float:
        _stand_by(warm)
        return sum(ours(warm) for _ in range(_IN_A_ROW)) / _IN_A_ROW

    return race("one strategy, from the call to its result", {
        RUN: plain, WARM: waited, COLD: lambda: ours(cold), f"ringfence, each of {_IN_A_ROW} back to back": in_a_row,
    }, turns=effort.pick(20, 6), warm=0)  # fmt: skip


def _stand_by(executor: DockerExecutor) -> None:
    """Until there are as many as there should be."""
    pool, give_up = executor._containers(), time.monotonic() + 120
    while len(pool._warm) < executor.config.warm_containers or len(pool._places) > len(pool._warm):
        pool.fill()
        time.sleep(0.05)
        assert time.monotonic() < give_up, "the pool does not fill"


def _parts(executor: DockerExecutor, effort: Effort) -> Table:
    """Making one, running in it, removing it: milliseconds each; the specification allows 3 s, and 1 s for the last."""
    figures: dict[str, list[float]] = {"making a container": [], "a strategy in it": [], "removing it": []}
    for _ in range(effort.pick(20, 6)):
        marks = [time.perf_counter()]
        container = executor._create_container(STRATEGY)
        marks.append(time.perf_counter())
        executor._run_container(container, 60)
        marks.append(time.perf_counter())
        executor._cleanup_container(container)
        marks.append(time.perf_counter())
        for values, began, ended in zip(figures.values(), marks, marks[1:], strict=False):
            values.append((ended - began) * 1e3)
    return Table(title="the parts, without a warm container", unit="ms", rows=compare(figures))


def _overhead(executor: DockerExecutor, effort: Effort, title: str, clock: str) -> Table:
    """The same work in a plain interpreter of the same version, timed inside both, in turns."""
    count = effort.pick(10_000_000, 3_000_000, 100_000)
    timed = BUSY.replace("def run", "def work") + (
        f"\nimport time\ndef run(data):\n    began = time.{clock}()\n    work(data)\n"
        f"    return {{'ms': (time.{clock}() - began) * 1e3}}\n"
    )

    def plain() -> float:
        command = [PYTHON, "-I", "-c", f"{timed}\nprint(run({count})['ms'])"]
        return float(subprocess.run(command, capture_output=True, check=True).stdout)

    def ours() -> float:
        result = executor.execute(timed, count)
        return float(str(result.metrics["ms"]))

    return race(title, {"a plain interpreter": plain, INSIDE: ours}, turns=effort.pick(16, 4))


def _memory(executor: DockerExecutor, effort: Effort) -> Table:
    used = [executor.execute(STRATEGY, DATA).memory_used_mb for _ in range(effort.pick(10, 3))]
    low, high = spread(used)
    row = Row(name="ringfence, peak of its control group", median=sorted(used)[len(used) // 2], low=low, high=high,
              turns=len(used))  # fmt: skip
    return Table(title="memory of one container", unit="MiB", rows=(row,))


def _at_once(config: DockerConfig, effort: Effort) -> Table:
    """Ten that sleep a second each: what ten take more than one is what they cost each other."""
    code = "import time\ndef run(data):\n    time.sleep(data)\n    return {}"
    seconds = effort.pick(1, 1, 0)

    def at_once(executor: DockerExecutor, count: int) -> float:
        _stand_by(executor)
        began = time.perf_counter()
        with ThreadPoolExecutor(count) as threads:
            assert all(each.success for each in threads.map(lambda _: executor.execute(code, seconds), range(count)))
        return (time.perf_counter() - began) * 1e3

    with DockerExecutor(config.with_arguments(warm_containers=_AT_ONCE)) as executor:
        figures = take_turns({"one": lambda: at_once(executor, 1), f"ringfence, {_AT_ONCE}": lambda: at_once(
            executor, _AT_ONCE)}, turns=effort.pick(5, 2))  # fmt: skip
    return Table(title=f"{_AT_ONCE} at once, {seconds} s of sleep each", unit="ms", rows=compare(figures))
