"""Control groups that nobody looks after any more."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.patience import eventually

import ringfence
from ringfence import Outcome, Pool, SandboxPolicy, run
from ringfence.backends import groups
from ringfence.errors import SetupError, SupervisionError
from ringfence.kernel.cgroup import group as cgroups
from ringfence.kernel.proc import procfs
from ringfence.roles import first_process

pytestmark = [
    pytest.mark.system,
    pytest.mark.privileges,
    pytest.mark.skipif(sys.platform != "linux", reason="control groups are Linux's"),
]
# Killed with whatever could have cleaned up after it; what it leaves running sleeps in its group.
KILLED = """
import os, signal, sys, time
from ringfence import SandboxPolicy
from ringfence.backends import groups
group = groups.make(SandboxPolicy())
if group is None: sys.exit("no groups")
job = os.fork()
if job == 0:
    for path in group.enter_paths: open(path, "w").write("0")
    os.setsid()
    signal.alarm(60)
    print(os.getpid(), *group.directories, flush=True)
    time.sleep(300)
os.waitid(os.P_PID, job, os.WEXITED | os.WNOWAIT | os.WSTOPPED)
"""


def test_what_a_killed_caller_and_its_leader_left_is_swept_after_the_next_first_job() -> None:
    with subprocess.Popen([sys.executable, "-c", KILLED], stdout=subprocess.PIPE, text=True) as caller:
        assert caller.stdout is not None
        job, *directories = caller.stdout.readline().split() or ("0",)
        caller.send_signal(signal.SIGKILL)
    if not directories:  # an ordinary user without a group of his own: nothing is left that could be swept
        made = groups.make(SandboxPolicy())
        assert made is None or not made.directories
        return
    groups._swept.clear()  # as in a process that has not used a group yet
    assert run(["true"], SandboxPolicy()).ok
    eventually(lambda: not [directory for directory in directories if os.path.exists(directory)])
    eventually(lambda: (row := procfs.stat(int(job))) is None or row.zombie)


def test_a_group_that_can_not_be_swept_refuses_no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> None:
        raise SupervisionError("can't remove it")

    monkeypatch.setattr(cgroups, "sweep", fails)
    monkeypatch.setattr(groups, "_swept", [])
    group = groups.make(SandboxPolicy())
    if group is not None:
        group.remove()
    assert groups._swept == []
    assert run(["true"], SandboxPolicy()).ok
    assert groups._swept == ([os.getpid()] if group else [])


@pytest.mark.parametrize("way", ["run", "pool", "box"])
def test_a_sandbox_whose_group_can_not_be_entered_runs_nothing(
    way: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real, absent, proof = groups.paths_of, f"{tmp_path}/no-group/tasks", tmp_path / "ran"
    policy = SandboxPolicy(isolation="strict", writable_paths=(str(tmp_path),))
    monkeypatch.setattr(groups, "paths_of", lambda group: {**real(group), "enter": [absent]})
    with pytest.raises(SetupError, match=f"join groups: No such file or directory: {absent}"):
        _carried_out(way, ["touch", str(proof)], policy)
    assert not proof.exists()
    monkeypatch.undo()
    assert _carried_out(way, ["touch", str(proof)], policy).ok and proof.exists(), "the control"


def test_pid_1_that_has_failed_is_told_apart_from_one_that_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one that has failed, whoever makes it does not report that its files in /proc are closed by then."""
    monkeypatch.setattr(first_process, "_LOOKS", 3)
    with subprocess.Popen(["sleep", "60"]) as waits:
        assert not first_process.ends_by_itself(waits.pid)
        waits.kill()
        os.waitid(os.P_PID, waits.pid, os.WEXITED | os.WNOWAIT)
        assert first_process.ends_by_itself(waits.pid)
    assert first_process.ends_by_itself(waits.pid)


def _carried_out(way: str, argv: list[str], policy: SandboxPolicy) -> Outcome:
    if way == "run":
        return run(argv, policy)
    if way == "box":
        with ringfence.open(policy) as box:
            return box.run(argv)
    with Pool(policy, warm=1) as pool:
        return pool.run(argv)
