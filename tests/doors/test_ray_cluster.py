"""Pools over a real cluster of Ray: it runs on this machine, in processes of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from bench.ray_cluster import TOKEN
from tests.ray_environment import ray_environment

if sys.platform != "linux":
    pytest.skip("pools need Linux", allow_module_level=True)

pytestmark = pytest.mark.system

ROOT = Path(__file__).resolve().parents[2]


def _said(what: str) -> dict[str, object]:
    command = [sys.executable, "-m", "tests.doors.ray_program", what]
    done = subprocess.run(command, cwd=ROOT, env=dict(ray_environment()), capture_output=True, text=True, timeout=900,
                          check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    said: dict[str, object] = json.loads(done.stdout.strip().splitlines()[-1])
    return said


@pytest.mark.soak
def test_a_cluster_runs_jobs_and_no_job_reaches_the_cluster() -> None:
    said = _said("short")
    assert (said["source"], said["call"], said["status"]) == ("2\n", 42, 3)
    assert said["map"] == [number * number for number in range(20)]
    assert said["attack"] == []
    control = said["control"]
    assert isinstance(control, list) and len(control) == said["places"] and TOKEN in control


@pytest.mark.soak
def test_a_killed_node_loses_and_doubles_nothing() -> None:
    said = _said("kill")
    assert said["ended"] == said["different"] == said["count"] and said["wrong"] == 0


@pytest.mark.soak
def test_a_suite_over_a_cluster_has_every_task_once() -> None:
    said = _said("suite")
    assert said["codes"] == [0, 0]
    assert said["rows"] == [[f"t{number}", 1, True] for number in range(6)]
