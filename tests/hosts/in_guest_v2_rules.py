"""Rules that only cgroup v2 has; run in the guest by test_cgroup_v2_guest.py, never collected elsewhere."""

from __future__ import annotations

import os
import time
from functools import partial

import group_jobs as jobs
import pytest

from ringfence.errors import SetupError, UnavailableError
from ringfence.kernel.cgroup import group as cgroups
from ringfence.kernel.cgroup import host as cgroup_host
from ringfence.kernel.cgroup import tree as cgroup_tree
from ringfence.kernel.cgroup.group import CgroupLimits

MIB = 1 << 20


def _own_group() -> str:
    return "/sys/fs/cgroup" + cgroup_host.parse_own_groups(cgroup_tree.read("/proc/self/cgroup") or "")[""]


@pytest.fixture
def parent():
    """A group of ours whose children may have limits: where the caller was before he moved into the leaf."""
    with cgroups.create(CgroupLimits(pids_max=100)) as group:
        yield os.path.dirname(group.directories[0])


@pytest.fixture
def scope(parent: str):
    """A group with a process that is nobody's child here, as a shell beside us would be."""
    path = f"{parent}/shared.scope"
    os.mkdir(path)
    with jobs.pipe() as (read, write):
        first = jobs.start(None, partial(jobs.daemonise, write))
        stranger = int(os.read(read, 32))
    jobs.end(first)
    cgroup_tree.write(f"{path}/cgroup.procs", str(stranger))
    yield path, stranger
    cgroup_tree.remove([path])


def _inside(path: str, program) -> str:
    """What ``program`` says in a child that is in the group."""
    with jobs.pipe() as (read, write):

        def run() -> None:
            cgroup_tree.write(f"{path}/cgroup.procs", "0")
            try:
                os.write(write, str(program()).encode())
            except (UnavailableError, SetupError) as error:
                os.write(write, f"{error} | {error.hint}".encode())

        assert jobs.end(jobs.start(None, run)) == 0
        return os.read(read, 65536).decode()


def test_the_host_is_v2_and_offers_everything() -> None:
    host = cgroups.probe()
    assert host.kind == "v2"
    assert [host.missing(capability) for capability in cgroup_host.WAYS] == [None] * len(cgroup_host.WAYS)


def test_the_caller_moves_into_a_leaf_and_the_parent_gets_its_controllers(parent: str) -> None:
    assert _own_group() == f"{parent}/{cgroup_host.SUPERVISOR}"
    assert (cgroup_tree.read(f"{parent}/cgroup.procs") or "").split() == []
    enabled = (cgroup_tree.read(f"{parent}/cgroup.subtree_control") or "").split()
    assert set(enabled) >= cgroup_host.V2_CONTROLLERS


def test_a_second_caller_in_the_leaf_makes_its_groups_beside_it(parent: str) -> None:
    host = cgroups.probe()
    assert [h.parent for h in host.hierarchies] == [parent]
    assert not host.hierarchies[0].moves_callers


def test_processes_of_others_are_never_moved_and_the_limits_are_the_kernels_beside_them(scope: tuple[str, int]) -> None:
    path, stranger = scope
    assert _inside(path, _memory_is_limited) == "True"
    assert cgroup_tree.members([path]) == {stranger}
    assert not os.path.exists(f"{path}/{cgroup_host.SUPERVISOR}")
    assert _twins() == [], "the last group takes it along"


def test_a_group_that_is_named_and_holds_others_is_refused(scope: tuple[str, int]) -> None:
    path, stranger = scope

    def named() -> object:
        os.environ[cgroup_host.PARENT_VARIABLE] = path
        return cgroups.create(CgroupLimits(mem_bytes=MIB))

    said = _inside(path, named)
    assert f"(such as {stranger}) that ringfence must not move" in said
    assert f"{path}/{cgroup_host.SUPERVISOR}/cgroup.procs" in said


def test_a_limit_of_the_callers_own_group_holds_beside_it(scope: tuple[str, int]) -> None:
    """Two jobs, each within its own limit, and together beyond that of the group their caller is in."""
    path, _ = scope
    cgroup_tree.write(f"{path}/pids.max", "20")

    def two_jobs() -> tuple[str | None, int]:
        with cgroups.create(CgroupLimits(pids_max=15)) as one, cgroups.create(CgroupLimits(pids_max=15)) as other:
            twin = os.path.dirname(one.directories[0])
            jobs.end(jobs.start(one, partial(_sleepers, other, 14)))
            return cgroup_tree.read(f"{twin}/pids.max"), len(cgroup_tree.members([twin]))

    assert _inside(path, two_jobs) == "('20\\n', 19)", "and the one that forked has ended"


def _sleepers(other: cgroups.Cgroup, number: int) -> None:
    """As many as can be had in the group that we are in, then in the other."""
    for _ in range(2):
        for _ in range(number):
            try:
                if os.fork() == 0:
                    time.sleep(3600)
            except BlockingIOError:
                os._exit(0)
        cgroup_tree.enter(other.enter_paths)


