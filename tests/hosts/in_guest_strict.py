"""STRICT on a real cgroup v2; run in the guest by test_cgroup_v2_guest.py, never collected elsewhere.

As root in a group of its own and as an ordinary user in a delegated one: the promises and the attacks in
which a control group has a hand, what the table says, and that no group outlives its job or its caller.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import group_jobs as jobs
import pytest
from tests.escape import memory_attacks, process_attacks
from tests.escape.attack import ESCAPED, STRICT, Attack, Stage, control, perform

from ringfence import IsolationLevel, Job, Outcome, SandboxPolicy, Status, run
from ringfence.backends import conformance
from ringfence.errors import UnavailableError
from ringfence.kernel.cgroup import group as cgroups
from ringfence.kernel.cgroup import host as cgroup_host
from ringfence.kernel.cgroup import tree as cgroup_tree
from ringfence.kernel.cgroup.group import CgroupLimits

MIB = 1 << 20
CGROUPS = "/sys/fs/cgroup"
KERNEL = tuple(map(int, os.uname().release.split("-")[0].split(".")[:2]))
PATIENCE_S = 300
"""What is no test of the deadline must not meet it: emulation on a busy machine is slow."""
PYTHON = (sys.executable, "-I", "-S", "-c")
LONG = "RINGFENCE_LONG" in os.environ
WHO = os.environ["GUEST_WHO"]
# Of each kind of memory and of process that is nobody's but the group's; under emulation each takes seconds.
NAMES = {"many memfds", "System V segments", "mappings of sleeping children", "pipe buffers", "fork bomb of orphans",
         "fork bomb of threads"}  # fmt: skip
HELD_BY_GROUPS = [attack for attack in (*memory_attacks.ATTACKS, *process_attacks.ATTACKS) if attack.name in NAMES]
# Of each family one, and for root and the user another: what a group holds it holds for everybody.
TAKEN = {"root": ("System V segments", "fork bomb of threads"),
         "user": ("mappings of sleeping children", "fork bomb of orphans")}[WHO]  # fmt: skip
ATTACKS = [attack for attack in HELD_BY_GROUPS if LONG or attack.name in TAKEN]


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    yield
    assert _groups() == []
    # After its group, a leader whose caller was killed removes the directory.
    assert jobs.eventually(lambda: not list(Path("/tmp").glob("ringfence-*/*")), 60)


def test_the_corpus_still_has_the_attacks_that_are_named_here() -> None:
    assert {attack.name for attack in HELD_BY_GROUPS if STRICT in attack.levels} == NAMES


def _groups() -> list[str]:
    return [f"{here}/{name}" for here, names, _ in os.walk(CGROUPS) for name in names if name.startswith("ringfence-")]


def _run(source: str, **policy: object) -> Outcome:
    return run([*PYTHON, source], SandboxPolicy(isolation=IsolationLevel.STRICT, wall_time_s=PATIENCE_S, **policy))


@pytest.fixture(scope="module", autouse=True)
def _warm() -> None:
    """The first sandbox loads everything, which takes longer here than the short deadlines of some checks."""
    assert _run("pass").status is Status.OK


# Those in which a group has a hand: a guest without hardware help is slow, and the others are tried outside of it.
IN_GROUPS = ("memory", "memory tree", "processes", "threads", "processor time tree", "daemon", "deadline", "disk")
CHECKED = IN_GROUPS if LONG else IN_GROUPS[WHO == "root" :: 2]
"""They take turns."""


@pytest.mark.parametrize(
    "check", [check for check in conformance.CHECKS if check.name in CHECKED], ids=lambda check: check.name
)
def test_the_backend_conforms(check: conformance.Check) -> None:
    finding = conformance.perform_one(run, IsolationLevel.STRICT, check)
    assert finding.held, finding.problem
    assert finding.proven, finding.problem


@pytest.fixture
def stage() -> Iterator[Stage]:
    with tempfile.TemporaryDirectory(prefix="stage-", dir="/var/tmp") as name, Stage(Path(name)) as made:
        os.chmod(name, 0o755)
        made.policy |= {"wall_time_s": PATIENCE_S, "cpu_time_s": PATIENCE_S}
        yield made


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: f"{attack.family}-{attack.name}")
def test_an_attack_that_a_group_holds_fails(attack: Attack, stage: Stage) -> None:
    outcome = perform(attack, STRICT, stage)
    told = outcome.stdout + outcome.stderr
    assert ESCAPED not in outcome.stdout, told
    assert not stage.escaped(), told
    assert str(outcome.status) in attack.status, (outcome.reason, told)
    assert "cgroup" in outcome.reason, "the group's own events tell, not a guess"


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: f"{attack.family}-{attack.name}")
def test_the_same_succeeds_without_a_sandbox(attack: Attack, stage: Stage) -> None:
    told = control(attack, stage)
    assert ESCAPED in told, told


def test_the_table_names_the_files_of_cgroup_v2() -> None:
    enforced = _run("pass", cpu_share=0.5, mem_bytes=64 * MIB, pids_max=9).enforced
    named = {name: enforced[name].mechanism for name in ("memory", "pids", "cpu_share")}
    assert named == {"memory": "cgroup v2 memory.max", "pids": "cgroup v2 pids.max", "cpu_share": "cgroup v2 cpu.max"}
    assert all(enforced[name].applied for name in named)
    assert f"memory.max={64 * MIB}" in enforced["memory"].details
    assert "memory.oom.group=1" in enforced["memory"].details
    assert enforced["cpu_share"].details == "cpu.max=50000 100000"


def test_what_ran_out_of_memory_is_read_from_the_events() -> None:
    outcome = _run("block = bytearray(160 << 20)", mem_bytes=64 * MIB)
    assert outcome.status is Status.MEM_LIMIT
    assert "memory cgroup, oom_kill" in outcome.reason
    assert _run("block = bytearray(160 << 20)", mem_bytes=256 * MIB).status is Status.OK


def test_a_program_that_lets_its_child_run_out_of_memory_does_not_live_on() -> None:
    """memory.oom.group: half a job that goes on after the kill would report a success that was none."""
    source = ("import os\npid = os.fork()\nif pid == 0: block = bytearray(160 << 20); os._exit(0)\n"
              "os.waitpid(pid, 0); print('went on', flush=True)")  # fmt: skip
    held = _run(source, mem_bytes=64 * MIB)
    assert (held.status, held.stdout) == (Status.MEM_LIMIT, b"")
    assert _run(source, mem_bytes=256 * MIB).stdout == b"went on\n"


def test_the_share_of_the_processors_holds() -> None:
    source = ("import time\nstart, used = time.monotonic(), time.process_time()\n"
              "while time.monotonic() < start + 1.5: pass\n"
              "print((time.process_time() - used) / (time.monotonic() - start))")  # fmt: skip
    # The set-up of the sandbox has the same share, and takes its time under emulation.
    held, free = (_run(source, **share) for share in ({"cpu_share": 0.3}, {}))
    assert float(held.stdout) < 0.45, "three tenths of a core, and one period that was under way"
    assert float(free.stdout) > 1.5 * float(held.stdout)


def test_the_job_is_in_its_group_when_its_first_instruction_runs() -> None:
    """Its cgroup namespace was made inside the group: the group it was started in reads as the root."""
    read = "print(open('/proc/self/cgroup').read().strip())"
    assert _run(read).stdout == b"0::/\n"
    outside = run([*PYTHON, read], SandboxPolicy(isolation=IsolationLevel.PROCESS)).stdout
    assert b"scope" in outside, "the control sees the caller's group"


def test_even_what_the_loader_allocates_is_counted() -> None:
    """Too little for an interpreter to begin: the kill comes before the program's first line."""
    outcome = _run("print('began')", mem_bytes=2 * MIB)
    assert outcome.status is Status.MEM_LIMIT
    assert outcome.stdout == b""
    assert _run("print('began')").stdout == b"began\n"


