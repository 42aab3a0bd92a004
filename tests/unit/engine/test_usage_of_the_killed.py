"""What a job used is what its processes used, however they end, and the work that they had their leader do."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.testable import not_testable_here
from tests.unit.monitor.arena import is_on_disk

import ringfence
from ringfence.engine.run import run
from ringfence.kernel.cgroup import group as cgroups
from ringfence.model.job import Job
from ringfence.model.outcome import Outcome, Status
from ringfence.model.policy import SandboxPolicy

pytestmark = [pytest.mark.system, pytest.mark.privileges, pytest.mark.unmeasured]

LEVELS = ("strict", "process")
# Says again and again, and to the end, how much time it has used itself.
BURN = (
    "import os, sys, time\ndef burn(until=1e9):\n  while time.process_time() < until:\n"
    "    for _ in range(20000): pass\n    os.write(1, b'%f\\n' % time.process_time())\n"
)
ENDS = {
    "the deadline": "burn()",
    "a child, to the deadline": "if os.fork() == 0: burn()\ntime.sleep(60)",
    "an orphan beside a quiet end": "if os.fork() == 0: burn()\ntime.sleep(1.5)",
    "one that nobody waits for": "import signal\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
    "if os.fork() == 0: burn(0.4); os._exit(0)\ntime.sleep(60)",
    "SIGKILL from itself": "burn(0.5); os.kill(os.getpid(), 9)",
}


def _used_s(outcome: Outcome) -> float:
    return outcome.usage.cpu_user_s + outcome.usage.cpu_system_s


def _said_s(outcome: Outcome) -> float:
    """The most that one of its processes has said."""
    return max(map(float, outcome.stdout.split()), default=0.0)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("end", ENDS)
def test_the_time_of_what_was_ended_is_told(level: str, end: str) -> None:
    policy = SandboxPolicy.from_dict({"isolation": level, "wall_time_s": 2, "cpu_time_s": 30})
    outcome = run([sys.executable, "-S", "-c", BURN + ENDS[end]], policy)
    said = _said_s(outcome)
    assert said > 0.1, "control: it did burn"
    assert _used_s(outcome) >= said * 0.7, (outcome.status, said)
    assert _used_s(outcome) <= outcome.usage.wall_s * (os.cpu_count() or 1) + 1


def test_a_visit_to_a_box_that_is_ended_tells_its_time_too() -> None:
    policy = SandboxPolicy.from_dict({"isolation": "strict", "wall_time_s": 2, "cpu_time_s": 30})
    with ringfence.open(policy) as box:
        outcome = box.run([sys.executable, "-S", "-c", BURN + "burn()"])
    assert outcome.status is Status.TIMEOUT and _used_s(outcome) >= _said_s(outcome) * 0.7 > 0.05


# ---- what it wrote

WRITE = "import os, time\ndef write():\n  with open('f', 'wb') as f:\n    for _ in range(12): f.write(bytes(1 << 20))\n"
WRITERS = {
    "itself": "write(); print('x', flush=True); time.sleep(60)",
    "a child": "if os.fork() == 0: write(); print('x', flush=True)\ntime.sleep(60)",
    "one that goes on": "if os.fork() == 0: write(); print('x', flush=True); time.sleep(60)\ntime.sleep(60)",
}


@pytest.fixture
def on_disk(tmp_path: Path) -> Path:
    if not is_on_disk(tmp_path):
        not_testable_here("temporary directories lie on no storage")
    return tmp_path


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("writer", WRITERS)
def test_what_was_written_by_what_was_ended_is_told(level: str, writer: str, on_disk: Path) -> None:
    found: list[Any] = []
    job = Job(argv=(sys.executable, "-S", "-c", WRITE + WRITERS[writer]), cwd=str(on_disk))
    outcome = run(job, SandboxPolicy.from_dict({"isolation": level}), attach=lambda visit, _: found.append(visit),
                  on_output=lambda *_: found[0].signal(9))  # fmt: skip
    assert outcome.status is Status.KILLED_KILL and 12 << 20 <= outcome.usage.written_bytes < 24 << 20


@pytest.mark.parametrize("level", LEVELS)
def test_what_a_job_was_ended_for_is_in_its_usage(level: str, on_disk: Path) -> None:
    job = Job(argv=(sys.executable, "-S", "-c", WRITE + "write(); time.sleep(60)"), cwd=str(on_disk))
    outcome = run(job, SandboxPolicy.from_dict({"isolation": level, "disk_bytes": 4 << 20}))
    assert outcome.status is Status.DISK_LIMIT and outcome.usage.written_bytes > 4 << 20


# ---- what it has its leader do

FLOOD = "import os, sys\nwhile True: os.access(sys.argv[1] + '/hidden/x', 0)"


def _flood(folder: Path, **more: object) -> Outcome:
    (folder / "hidden").mkdir()
    limits = {"isolation": "strict", "hidden_paths": [f"{folder}/hidden"], "syscall_profile": "default"}
    return run(Job(argv=(sys.executable, "-S", "-c", FLOOD, str(folder)), cwd=str(folder)),
               SandboxPolicy.from_dict(limits | more))  # fmt: skip


def test_the_leaders_work_for_a_job_is_the_jobs_time(tmp_path: Path) -> None:
    """Its own time alone would come to the kernel's limit for a process, which says so."""
    outcome = _flood(tmp_path, cpu_time_s=1, wall_time_s=60)
    assert outcome.status is Status.CPU_LIMIT and "watchdog" in outcome.reason, outcome.reason
    assert outcome.usage.wall_s < 50 and _used_s(outcome) > 1


def test_the_leaders_work_for_a_job_keeps_to_the_share(tmp_path: Path) -> None:
    if cgroups.probe().missing("cpu_share"):
        not_testable_here("no control group holds a share for this user")
    outcome = _flood(tmp_path, cpu_share=0.2, cpu_time_s=60, wall_time_s=4)
    assert outcome.status is Status.TIMEOUT and int(str(outcome.recorder["total"])) > 100
    # A share for the job, another for its leader, and what both may use at once.
    assert _used_s(outcome) <= 2 * 0.2 * outcome.usage.wall_s + 0.8, outcome.usage
