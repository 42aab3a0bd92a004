"""What the kernel really does to a job in a group, each against the same job without the limit.

Run on the machine itself, whatever hierarchy it has, and in a guest with a real cgroup v2 as root and as an
ordinary user in a delegated group (tests/hosts). On a hybrid host everything is also tried with v1 alone.
"""

from __future__ import annotations

import dataclasses
import mmap
import os
import re
import signal
import threading
import time
from functools import partial

import group_jobs as jobs
import pytest

from ringfence.errors import SetupError, UnavailableError
from ringfence.kernel.cgroup import group as cgroups
from ringfence.kernel.cgroup import tree as cgroup_tree
from ringfence.kernel.cgroup.group import Cgroup, CgroupHost, CgroupLimits

pytestmark = [pytest.mark.system, pytest.mark.privileges]

MIB = 1 << 20


def _hosts() -> list[CgroupHost]:
    found = cgroups.probe()
    if found.kind != "hybrid":
        return [found]
    v1_alone = tuple(hierarchy for hierarchy in found.hierarchies if hierarchy.version == 1)
    return [found, dataclasses.replace(found, kind="v1", hierarchies=v1_alone)]


@pytest.fixture(params=_hosts(), ids=lambda host: host.kind)
def host(request: pytest.FixtureRequest) -> CgroupHost:
    assert os.environ.get("RINGFENCE_TEST_CGROUPS") in (None, request.param.kind)
    return request.param


@pytest.fixture
def make(host: CgroupHost):
    made: list[Cgroup] = []

    def _make(**limits: object) -> Cgroup:
        made.append(cgroups.create(CgroupLimits(**limits), host=host))
        return made[-1]

    yield _make
    for group in made:
        group.remove()
        assert not any(os.path.exists(directory) for directory in group.directories)


def test_a_memory_hog_is_killed_and_the_event_says_so(make) -> None:
    group = make(mem_bytes=16 * MIB)
    assert jobs.end(jobs.start(group, partial(jobs.use_memory, 32 * MIB))) == -signal.SIGKILL
    assert group.events().oom_kills >= 1
    assert 8 * MIB < (group.peaks()[0] or 9 * MIB) <= 16 * MIB


def test_the_same_memory_without_a_limit_lives(make) -> None:
    group = make(pids_max=64)
    assert jobs.end(jobs.start(group, partial(jobs.use_memory, 32 * MIB))) == 0
    assert group.events().oom_kills == 0


