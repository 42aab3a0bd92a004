"""Root where nothing was delegated; run in the guest by test_cgroup_v2_guest.py, never collected elsewhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial

import group_jobs as jobs
import pytest

from ringfence.kernel.cgroup import host as cgroup_host
from ringfence.kernel.cgroup import tree as cgroup_tree

ROOT = "/sys/fs/cgroup"
RUN = """
import sys
from ringfence import IsolationLevel, SandboxPolicy, run
policy = SandboxPolicy(isolation=IsolationLevel.STRICT, wall_time_s=300, cpu_share=0.5)
outcome = run([sys.executable, "-I", "-S", "-c", "print('ran')"], policy)
print(outcome.stdout.decode(), outcome.reason)
print({name: outcome.enforced[name].mechanism for name in ("memory", "pids", "cpu_share")})
"""


@pytest.fixture
def login() -> Iterator[tuple[str, int]]:
    """A group with a process that is nobody's child here, directly below the root of the tree."""
    path = f"{ROOT}/login.scope"
    os.mkdir(path)
    with jobs.pipe() as (read, write):
        first = jobs.start(None, partial(_stay, write))
        stranger = int(os.read(read, 32))
    jobs.end(first)
    cgroup_tree.write(f"{path}/cgroup.procs", str(stranger))
    yield path, stranger
    cgroup_tree.remove([path])


def _stay(tell: int) -> None:
    """Leave a process that is nobody's child for as long as the test takes: under emulation that is minutes."""
    if os.fork():
        return
    os.write(tell, str(os.getpid()).encode())
    os.close(tell)
    time.sleep(3600)


def _python_in(group: str, *arguments: str) -> str:
    """What the interpreter prints that is started in a group."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    enter = partial(cgroup_tree.enter, [f"{group}/cgroup.procs"])
    argv = [sys.executable, *arguments]
    return subprocess.run(argv, stdout=subprocess.PIPE, env=environment, text=True, preexec_fn=enter).stdout


def test_probe_says_that_groups_are_made_at_the_root_of_the_tree(login: tuple[str, int]) -> None:
    path, _ = login
    told = json.loads(_python_in(path, "-m", "ringfence", "probe", "--json"))
    own, beside = told["control_groups"]
    assert (own["place"], own["directory"], own["taken"]) == (cgroup_host.OWN, path, False)
    assert (beside["place"], beside["taken"], beside["problem"]) == (cgroup_host.BESIDE, True, "")
    assert os.path.dirname(beside["directory"]) == ROOT
    assert told["levels"]["process"]["capabilities"]["memory"]["mechanism"] == "cgroup v2 memory.max"


def test_the_limits_of_a_strict_job_are_the_kernels_and_nothing_is_left(login: tuple[str, int]) -> None:
    path, stranger = login
    told = _python_in(path, "-c", RUN)
    assert told.startswith("ran")
    assert all(f"cgroup v2 {file}" in told for file in ("memory.max", "pids.max", "cpu.max")), told
    assert jobs.eventually(lambda: cgroup_tree.members([path]) == {stranger}, 60), "the caller's spawner ends after it"
    assert not [name for name in os.listdir(ROOT) if name.startswith(cgroup_tree.TWIN)]