def test_two_callers_at_once_use_one_twin_and_the_last_removes_it(scope: tuple[str, int]) -> None:
    path, _ = scope
    children = [jobs.start(None, partial(_many_groups, path)) for _ in range(2)]
    assert [jobs.end(child) for child in children] == [0, 0]
    assert _twins() == []


def _many_groups(path: str) -> None:
    cgroup_tree.write(f"{path}/cgroup.procs", "0")
    for _ in range(50 if "RINGFENCE_LONG" in os.environ else 8):
        with cgroups.create(CgroupLimits(pids_max=7)) as group:
            assert group.applied["pids"].applied


def _twins() -> list[str]:
    return [name for _, names, _ in os.walk("/sys/fs/cgroup") for name in names if name.startswith(cgroup_tree.TWIN)]


def test_the_command_that_is_told_then_helps(scope: tuple[str, int]) -> None:
    """mkdir LEAF && xargs -rn1 < cgroup.procs > LEAF/cgroup.procs, by hand: the guest has no shell."""
    path, _ = scope
    leaf = f"{path}/{cgroup_host.SUPERVISOR}"
    os.mkdir(leaf)
    for pid in (cgroup_tree.read(f"{path}/cgroup.procs") or "").split():
        cgroup_tree.write(f"{leaf}/cgroup.procs", pid)
    assert _inside(leaf, _memory_is_limited) == "True"


def _memory_is_limited() -> bool:
    with cgroups.create(CgroupLimits(mem_bytes=16 * MIB)) as group:
        return jobs.end(jobs.start(group, partial(jobs.use_memory, 32 * MIB))) == -9


def test_a_user_whose_shell_is_in_a_leaf_of_a_group_handed_over_gets_limits(parent: str) -> None:
    """What the fix for hosts without systemd says, by hand: the directory and three files change hands."""
    group, uid = f"{parent}/handed-over", os.geteuid() or 1001
    os.makedirs(f"{group}/shell")
    for path in (group, *(f"{group}/cgroup.{name}" for name in ("procs", "subtree_control", "threads"))):
        os.chown(path, uid, -1)

    def as_user() -> bool:
        if os.geteuid() == 0:
            os.setgroups([])
            os.setresuid(uid, uid, uid)
        os.environ[cgroup_host.PARENT_VARIABLE] = group
        return _memory_is_limited()

    try:
        assert _inside(f"{group}/shell", as_user) == "True"
    finally:
        cgroup_tree.remove([group])


def test_what_needs_no_controller_works_beside_others(scope: tuple[str, int]) -> None:
    path, _ = scope

    def freeze_and_kill() -> bool:
        with cgroups.create(CgroupLimits()) as group:
            job = jobs.start(group, partial(time.sleep, 60))
            assert jobs.eventually(lambda: job in group.members())
            cgroup_tree._switch(group.directories, "1", "FROZEN")
            group.kill()
            return not group.members()

    assert _inside(path, freeze_and_kill) == "True"


def test_in_a_scope_that_systemd_has_delegated_everyone_moves(scope: tuple[str, int]) -> None:
    path, stranger = scope
    os.setxattr(path, "user.delegate", b"1")

    def limited() -> tuple[int, bool]:
        with cgroups.create(CgroupLimits(mem_bytes=16 * MIB)) as group:
            ended = jobs.end(jobs.start(group, partial(jobs.use_memory, 32 * MIB)))
            return ended, group.events().oom_kills >= 1

    assert _inside(path, limited) == "(-9, True)"
    assert stranger in cgroup_tree.members([f"{path}/{cgroup_host.SUPERVISOR}"])
    assert jobs.alive(stranger)


def test_a_group_given_by_the_operator_is_used_and_nobody_moves(parent: str, monkeypatch) -> None:
    given = f"{parent}/operator"
    os.mkdir(given)
    try:
        for name in (given, given.removeprefix("/sys/fs/cgroup")):
            monkeypatch.setenv(cgroup_host.PARENT_VARIABLE, name)
            before = _own_group()
            with cgroups.create(CgroupLimits(mem_bytes=16 * MIB)) as group:
                assert os.path.dirname(group.directories[0]) == given
                assert jobs.end(jobs.start(group, partial(jobs.use_memory, 32 * MIB))) == -9
            assert _own_group() == before
    finally:
        os.rmdir(given)


def test_a_limit_above_holds_whatever_is_asked_below(parent: str) -> None:
    given = f"{parent}/small"
    os.mkdir(given)
    try:
        cgroup_tree.write(f"{given}/memory.max", str(16 * MIB))
        host = cgroups.probe(parent=given)
        with cgroups.create(CgroupLimits(mem_bytes=64 * MIB), host=host) as group:
            assert jobs.end(jobs.start(group, partial(jobs.use_memory, 32 * MIB))) == -9
    finally:
        os.rmdir(given)