def test_many_small_processes_are_counted_together(make) -> None:
    group = make(mem_bytes=16 * MIB)

    def hold() -> None:
        memory = mmap.mmap(-1, 4 * MIB)
        memory[:: jobs.PAGE] = b"x" * (4 * MIB // jobs.PAGE)
        time.sleep(30)

    pids = [jobs.start(group, hold) for _ in range(6)]
    assert jobs.eventually(lambda: group.events().oom_kills >= 1)
    group.kill()
    assert {jobs.end(pid) for pid in pids} == {-signal.SIGKILL}


def test_on_v2_no_half_of_a_job_outlives_the_memory_limit(make, host: CgroupHost) -> None:
    group = make(mem_bytes=16 * MIB)
    innocent = jobs.start(group, partial(time.sleep, 30))
    assert jobs.end(jobs.start(group, partial(jobs.use_memory, 32 * MIB))) == -signal.SIGKILL
    grouped = "memory.oom.group=1" in group.applied["memory"].details
    assert grouped == (host.kind == "v2")
    assert jobs.eventually(lambda: not jobs.alive(innocent), 5 if grouped else 0.2) == grouped
    group.kill()
    jobs.end(innocent)


def test_what_is_applied_is_what_the_kernel_reads_back(make) -> None:
    group = make(mem_bytes=32 * MIB + 5, pids_max=7, cpu_share=0.5)
    assert {name: row.applied for name, row in group.applied.items()} == {
        "memory": True, "pids": True, "cpu_share": True,
    }  # fmt: skip
    assert group.applied["memory"].requested == 32 * MIB + 5
    assert f"={32 * MIB}" in group.applied["memory"].details, "rounded down to pages"
    assert group.applied["pids"].details == "pids.max=7"
    assert group.applied["pids"].mechanism.startswith("cgroup v")


def test_a_fork_bomb_is_held(make) -> None:
    group = make(pids_max=16)
    made = jobs.end(jobs.start(group, partial(jobs.fork_until_refused, 40)))
    assert made == 15, "sixteen with the first"
    assert group.events().pids_hits >= 1
    assert len(group.members()) == 15


def test_the_same_forks_without_a_limit_all_succeed(make) -> None:
    group = make(mem_bytes=512 * MIB)
    assert jobs.end(jobs.start(group, partial(jobs.fork_until_refused, 40))) == 40
    assert group.events().pids_hits == 0


def test_the_processor_share_holds(make) -> None:
    held, free = make(cpu_share=0.05), make(mem_bytes=512 * MIB)
    assert _share_had(held) < 0.12, "a twentieth of a core, and one period that was under way"
    # The control is the kernel's count: how much the other gets depends on who else wants the processors.
    _share_had(free)
    assert _throttled(held) > 0
    assert _throttled(free) == 0


def _share_had(group: Cgroup) -> float:
    with jobs.pipe() as (read, write):
        assert jobs.end(jobs.start(group, partial(jobs.spin, 1.5, write))) == 0
        return float(os.read(read, 64))


def _throttled(group: Cgroup) -> int:
    return cgroup_tree.as_table(jobs.told(group, "cpu_share", "cpu.stat")).get("nr_throttled", 0)


def test_reading_a_disk_is_slowed_to_the_limit(make, host: CgroupHost, tmp_path) -> None:
    path = os.environ.get("RINGFENCE_TEST_DISK") or str(tmp_path / "data")
    if not os.path.exists(path):
        with open(path, "wb") as file:
            file.write(os.urandom(2 * MIB))
            os.fsync(file.fileno())
    if not cgroups.disk_of(path):
        with pytest.raises(UnavailableError, match="is not on a disk"):
            cgroups.create(CgroupLimits(read_bytes_per_s=MIB, io_paths=(path,)), host=host)
        return
    slow, free = make(read_bytes_per_s=MIB, io_paths=(path,)), make(mem_bytes=512 * MIB)
    slow_s = _seconds(slow, partial(_read_directly, path, 2 * MIB))
    assert slow_s > 1.0, "two mebibytes at one a second"
    free_s: list[float] = []  # the control: once is enough, for a busy machine may slow one down by itself
    while len(free_s) < 20 and min(free_s, default=slow_s) >= slow_s / 2:
        free_s.append(_seconds(free, partial(_read_directly, path, 2 * MIB)))
    assert min(free_s) < slow_s / 2, (free_s, slow_s)
    counted = jobs.told(slow, "io", "io.stat", "blkio.throttle.io_service_bytes")
    assert sum(map(int, re.findall(r"(?:rbytes=|Read )(\d+)", counted))) >= 2 * MIB


def _seconds(group: Cgroup, program) -> float:
    started = time.monotonic()
    assert jobs.end(jobs.start(group, program)) == 0
    return time.monotonic() - started


def _read_directly(path: str, size: int) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    with mmap.mmap(-1, 128 * 1024) as buffer:
        done = 0
        while done < size:
            done += os.preadv(fd, [buffer], done)


def test_a_frozen_job_can_be_killed(make) -> None:
    group = make(mem_bytes=512 * MIB)
    pid = jobs.start(group, partial(time.sleep, 60))
    assert jobs.eventually(lambda: len(group.members()) == 1)
    cgroup_tree._switch(group.directories, "1", "FROZEN")
    group.kill()
    assert jobs.end(pid) == -signal.SIGKILL


def test_a_double_forked_daemon_in_its_own_session_dies_with_the_group(make) -> None:
    group = make(pids_max=32)
    with jobs.pipe() as (read, write):
        first = jobs.start(group, partial(jobs.daemonise, write))
        daemon = int(os.read(read, 32))
    assert jobs.end(first) == 0
    assert daemon != first
    assert jobs.alive(daemon), "it outlives the process that was started, which is all that a waiter sees"
    assert daemon in group.members()
    group.kill()
    assert jobs.eventually(lambda: not jobs.alive(daemon))


@pytest.mark.parametrize("at_once", [True, False], ids=["cgroup.kill", "signals"])
def test_killing_converges_against_a_moving_fork_bomb(make, monkeypatch, at_once: bool) -> None:
    if not at_once:
        original = cgroup_tree._write_if_there

        def without_cgroup_kill(directories: tuple[str, ...], name: str, text: str) -> None:
            if name != "cgroup.kill":
                original(directories, name, text)

        monkeypatch.setattr(cgroup_tree, "_write_if_there", without_cgroup_kill)
    group = make(pids_max=32)
    first = jobs.start(group, jobs.fork_for_ever)
    assert jobs.end(first) == -signal.SIGKILL, "the first is gone at once, by its own hand"
    assert jobs.eventually(lambda: bool(group.members()))
    group.kill()
    assert not group.members()


def test_a_job_is_in_every_group_before_its_first_instruction(make) -> None:
    group = make(mem_bytes=64 * MIB, pids_max=4, cpu_share=1.0)
    with jobs.pipe() as (read, write):

        def tell() -> None:
            os.write(write, (cgroup_tree.read("/proc/self/cgroup") or "").encode())

        jobs.end(jobs.start(group, tell))
        listed = os.read(read, 65536).decode()
    assert listed.count(group.name) == len(group.directories)


def test_peaks_are_what_was_used_at_most(make) -> None:
    group = make(mem_bytes=128 * MIB, pids_max=8)
    jobs.end(jobs.start(group, partial(jobs.use_memory, 20 * MIB)))
    memory, processes = group.peaks()
    assert memory == 0 or memory >= 20 * MIB, "0: this kernel does not count it"
    assert processes == 0 or processes >= 1


def test_fifty_threads_make_and_remove_groups_at_once(host: CgroupHost) -> None:
    names: list[str] = []
    errors: list[BaseException] = []

    def one() -> None:
        try:
            with cgroups.create(CgroupLimits(mem_bytes=32 * MIB, pids_max=5), host=host) as group:
                names.append(group.name)
                assert group.applied["pids"].details == "pids.max=5"
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=one) for _ in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert len(set(names)) == 50
    assert not any(set(names) & set(os.listdir(hierarchy.parent)) for hierarchy in host.hierarchies)


