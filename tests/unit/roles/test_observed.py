"""A plain job whose calls are told to its leader: what it has the leader do is bounded, and is the job's."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace
from typing import Any

import pytest

if sys.platform != "linux":
    pytest.skip("a listener needs Linux", allow_module_level=True)

from ringfence import SandboxPolicy, run
from ringfence.backends import process
from ringfence.roles import observed

pytestmark = [pytest.mark.system]

FLOOD = """
import mmap
while True:
    mmap.mmap(-1, 4 << 20, flags=mmap.MAP_PRIVATE).close()
"""


class _Flood:
    """A listener at which a call always waits."""

    finished = False

    def handle(self) -> object:
        return SimpleNamespace(name="exit_group", thread=0, args=(1,))

    def proceed(self, _: object) -> bool:
        return True


@pytest.mark.parametrize(("look_ms", "most"), [(0, 64), (50, 1)])
def test_a_flood_does_not_keep_the_leader_from_its_other_work(
    look_ms: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, seen = [0], []

    def see(*_: object) -> bool:
        seen.append(1)
        now[0] += look_ms * 1_000_000
        return True

    watching: Any = observed.Observed({})
    monkeypatch.setattr(watching.witness, "see", see)
    monkeypatch.setattr(observed, "time", SimpleNamespace(monotonic_ns=lambda: now[0]))
    watching._answer(_Flood())
    assert len(seen) == most
    os.close(watching.door)
    os.close(watching.theirs)


@pytest.mark.slow
def test_answers_count_as_processor_time_of_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "make_group", lambda _: None)  # a group that holds memory has no mapping told
    policy = SandboxPolicy(isolation="process", cpu_time_s=1, wall_time_s=300)
    done = run([sys.executable, "-S", "-c", FLOOD], policy=policy)
    assert done.status == "CPU_LIMIT", done.reason
