"""From policy numbers to resource limits, and what the host's own hard limits leave of them."""

from __future__ import annotations

import resource

import pytest

from ringfence.model.policy import SandboxPolicy
from ringfence.posix import rlimits

pytestmark = pytest.mark.privileges


def test_what_is_asked_becomes_limits_with_room_for_the_warning_signal() -> None:
    asked = SandboxPolicy(cpu_time_s=1.2, mem_bytes=4096, nofile=10, file_bytes=7, pids_max=3).numbers()
    assert {name: (soft, hard) for name, soft, hard in rlimits.rows(asked, 100)} == {
        "RLIMIT_CORE": (0, 0), "RLIMIT_NPROC": (103 + rlimits.NPROC_SLACK,) * 2,
        "RLIMIT_CPU": (2, 2 + rlimits.CPU_GRACE_S), "RLIMIT_AS": (4096, 4096), "RLIMIT_NOFILE": (10, 10),
        "RLIMIT_FSIZE": (7, 7),
    }  # fmt: skip


def test_what_is_not_asked_is_not_limited_but_core_files_and_bombs_always_are() -> None:
    assert [name for name, _, _ in rlimits.rows({"pids": 1}, 0)] == ["RLIMIT_CORE", "RLIMIT_NPROC"]


@pytest.fixture
def hard_limits(monkeypatch):
    table: dict[int, int] = {}
    monkeypatch.setattr(resource, "getrlimit", lambda number: (0, table.get(number, resource.RLIM_INFINITY)))
    return table


def test_more_than_the_hosts_hard_limit_is_told(hard_limits) -> None:
    asked = SandboxPolicy(cpu_time_s=5, nofile=100).numbers()
    hard_limits[resource.RLIMIT_NOFILE] = 100
    hard_limits[resource.RLIMIT_CPU] = 5 + rlimits.CPU_GRACE_S
    assert rlimits.beyond_hard_limit(asked) == []
    hard_limits[resource.RLIMIT_NOFILE] = 99
    hard_limits[resource.RLIMIT_CPU] = 5 + rlimits.CPU_GRACE_S - 1
    assert rlimits.beyond_hard_limit(asked) == [("cpu_time", "RLIMIT_CPU", 6), ("nofile", "RLIMIT_NOFILE", 99)]


def test_only_the_net_against_bombs_gives_way_to_the_hosts_limit(hard_limits, monkeypatch) -> None:
    set_to: list[tuple[int, tuple[int, int]]] = []
    monkeypatch.setattr(resource, "setrlimit", lambda *row: set_to.append(row))
    hard_limits[resource.RLIMIT_NPROC] = hard_limits[resource.RLIMIT_NOFILE] = 50
    rlimits.apply("RLIMIT_NPROC", 4100, 4100)
    rlimits.apply("RLIMIT_NOFILE", 60, 60)
    assert set_to == [(resource.RLIMIT_NPROC, (50, 50)), (resource.RLIMIT_NOFILE, (60, 60))]
