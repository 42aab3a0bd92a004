"""What a job reads of its own limits, and that it is nothing of the host's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import ringfence
from ringfence import Job, SandboxPolicy, run
from ringfence.sandbox import limits_seen
from ringfence.sandbox.limits_seen import Limits, group_mounts

MIB = 1 << 20


def _texts(**fields: object) -> dict[str, str]:
    limits = Limits(**{"memory": 512 * MIB, "tasks": 32, **fields})  # type: ignore[arg-type]
    return {path.removeprefix(limits_seen.FOLDER): text for path, text in limits_seen.files(limits, 1 << 40)}


def test_the_files_say_what_the_policy_says() -> None:
    told = _texts(cores=1.5)
    folder = "/sys/fs/cgroup"
    assert told[f"{folder}/memory.max"] == told[f"{folder}/memory/memory.limit_in_bytes"] == f"{512 * MIB}\n"
    assert (told[f"{folder}/pids.max"], told[f"{folder}/cpu.max"]) == ("32\n", "150000 100000\n")
    assert _texts()[f"{folder}/cpu.max"] == "max 100000\n"
    assert told["/proc/meminfo"].startswith("MemTotal:         524288 kB\n")


def test_a_limit_beyond_the_hosts_memory_is_the_hosts_memory() -> None:
    rows = dict(limits_seen.files(Limits(memory=1 << 62, tasks=1), 4096 * 10))
    assert rows["limits/sys/fs/cgroup/memory.max"] == "40960\n"


@pytest.mark.parametrize(
    ("text", "mounts"),
    [
        ("0::/user.slice\n", [("cgroup2", "")]),
        ("", [("cgroup2", "")]),
        ("4:memory:/a\n3:pids:/\n2:cpu,cpuacct:/\n1:name=systemd:/\n0::/x:y\n",
         [("cgroup", "memory"), ("cgroup", "cpu,cpuacct")]),
    ],
)  # fmt: skip
def test_what_is_mounted_follows_the_kernels_own_table(text: str, mounts: list[tuple[str, str]]) -> None:
    assert list(group_mounts(text)) == mounts


STRICT = SandboxPolicy(isolation="strict", mem_bytes=300 * MIB, pids_max=21)
_LOOK = "cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/pids.max; head -1 /proc/meminfo; ls /sys /sys/fs"


@pytest.mark.system
@pytest.mark.privileges
def test_every_kind_of_sandbox_shows_its_own_limits() -> None:
    expected = f"{300 * MIB}\n21\nMemTotal:         307200 kB\n/sys:\nfs\n\n/sys/fs:\ncgroup\n"
    assert run(["sh", "-c", _LOOK], STRICT).stdout.decode() == expected
    with ringfence.open(STRICT) as box:
        assert box.run(["sh", "-c", _LOOK]).stdout.decode() == expected
    with ringfence.Pool(STRICT, warm=1) as pool:
        assert pool.run(["sh", "-c", _LOOK]).stdout.decode() == expected


@pytest.mark.system
@pytest.mark.privileges
def test_nothing_there_can_be_changed_or_tells_of_other_groups() -> None:
    attack = ("for f in sys/fs/cgroup/memory.max sys/fs/cgroup/x proc/meminfo; do echo 1 > /$f && echo ESCAPED; done; "
              "mkdir /sys/fs/cgroup/new && echo ESCAPED; umount /sys/fs/cgroup && echo ESCAPED; "
              "find /sys -name 'cgroup.procs' -o -name tasks -o -name release_agent")  # fmt: skip
    outcome = run(["sh", "-c", attack], STRICT)
    assert outcome.stdout == b"", outcome.stdout
    if os.path.isdir("/sys/fs/cgroup"):  # the control: the host's own has them
        found = run(["find", "/sys/fs/cgroup", "-maxdepth", "2", "-name", "cgroup.procs"], SandboxPolicy())
        assert b"cgroup.procs" in found.stdout


@pytest.mark.system
@pytest.mark.privileges
def test_where_sys_is_hidden_there_is_none() -> None:
    outcome = run(["sh", "-c", "ls /sys; head -1 /proc/meminfo"], STRICT.with_changes(hidden_paths=("/sys",)))
    assert b"307200" in outcome.stdout and b"fs" not in outcome.stdout
    assert [event for event in outcome.events if "/sys" in str(event)], "who asks is recorded"


_GARBAGE = """public class Garbage { public static void main(String[] words) {
  byte[][] live = new byte[50][];
  for (int i = 0; i < 6000; i++) { live[i % 50] = new byte[1 << 20]; live[i % 50][7] = 1; }
  System.out.println(Runtime.getRuntime().maxMemory() >> 20);
} }
"""


@pytest.mark.system
@pytest.mark.slow
def test_a_jvm_sizes_its_heap_by_the_limit_and_collects_garbage(tmp_path: Path) -> None:
    """6 GB of garbage, 50 MB alive. Without the files its heap is a quarter of the host's memory."""
    (tmp_path / "Garbage.java").write_text(_GARBAGE)
    policy = SandboxPolicy(isolation="strict", mem_bytes=512 * MIB, wall_time_s=120, cpu_time_s=120)
    outcome = run(Job(argv=("java", "Garbage.java"), cwd=str(tmp_path)), policy)
    assert outcome.ok, (outcome.reason, outcome.stderr)
    assert int(outcome.stdout) <= 256


@pytest.mark.system
@pytest.mark.privileges
def test_node_knows_the_memory_that_it_has() -> None:
    script = "console.log(process.constrainedMemory(), require('os').totalmem())"
    policy = SandboxPolicy(isolation="strict", mem_bytes=2 << 30)
    outcome = run(["node", "-e", script], policy)
    assert outcome.stdout.split() == [str(2 << 30).encode()] * 2, outcome.stderr
