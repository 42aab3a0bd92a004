"""From policy numbers to resource limits, and what the host's own hard limits leave of them."""

from __future__ import annotations

import os
import resource
import sys

import pytest

from ringfence.engine.run import run
from ringfence.kernel import rlimits
from ringfence.model.policy import SandboxPolicy

pytestmark = pytest.mark.privileges


def test_what_is_asked_becomes_limits_with_room_for_the_warning_signal() -> None:
    asked = SandboxPolicy(cpu_time_s=1.2, mem_bytes=4096, nofile=10, file_bytes=7, pids_max=3).numbers()
    assert {name: (soft, hard) for name, soft, hard in rlimits.rows(asked, 100)} == {
        "RLIMIT_CORE": (rlimits.NO_CORE,) * 2, "RLIMIT_NPROC": (103,) * 2,
        "RLIMIT_CPU": (2, 2 + rlimits.CPU_GRACE_S), rlimits.MEMORY: (4096, 4096), "RLIMIT_NOFILE": (10, 10),
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


def test_only_what_no_policy_asks_for_gives_way_to_the_hosts_limit(hard_limits, monkeypatch) -> None:
    set_to: list[tuple[int, tuple[int, int]]] = []
    monkeypatch.setattr(resource, "setrlimit", lambda *row: set_to.append(row))
    hard_limits[resource.RLIMIT_NPROC] = hard_limits[resource.RLIMIT_NOFILE] = 50
    hard_limits[resource.RLIMIT_CORE] = 0
    rlimits.apply("RLIMIT_NPROC", 4100, 4100)
    rlimits.apply("RLIMIT_NOFILE", 60, 60)
    rlimits.apply("RLIMIT_CORE", 1, 1)
    assert set_to == [(resource.RLIMIT_NPROC, (50, 50)), (resource.RLIMIT_NOFILE, (60, 60)),
                      (resource.RLIMIT_CORE, (0, 0))]  # fmt: skip


@pytest.mark.skipif(sys.platform != "linux", reason="these limits are Linux's")
def test_the_share_of_a_job_behind_walls_gives_way_to_the_hosts_limits(hard_limits, monkeypatch) -> None:
    set_to: dict[int, tuple[int, int]] = {}
    monkeypatch.setattr(resource, "setrlimit", lambda number, row: set_to.update({number: row}))
    hard_limits[resource.RLIMIT_SIGPENDING] = 7
    for row in rlimits.shares():
        rlimits.apply(*row)
    assert set_to[resource.RLIMIT_SIGPENDING] == (7, 7)
    assert set_to[resource.RLIMIT_MEMLOCK] == (256 * 1024,) * 2 and set_to[resource.RLIMIT_RTPRIO] == (0, 0)


@pytest.mark.parametrize(("release", "bound"), [
    ("5.13.19-generic", False), ("5.14.0", True), ("5.4", False), ("6.18.44-x", True), ("10.0-rc1", True), ("", False),
    ("strange", False), ("5", False), ("6.x", True),
])  # fmt: skip
def test_a_sandbox_is_counted_by_its_own_namespace_where_the_kernel_does(release: str, bound: bool) -> None:
    assert (rlimits.namespace_slack(release) == rlimits.NAMESPACE_SLACK) is bound


@pytest.mark.system
def test_behind_walls_the_kernel_lets_a_bomb_grow_little_beyond_its_limit() -> None:
    policy = SandboxPolicy(isolation="strict", pids_max=20)  # type: ignore[arg-type]
    outcome = run(["sh", "-c", "ulimit -u || cat /proc/self/limits"], policy)
    bound = 20 + rlimits.namespace_slack(os.uname().release)
    assert str(bound).encode() in outcome.stdout, outcome