# Past the page cache, which is no disk: direct reads, synchronised writes.
READ = """
import mmap, os, time
start, fd, buffer, done = time.monotonic(), os.open("data", os.O_RDONLY | os.O_DIRECT), mmap.mmap(-1, 1 << 17), 0
while done < 4 << 20: done += os.preadv(fd, [buffer], done)
print(time.monotonic() - start)
"""
WRITE = """
import os, time
start, fd = time.monotonic(), os.open("new", os.O_WRONLY | os.O_CREAT)
for _ in range(16): os.write(fd, bytes(1 << 18)); os.fsync(fd)
print(time.monotonic() - start)
"""


@pytest.fixture
def workspace() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="workspace-", dir="/var/tmp") as name:
        (Path(name) / "data").write_bytes(os.urandom(4 * MIB))
        os.sync()
        yield Path(name)


def _run_in(folder: Path, source: str, **policy: object) -> Outcome:
    job = Job(argv=(*PYTHON, source), cwd=str(folder))
    return run(job, SandboxPolicy(isolation=IsolationLevel.STRICT, wall_time_s=PATIENCE_S, **policy))


@pytest.mark.parametrize("source", [READ, WRITE][: 2 if LONG else 1], ids=["reads", "writes"][: 2 if LONG else 1])
def test_the_disk_is_slowed_to_the_limit(workspace: Path, source: str) -> None:
    slow = _run_in(workspace, source, io_bytes_per_s=MIB)
    assert slow.status is Status.OK, slow.stderr
    assert slow.enforced["io"].mechanism == "cgroup v2 io.max"
    assert f"rbps={MIB} wbps={MIB}" in slow.enforced["io"].details
    assert float(slow.stdout) > 3, "four mebibytes at one a second, and a first burst"
    # The machine may be busy with others: one of several tries without the limit is faster.
    assert any(float(_run_in(workspace, source).stdout) < float(slow.stdout) for _ in range(5))


