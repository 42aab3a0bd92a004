"""What does a cluster cost, and does it lose anything? Snippets a second over a Ray cluster against the local pool.

Three nodes on this machine, so no core is added: what Ray adds to each snippet is what is seen. Then one node is killed
with tasks in flight, and every snippet must have ended exactly once.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from bench.contenders import Gathered
from bench.harness import Answer, Effort, NotHere, Table, compare
from bench.installing import from_pypi
from bench.ray_cluster import NODES, SLOTS, local_rate

QUESTION = "Snippets a second over a Ray cluster of three nodes here, against the local pool; then one node is killed"
LOCAL, OVER, KILLED = "local pool", "RayPool, three nodes", "RayPool, one of three nodes killed"
_PATIENCE_S = 3600


def ask(effort: Effort) -> Answer:
    count, each, turns = effort.pick(10_000, 1500, 40), effort.pick(1000, 300, 8), effort.pick(3, 2)
    try:
        said = _measured(count, each, turns)
    except NotHere as error:
        gathered = Gathered(skipped={"RayPool": str(error)})
        return gathered.answer(_table({LOCAL: [local_rate(each) for _ in range(turns)]}))
    rates = {LOCAL: said["local"], OVER: said["ray"], KILLED: [said["rate"]] * turns}
    lost = said["count"] - said["ended"]
    bad = f"{lost} lost, {said['doubled']} doubled, {said['wrong']} wrong"
    found = f"{said['count']:,} snippets, one node killed: {bad}"
    if lost or said["doubled"] or said["wrong"]:
        raise AssertionError(found)
    return Answer(tables=(_table(rates),), findings=(found,))


def _table(rates: dict[str, list[float]]) -> Table:
    title = f"{NODES} nodes of {SLOTS} slots on {os.cpu_count()} cores"
    return Table(title=title, unit="snippets/s", rows=compare(rates), more_is_better=True)


def _measured(*numbers: int) -> dict[str, Any]:
    """In a process of its own: Ray leaves threads and signals behind."""
    command = [sys.executable, "-m", "bench.ray_cluster", *map(str, numbers)]
    done = subprocess.run(command, env=_environment(), capture_output=True, text=True, timeout=_PATIENCE_S, check=False)
    if done.returncode:
        raise AssertionError(done.stderr[-3000:])
    said: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return said


def _environment() -> dict[str, str]:
    """In which this interpreter finds Ray."""
    paths = [path for path in sys.path if path]
    if importlib.util.find_spec("ray") is None:
        python = Path(from_pypi("ray"))
        paths += map(str, python.parent.parent.glob("lib/python*/site-packages"))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
