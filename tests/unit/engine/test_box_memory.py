"""A process of a box that is killed for its memory is told of each visit that was there, and of no other."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from tests.escape.attack import PARTIAL, interpreter_for

import ringfence
from ringfence import Outcome, SandboxPolicy, Status
from ringfence.engine.box import Box
from ringfence.sandbox import host

pytestmark = [pytest.mark.system, pytest.mark.privileges]

PYTHON = interpreter_for(PARTIAL)
LIMIT_BYTES = 150 << 20
HOG = "x = bytearray(400 << 20); x[::4096] = b'1' * len(x[::4096])"
PARENT = f"""
import subprocess, sys
print(subprocess.run([sys.executable, '-c', {HOG!r}], stderr=subprocess.DEVNULL).returncode, flush=True)
sys.exit(int(sys.argv[1]))
"""


@pytest.fixture(params=["in namespaces", "without namespaces"])
def box(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Box]:
    if request.param == "without namespaces":
        monkeypatch.setattr(host, "user_namespaces_blocked", lambda: ("they are switched off", "switch them on"))
    policy = SandboxPolicy(isolation="strict", wall_time_s=60, mem_bytes=LIMIT_BYTES, allow_partial=True)
    with ringfence.open(policy) as opened:
        yield opened


def _held_by_group(box: Box) -> bool:
    """By the kernel, which ends one process; where there is no group the watchdog ends the whole."""
    return "cgroup" in box.enforced["memory"].by


def _plain(outcome: Outcome) -> tuple[Status, int, tuple[str, ...]]:
    return outcome.status, outcome.rc, outcome.limits_hit


@pytest.mark.parametrize(("code", "status"), [(0, Status.OK), (1, Status.FAILED)])
def test_a_job_whose_child_was_killed_ends_as_it_ended_and_the_limit_is_named(
    box: Box, code: int, status: Status
) -> None:
    outcome = box.run([PYTHON, "-c", PARENT, str(code)])
    if not _held_by_group(box):
        assert not outcome.ok or outcome.stdout == b"1\n"  # ended by the watchdog, or its child was refused
        return
    assert outcome.stdout == b"-9\n" and _plain(outcome) == (status, code, ("memory",))
    assert outcome.partial or ("150 MiB" in outcome.reason and "oom_kill 1" in outcome.reason)
    assert _plain(box.run(["true"])) == (Status.OK, 0, ()), "a later visit has nothing to do with it"


def test_a_job_that_is_killed_itself_has_reached_the_limit(box: Box) -> None:
    outcome = box.run([PYTHON, "-c", HOG])
    assert (outcome.status, outcome.limits_hit) == (Status.MEM_LIMIT, ("memory",))


def test_in_a_sandbox_of_one_job_the_same_is_no_success() -> None:
    """Nobody else was there: the memory was the job's."""
    policy = SandboxPolicy(isolation="strict", wall_time_s=60, mem_bytes=LIMIT_BYTES)
    outcome = ringfence.run([sys.executable, "-c", PARENT, "0"], policy)
    assert outcome.status is Status.MEM_LIMIT or "cgroup" not in outcome.enforced["memory"].by