def test_a_group_that_vanished_is_no_error(make) -> None:
    group = make(mem_bytes=16 * MIB)
    for directory in group.directories:
        os.rmdir(directory)
    assert group.members() == set()
    assert group.peaks() == (0, 0)
    group.kill()
    group.remove()


def test_entering_a_group_that_vanished_is_a_set_up_error(make) -> None:
    group = make(pids_max=4)
    group.remove()
    with pytest.raises(SetupError, match="enter cgroup"):
        cgroup_tree.enter(group.enter_paths)


def test_a_value_that_the_kernel_refuses_leaves_no_group_behind(host: CgroupHost) -> None:
    before = {hierarchy.parent: set(os.listdir(hierarchy.parent)) for hierarchy in host.hierarchies}
    with pytest.raises(SetupError, match=r"limit cgroup: .*pids.max"):
        cgroups.create(CgroupLimits(pids_max=-5), host=host)
    left = {parent: set(os.listdir(parent)) - names for parent, names in before.items()}
    assert not [name for names in left.values() for name in names if f"-{os.getpid()}-" in name]


def test_what_a_killed_caller_left_is_swept_with_all_that_runs_in_it(make, host: CgroupHost) -> None:
    mine = make(pids_max=4)
    with jobs.pipe() as (read, write):

        def caller() -> None:
            group = cgroups.create(CgroupLimits(pids_max=8), host=host)
            job = jobs.start(group, partial(time.sleep, 60))
            assert jobs.eventually(lambda: job in group.members())
            os.write(write, f"{job} {group.name}".encode())
            os.kill(os.getpid(), signal.SIGKILL)

        dead = jobs.start(None, caller)
        job, name = os.read(read, 4096).decode().split()
    assert jobs.end(dead) == -signal.SIGKILL
    cgroups.sweep(host)  # somebody else on this machine may just do the same
    assert jobs.eventually(lambda: not jobs.alive(int(job)))
    assert not [h for h in host.hierarchies if name in os.listdir(h.parent)]
    assert all(os.path.isdir(directory) for directory in mine.directories), "the living keep theirs"
