"""A cluster of Ray on this machine, with a token, that ends with whoever made it. Also run by itself, with Ray at hand:

    python -m bench.ray_cluster COUNT EACH TURNS

prints one JSON object: snippets a second of the local pool and of the cluster, turn by turn, and what became of COUNT
snippets when a node was killed.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ringfence import Pool, SandboxPolicy

TOKEN = "0123456789abcdef0123456789abcdef"
NODES, SLOTS = 3, 2
_ADDRESSES = "/tmp/ray"
_STORE_BYTES = 80 << 20
_TOLD, _TRIES = 500, 4


@contextmanager
def cluster(slots: list[int]) -> Iterator[Any]:
    """Nodes with so many slots each, the first is the head. The directory's path is short: sockets lie in it."""
    folder = tempfile.mkdtemp(prefix="rf", dir="/tmp")
    token = os.path.join(folder, "token")
    with open(os.open(token, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(TOKEN)
    os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN_PATH=token, RAY_USAGE_STATS_ENABLED="0",
                      RAY_worker_niceness="0")  # fmt: skip
    from ray.cluster_utils import Cluster

    import ray

    nodes = [{"num_cpus": 1, "object_store_memory": _STORE_BYTES, "resources": {"sandbox_slots": each} if each else {}}
             for each in slots]  # fmt: skip
    os.makedirs(_ADDRESSES, exist_ok=True)  # the cluster's head writes its address there, wherever its directory is
    made = Cluster()
    try:
        _add(made, {**nodes[0], "include_dashboard": False, "temp_dir": folder})
        made.others = [_add(made, each) for each in nodes[1:]]
        yield made
    finally:
        ray.shutdown()
        made.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


def _add(made: Any, node: dict[str, Any]) -> Any:
    """Ray gives a node half a minute to start, which a busy machine may exceed."""
    for _ in range(_TRIES - 1):
        try:
            return made.add_node(**node)
        except Exception as error:
            if "timed out during startup" not in str(error):
                raise
    return made.add_node(**node)


def local_rate(count: int) -> float:
    """Snippets a second of a pool on this machine, as many at a time as the cluster has slots."""
    with Pool(_policy(), warm=NODES * SLOTS, at_once=NODES * SLOTS) as pool:
        pool.run_source("print(0)")
        start = time.perf_counter()
        ends = [future.result() for future in pool.submit_many(_snippets(count))]
        took = time.perf_counter() - start
    _check({place: end.stdout for place, end in enumerate(ends)}, count)
    return count / took


def measured(count: int, each: int, turns: int) -> dict[str, object]:
    """Turns of both, then the run in which a node is killed with tasks in flight."""
    from ringfence.integrations.ray import RayPool

    local: list[float] = []
    over: list[float] = []
    with cluster([SLOTS] * NODES) as made, RayPool(_policy(), address=made.address, width=SLOTS) as pool:
        list(pool.run_sources(_snippets(8 * NODES)))  # every worker has its pool
        for _ in range(turns):
            local.append(local_rate(each))
            start = time.perf_counter()
            ends = [(place, end.stdout) for place, end in pool.run_sources(_snippets(each))]
            over.append(each / (time.perf_counter() - start))
            _check(dict(ends), each)
        return {"local": local, "ray": over, **_killed(made, pool, count)}


def _killed(made: Any, pool: Any, count: int) -> dict[str, object]:
    ends: dict[int, bytes] = {}
    doubled = 0
    start = time.perf_counter()
    for place, end in pool.run_sources(_snippets(count)):
        doubled += place in ends
        ends[place] = end.stdout
        if len(ends) == count // 3:
            made.remove_node(made.others[-1], allow_graceful=False)
        if len(ends) % _TOLD == 0:
            print(f"{len(ends):,} of {count:,} after {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
    took = time.perf_counter() - start
    wrong = sum(text != b"%d\n" % place for place, text in ends.items())
    return {"count": count, "ended": len(ends), "doubled": doubled, "wrong": wrong, "rate": count / took}


def _policy() -> SandboxPolicy:
    return SandboxPolicy(isolation="strict", wall_time_s=60)


def _snippets(count: int) -> list[str]:
    return [f"print({number})" for number in range(count)]


def _check(ends: dict[int, bytes], count: int) -> None:
    assert ends == {number: b"%d\n" % number for number in range(count)}, "a snippet printed something else"


if __name__ == "__main__":
    print("\n" + json.dumps(measured(*map(int, sys.argv[1:4]))), flush=True)
