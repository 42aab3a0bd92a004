"""At the process level the kernel holds memory and tasks where a control group is to be had."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import ringfence
from ringfence import Pool, SandboxPolicy, run
from ringfence.backends import process
from ringfence.kernel.cgroup import group as cgroups

pytestmark = [pytest.mark.system, pytest.mark.root, pytest.mark.unmeasured]

POLICY = SandboxPolicy(mem_bytes=64 << 20, pids_max=8)
HOG = "x = bytearray(b'x') * (200 << 20); print('had it')"
FORKS = "import os, time\nfor _ in range(20):\n if os.fork() == 0: time.sleep(5); os._exit(0)\nprint('had them')"
PYTHON = (sys.executable, "-I", "-S", "-c")


def _groups(pid: int) -> list[Path]:
    parents = {hierarchy.parent for hierarchy in cgroups.probe().hierarchies}
    return [path for parent in parents for path in Path(parent).glob(f"ringfence-*-{pid}-*")]


@pytest.fixture(autouse=True)
def _no_group_is_left() -> Iterator[None]:
    """Beyond those of other tests, whose pool may stand."""
    before = set(_groups(os.getpid()))
    yield
    assert not set(_groups(os.getpid())) - before


def test_the_kernel_holds_memory_and_tasks_of_a_plain_job() -> None:
    outcome = run([*PYTHON, HOG], POLICY)
    assert "cgroup" in outcome.enforced["memory"].by and "cgroup" in outcome.enforced["pids"].by
    assert (outcome.status, outcome.rc, outcome.stdout) == ("MEM_LIMIT", 137, b"") and "oom_kill 1" in outcome.reason
    assert run([*PYTHON, HOG], POLICY.with_changes(mem_bytes=1 << 30)).stdout == b"had it\n"
    refused = run([*PYTHON, FORKS], POLICY)
    assert (refused.status, refused.stdout) == ("PIDS_LIMIT", b"") and "pids cgroup" in refused.reason
    assert run([*PYTHON, FORKS], POLICY.with_changes(pids_max=40)).stdout == b"had them\n"


LEAVES = """
import os
def holds(controllers, mount):
    kind, options = mount.split(' - ')[1].split()[0], set(mount.split()[-1].split(','))
    return kind == 'cgroup2' if not controllers else kind == 'cgroup' and set(controllers.split(',')) <= options
mounts = open('/proc/self/mountinfo').readlines()
for line in open('/proc/self/cgroup'):
    _, controllers, path = line.strip().split(':', 2)
    top = next((mount.split()[4] for mount in mounts if holds(controllers, mount)), '')
    if 'ringfence-' in path and top:
        with open(top + os.path.dirname(path) + '/cgroup.procs', 'w') as file: file.write('0')
print('left' if 'ringfence-' not in open('/proc/self/cgroup').read() else 'stayed', flush=True)
"""
STAYS = "import time; time.sleep(9)"


@pytest.mark.parametrize(("program", "status"), [(HOG, "MEM_LIMIT"), (FORKS, "PIDS_LIMIT")])
def test_a_job_that_leaves_its_group_is_held_by_the_watchdog(program: str, status: str) -> None:
    outcome = run([*PYTHON, f"{LEAVES}\n{program}\n{STAYS}"], POLICY)
    assert outcome.stdout.startswith(b"left\n"), outcome.stdout + outcome.stderr
    assert outcome.status == status and "watchdog" in outcome.reason


def test_where_no_group_is_to_be_had_the_table_says_what_holds_it_instead(monkeypatch) -> None:
    monkeypatch.setattr(process, "make_group", lambda policy: None)
    outcome = run([*PYTHON, HOG], POLICY)
    assert outcome.enforced["memory"].mechanism == "RLIMIT_DATA and watchdog" and outcome.status == "MEM_LIMIT"


def test_a_visit_to_a_folder_box_answers_for_itself_alone() -> None:
    with ringfence.open(POLICY) as box:
        assert box.run([*PYTHON, HOG]).status == "MEM_LIMIT"
        after = box.run(["true"])
        assert (after.status, after.limits_hit) == ("OK", ())


def test_jobs_of_a_pool_are_in_groups_too() -> None:
    with Pool(POLICY, warm=1) as pool:
        assert pool.run_source("x = bytearray(b'x') * (200 << 20)").status == "MEM_LIMIT"
        assert pool.run_source("print(1)").stdout == b"1\n"


def test_a_killed_caller_leaves_no_group() -> None:
    code = "from ringfence import run; print('go', flush=True); run(['sleep', '60'])"
    caller = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    try:
        assert caller.stdout is not None and caller.stdout.readline() == b"go\n"
        assert _comes(lambda: any((group / "cgroup.procs").read_text() for group in _groups(caller.pid)))  # the control
    finally:
        os.kill(caller.pid, signal.SIGKILL)
        caller.wait()
    assert _comes(lambda: not _groups(caller.pid))


def _comes(holds, within_s: float = 60) -> bool:
    until = time.monotonic() + within_s
    while time.monotonic() < until and not holds():
        time.sleep(0.02)
    return bool(holds())


@pytest.mark.parametrize("level", ("process", "strict"))
def test_a_limit_that_a_child_reached_is_named_beside_the_jobs_own_end(level: str) -> None:
    policy = POLICY.with_changes(isolation=level, wall_time_s=3)
    hog = f"{sys.executable} -I -S -c \"{HOG}\"; sleep 60"
    killed = run(["sh", "-c", hog], policy)
    assert (killed.status, killed.rc, killed.limits_hit) == ("TIMEOUT", 124, ("wall_time", "memory")), killed.reason
    forks = f"{sys.executable} -I -S -c '{FORKS.replace('5', '1')}' 2> /dev/null; true"
    refused = run(["sh", "-c", forks.replace("'had them'", '"had them"')], policy.with_changes(wall_time_s=60))
    assert (refused.status, refused.rc, refused.limits_hit) == ("OK", 0, ("pids",)), refused.reason
    assert run(["true"], policy).limits_hit == ()
