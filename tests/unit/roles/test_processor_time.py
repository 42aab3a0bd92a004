"""The time of a tree is that of the job's processes, dead or alive, and not of ours between them and the leader."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest

from ringfence.roles.processor_time import ProcessorTime

OURS, THEIRS = os.getsid(0), -7


def row(pid: int, own: int, waited: int = 0, *, session: int = THEIRS, system: int = 0) -> Any:
    counts = {"own_ticks": own, "cpu_ticks": own + waited, "system_ticks": system}
    return SimpleNamespace(pid=pid, start=1, session=session, **counts)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What this process has waited for, in seconds; to be changed."""
    waited = [0.0]
    monkeypatch.setattr(os, "times", lambda: (0.0, 0.0, waited[0], 0.0, 0.0))
    return waited


def test_what_pid_1_and_holders_use_themselves_is_not_the_jobs(counted: list[float]) -> None:
    time = ProcessorTime(100)
    assert time.used_s([row(1, 900, session=OURS), row(2, 50, 30)]) == pytest.approx(0.8)
    assert ProcessorTime(100).used_s([row(1, 900), row(2, 50, 30)]) == pytest.approx(9.8), "control: not of our session"


def test_what_pid_1_has_waited_for_is(counted: list[float]) -> None:
    assert ProcessorTime(100).used_s([row(1, 900, 120, session=OURS)]) == pytest.approx(1.2)


def test_when_pid_1_has_ended_its_own_time_is_still_nobodys(counted: list[float]) -> None:
    time = ProcessorTime(100)
    time.used_s([row(1, 900, session=OURS), row(2, 50)])
    counted[0] = 9.0 + 0.6  # pid 1 and, by it, the job
    assert time.used_s([]) == pytest.approx(0.6)


def test_one_that_nobody_waits_for_is_counted_as_it_was_last_seen(counted: list[float]) -> None:
    time = ProcessorTime(100)
    time.used_s([row(2, 250)])
    assert time.used_s([]) == pytest.approx(2.5)
    assert time.most_us() == (2_500_000, 0)


def test_the_most_is_split_as_the_living_had_it(counted: list[float]) -> None:
    time = ProcessorTime(100)
    time.used_s([row(2, 100, system=25)])
    time.used_s([])
    assert time.most_us() == (750_000, 250_000)