def test_a_workspace_on_no_disk_is_refused_or_said() -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        with pytest.raises(UnavailableError, match="is not on a disk that can be throttled"):
            _run_in(Path(name), "pass", io_bytes_per_s=MIB)
        if os.geteuid() == 0 and KERNEL < (6, 3):
            return  # as root a workspace is mapped to the job's id, which a tmpfs can't be before Linux 6.3
        partial = _run_in(Path(name), "pass", io_bytes_per_s=MIB, allow_partial=True)
    assert not partial.enforced["io"].applied
    assert partial.reason.startswith("PARTIAL_ENFORCEMENT")


SLEEPER = "import os, time\nif os.fork() == 0: os.setsid(); os.fork()\nprint('up', flush=True)\ntime.sleep(60)"


def test_no_group_and_no_process_outlives_a_caller_that_was_killed() -> None:
    program = (f"from ringfence import run, SandboxPolicy\nimport sys\nrun([*{PYTHON!r}, {SLEEPER!r}], "
               "SandboxPolicy(isolation='strict', wall_time_s=300))")  # fmt: skip
    variables = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    caller = subprocess.Popen([sys.executable, "-c", program], env=variables)
    try:
        assert jobs.eventually(lambda: len(_members()) >= 4, PATIENCE_S), "the tree is up: pid 1 and three of the job"
        pids = _members()
    finally:
        os.kill(caller.pid, signal.SIGKILL)
        caller.wait()
    assert jobs.eventually(lambda: not _groups(), PATIENCE_S)
    assert jobs.eventually(lambda: not [pid for pid in pids if jobs.alive(pid)])


def _members() -> set[int]:
    return cgroup_tree.members(_groups())


def test_a_group_that_the_operator_gave_is_used() -> None:
    with cgroups.create(CgroupLimits(pids_max=100)) as group:
        parent = os.path.dirname(group.directories[0])
    given = f"{parent}/operator"
    os.mkdir(given)
    try:
        cgroup_tree.write(f"{given}/memory.max", str(48 * MIB))
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(cgroup_host.PARENT_VARIABLE, given)
            held = _run("block = bytearray(64 << 20)", mem_bytes=256 * MIB)
        assert held.enforced["memory"].mechanism == "cgroup v2 memory.max"
        assert held.status is Status.MEM_LIMIT, "the operator's limit holds, so the job was below his group"
        assert _run("block = bytearray(64 << 20)", mem_bytes=256 * MIB).status is Status.OK
    finally:
        os.rmdir(given)


def test_without_a_delegated_group_the_table_and_the_fix_say_so() -> None:
    """In a group that is not the caller's, as a user; as root every group is his."""
    if os.geteuid() == 0:
        assert cgroups.probe().missing("memory") is None
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(cgroup_host.PARENT_VARIABLE, f"{CGROUPS}/session.scope")
        missing, fix = cgroups.probe().missing("memory") or ("", "")
        enforced = _run("pass").enforced
    assert "no delegated cgroup" in missing
    assert "export RINGFENCE_CGROUP=/ringfence" in fix, "there is no systemd here to be asked"
    assert "watchdog" in enforced["memory"].mechanism
    assert "watchdog" in enforced["pids"].mechanism
