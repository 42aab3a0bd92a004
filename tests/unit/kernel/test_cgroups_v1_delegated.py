"""An ordinary user on a v1 or hybrid host, in groups that the operator has handed over in each hierarchy."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial

import group_jobs as jobs
import pytest

from ringfence.kernel.cgroup import group as cgroups
from ringfence.kernel.cgroup import tree as cgroup_tree
from ringfence.kernel.cgroup.group import CgroupLimits
from ringfence.kernel.cgroup.host import PARENT_VARIABLE

pytestmark = [pytest.mark.system, pytest.mark.privileges]

USER = 65534
MIB = 1 << 20


@pytest.fixture
def handed_over() -> Iterator[str]:
    name = f"/handed-over-{os.getpid()}"
    groups = [hierarchy.parent for hierarchy in cgroups.probe(parent=name).hierarchies]
    for group in groups:
        os.mkdir(group)
        for path in (group, f"{group}/cgroup.procs"):
            os.chown(path, USER, USER)
    yield name
    cgroup_tree.remove(groups)


def _as_user(program) -> bytes:
    with jobs.pipe() as (read, write):

        def run() -> None:
            os.setgroups([])
            os.setresgid(USER, USER, USER)
            os.setresuid(USER, USER, USER)
            os.write(write, repr(program()).encode())

        assert jobs.end(jobs.start(None, run)) == 0
        return os.read(read, 4096)


def _hog() -> tuple[int, int, bool]:
    with cgroups.create(CgroupLimits(mem_bytes=16 * MIB, cpu_share=0.5)) as group:
        ended = jobs.end(jobs.start(group, partial(jobs.use_memory, 32 * MIB)))
        killed = group.events().oom_kills >= 1
    with cgroups.create(CgroupLimits(pids_max=8)) as group:
        return ended, jobs.end(jobs.start(group, partial(jobs.fork_until_refused, 20))), killed


def test_a_user_with_groups_of_his_own_gets_every_limit(handed_over: str, monkeypatch) -> None:
    monkeypatch.setenv(PARENT_VARIABLE, handed_over)
    assert _as_user(_hog) == b"(-9, 7, True)"


def test_without_them_the_same_user_gets_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PARENT_VARIABLE, raising=False)
    assert b"no delegated cgroup" in _as_user(lambda: cgroups.probe().missing("memory"))
