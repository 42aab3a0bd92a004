"""The process level behind walls: what a policy says of files, network and calls holds, and is refused where it can't.

Every attack has its control: the same probe without the walls succeeds.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import ringfence
from ringfence import IsolationLevel, Job, SandboxError, SandboxPolicy, UnavailableError, UsageError, run
from ringfence.backends import walls as walled
from ringfence.backends.conformance import APART, perform_one
from ringfence.backends.process import ProcessBackend
from ringfence.checkpoint.transaction import SNAPSHOT, Transaction
from ringfence.engine.box import Box
from ringfence.engine.run import refuse
from ringfence.model.outcome import Outcome

pytestmark = [pytest.mark.system, pytest.mark.privileges]

PLAIN = SandboxPolicy(wall_time_s=30)
PYTHON = sys.executable


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Something to read, something to write, a secret in what may be read, and one elsewhere."""
    for name in ("readable/deep", "writable", "elsewhere", "readable/secret"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("readable/deep/a", "readable/secret/key", "elsewhere/key"):
        (tmp_path / name).write_text("content")
    return tmp_path


def walls(tree: Path, **more: object) -> SandboxPolicy:
    return PLAIN.with_changes(
        readable_paths=(str(tree / "readable"),), writable_paths=(str(tree / "writable"),),
        hidden_paths=(str(tree / "readable/secret"),), **more,
    )  # fmt: skip


@pytest.fixture
def box(tree: Path) -> Iterator[Box]:
    with ringfence.open(walls(tree, network="none")) as opened:
        yield opened


def shell(policy: SandboxPolicy, command: str) -> Outcome:
    return ringfence.run(["sh", "-c", command], policy)


def test_the_table_says_what_holds_them(box: Box) -> None:
    for name in ("readable_paths", "writable_paths", "hidden_paths"):
        assert box.enforced[name].applied and "Landlock (ABI" in box.enforced[name].mechanism
    assert box.enforced["network"].mechanism == "seccomp"


ATTACKS = {
    "read elsewhere": "cat {0}/elsewhere/key",
    "read through a link": "ln -s {0}/elsewhere/key link && cat link",
    "read what is hidden": "cat {0}/readable/secret/key",
    "list what is hidden": "ls {0}/readable/secret && echo content",
    "write what is only readable": "echo x >> {0}/readable/deep/a && echo content",
    "make a file elsewhere": "echo x > {0}/elsewhere/new && echo content",
    "cut a file elsewhere": f"{PYTHON} -c \"import os; os.truncate('{{0}}/elsewhere/key', 0)\" && echo content",
    "rename out": "mv {0}/elsewhere/key key && cat key",
    "read a configuration file": "cat /etc/passwd && echo content",
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_what_is_not_granted_is_refused(tree: Path, attack: str) -> None:
    command = ATTACKS[attack].format(tree)
    outcome = shell(walls(tree), command)
    assert not outcome.ok and b"content" not in outcome.stdout, outcome.stdout
    control = shell(PLAIN, command)
    assert control.ok and b"content" in control.stdout, control.stderr


def test_what_is_granted_can_be_used(tree: Path) -> None:
    command = f"cat {tree}/readable/deep/a && echo x > {tree}/writable/new && echo y > own && cat own"
    outcome = shell(walls(tree), command)
    assert outcome.ok and outcome.stdout == b"contenty\n", outcome.stderr
    assert (tree / "writable/new").read_text() == "x\n"


def test_a_link_in_the_box_does_not_lead_a_transfer_out(box: Box, tree: Path) -> None:
    assert box.run(["ln", "-s", str(tree / "elsewhere/key"), "link"]).ok
    with pytest.raises(SandboxError):
        box.get("link")
    with pytest.raises(SandboxError):
        box.get(str(tree / "elsewhere/key"))
    with pytest.raises(SandboxError):
        box.put(str(tree / "elsewhere/key"), b"changed")
    assert (tree / "elsewhere/key").read_text() == "content"
    box.put("own", b"1")
    assert box.get("own") == b"1"
    with ringfence.open(PLAIN) as control:
        assert control.get(str(tree / "elsewhere/key")) == b"content"


def test_there_is_no_network_unless_the_policy_has_it(tree: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        command = f"{PYTHON} -c \"import socket; socket.create_connection(('127.0.0.1', {port})); print('content')\""
        assert b"content" not in shell(walls(tree, network="none"), command).stdout
        for policy in (walls(tree), PLAIN):
            outcome = shell(policy, command)
            assert b"content" in outcome.stdout, outcome.stderr


def test_names_can_be_looked_up_where_the_network_is_the_hosts(tree: Path) -> None:
    expected = Path("/etc/hosts").read_bytes()
    assert shell(walls(tree, network="host"), "cat /etc/hosts").stdout == expected
    assert shell(walls(tree, network="none"), "cat /etc/hosts").stdout == b""
    hidden = walls(tree, network="host").with_changes(hidden_paths=("/etc/hosts",))
    assert shell(hidden, "cat /etc/hosts").stdout == b""


def test_files_stay_in_the_box_between_visits(box: Box) -> None:
    assert box.run(["sh", "-c", "echo 1 > file"]).ok
    assert box.run(["cat", "file"]).stdout == b"1\n"


def test_a_kernel_without_landlock_is_refused_with_the_fix(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walled, "look", lambda: walled.Kernel(landlock_abi=0, seccomp=False))
    backend = ProcessBackend()
    policy = walls(tree, network="none")
    with pytest.raises(UnavailableError) as error:
        refuse(backend, policy)
    assert set(error.value.missing) == {"readable_paths", "writable_paths", "hidden_paths", "network", "syscalls"}
    assert "landlock" in error.value.hint and "CONFIG_SECCOMP_FILTER" in error.value.hint
    box = backend.open(policy.with_changes(allow_partial=True))
    assert not box.enforced["readable_paths"].applied and box.enforced["memory"].applied
    box.close()


def test_a_kernel_without_seccomp_is_refused_whatever_the_network_is(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind walls dangerous calls are closed: that is promised wherever a policy names paths."""
    monkeypatch.setattr(walled, "look", lambda: walled.Kernel(landlock_abi=7, seccomp=False))
    with pytest.raises(UnavailableError) as error:
        refuse(ProcessBackend(), walls(tree, network="host"))
    assert error.value.missing == ("syscalls",)
    box = ProcessBackend().open(walls(tree, network="host", allow_partial=True))
    assert not box.enforced["syscalls"].applied and box.enforced["readable_paths"].applied
    box.close()


def test_an_old_landlock_lacks_truncate(tree: Path) -> None:
    lacking = walled.lacks(walls(tree), walled.Kernel(landlock_abi=2, seccomp=True))
    assert [lack.capability for lack in lacking] == ["writable_paths"] and "truncate" in lacking[0].missing


def test_hosts_by_name_are_not_held_here(tree: Path) -> None:
    lacking = walled.lacks(walls(tree, network=("a.example",)), walled.Kernel(landlock_abi=7, seccomp=True))
    assert [lack.capability for lack in lacking] == ["network"]


def test_calls_are_filtered_by_the_profile_that_is_asked_for(tree: Path) -> None:
    fork = f"{PYTHON} -c \"import os; os._exit(0) if os.fork() == 0 else os.wait(); print('content')\""
    assert b"content" in shell(walls(tree), fork).stdout
    assert b"content" not in ringfence.run([PYTHON, "-c", "import os; os.fork(); print('content')"],
                                           walls(tree, syscall_profile="tight")).stdout  # fmt: skip


def test_dangerous_calls_are_closed_behind_walls(tree: Path) -> None:
    (check,) = (check for check in APART if check.name == "system calls")
    finding = perform_one(run, IsolationLevel.PROCESS, check, walls(tree))
    assert finding.held and finding.proven, finding.problem


def test_no_sandbox_stands_by_behind_walls(tree: Path) -> None:
    with pytest.raises(UnavailableError, match="standby"):
        ringfence.Pool(walls(tree), warm=1)


_SCHEDULE = """
import os
for go in (lambda: os.sched_setscheduler(os.getppid(), os.SCHED_BATCH, os.sched_param(0)),
           lambda: os.sched_setaffinity(os.getppid(), os.sched_getaffinity(0))):
    try: go(); print('content')
    except PermissionError: print('refused')
os.sched_setaffinity(0, os.sched_getaffinity(0))
"""


def test_other_processes_are_not_scheduled_anew(tree: Path) -> None:
    outcome = ringfence.run([PYTHON, "-c", _SCHEDULE], walls(tree))
    assert outcome.ok and outcome.stdout.split() == [b"refused"] * 2, outcome.stderr
    assert ringfence.run([PYTHON, "-c", _SCHEDULE], PLAIN).stdout.split() == [b"content"] * 2


def test_no_room_is_taken_that_is_not_written(tree: Path) -> None:
    source = "import ctypes, os\nf = os.open('f', os.O_CREAT | os.O_RDWR)\n"
    source += "ctypes.CDLL(None).fallocate(f, 1, ctypes.c_long(0), ctypes.c_long(32 << 20))\n"
    source += "print(os.fstat(f).st_blocks * 512 >> 20)\n"
    assert ringfence.run([PYTHON, "-c", source], walls(tree, file_bytes=1 << 20)).stdout == b"0\n"
    assert ringfence.run([PYTHON, "-c", source], PLAIN.with_changes(file_bytes=1 << 20)).stdout == b"32\n"


def test_no_core_is_for_the_hosts_helper(tree: Path) -> None:
    source = "import resource as r\nr.setrlimit(r.RLIMIT_CORE, (0, 0)); print(r.getrlimit(r.RLIMIT_CORE))"
    assert ringfence.run([PYTHON, "-c", source], walls(tree)).stdout == b"(1, 1)\n"
    assert ringfence.run([PYTHON, "-c", source], PLAIN).stdout == b"(0, 0)\n"


def test_what_a_working_copy_holds_already_is_not_said_to_be_hidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "base").mkdir()
    (tmp_path / "base/secret").write_text("secret")
    policy = SandboxPolicy(isolation=IsolationLevel.PROCESS, hidden_paths=(str(tmp_path / "base/secret"),))
    job = Job(argv=("cat", "secret"), cwd=str(tmp_path / "base"))
    with Transaction.create(tmp_path / "late", [tmp_path / "base"], kind=SNAPSHOT) as late:
        assert run(job, policy.with_changes(hidden_paths=()), transaction=late).stdout == b"secret", "the control"
        with pytest.raises(UsageError, match="the copy contains it"):
            run(job, policy, transaction=late)
    hidden = policy.hidden_paths
    with Transaction.create(tmp_path / "early", [tmp_path / "base"], kind=SNAPSHOT, hidden=hidden) as early:
        assert run(job, policy, transaction=early).stdout == b""


NESTED = """
import ringfence
inner = ringfence.run(["sh", "-c", "exit 3"], ringfence.SandboxPolicy(isolation="process"))
print(inner.status, inner.rc)
"""


def test_a_job_behind_walls_can_run_jobs_of_its_own(tree: Path) -> None:
    """The walls close the control groups, which their modes do not say: the inner job does without."""
    ours = Path(ringfence.__file__).parents[1]
    policy = PLAIN.with_changes(readable_paths=(str(ours), sys.prefix, sys.base_prefix, str(tree)))
    program = Job(argv=(PYTHON, "-P", "-c", NESTED), environment={"PYTHONPATH": str(ours)})
    for each in (PLAIN, policy):
        done = run(program, each)
        assert done.stdout == b"FAILED 3\n", done.stderr.decode()
