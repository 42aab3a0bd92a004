"""The steps of a strict sandbox as tables: which become calls, what stays in Python, and that nothing changes by it."""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from bench.process_tree import descendants
from tests.patience import eventually

import ringfence
from ringfence import IsolationLevel, SandboxPolicy
from ringfence.kernel.calls import native
from ringfence.kernel.calls.described import described
from ringfence.steps import call_table

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux only")
STRICT = SandboxPolicy(isolation=IsolationLevel.STRICT)


def _parts(*plan: tuple[object, ...]) -> list[str]:
    """The steps that stay in Python by name, and tables by the number of their calls."""
    return [str(part.step[0]) if part.build is None else f"{len(part.build.table.calls)} calls"
            for part in call_table.parts(list(plan))]  # fmt: skip


def _calls(*plan: tuple[object, ...]) -> list[str]:
    (part,) = call_table.parts(list(plan))
    assert part.build is not None
    return [call.text for _, call in described(part.build.table)]


def test_steps_that_follow_each_other_are_one_table() -> None:
    assert _parts(("setsid",), ("umask", 18), ("reset signals",), ("chdir", "/x"), ("exec", [], {}, "")) == [
        "2 calls", "reset signals", "1 calls", "exec",
    ]  # fmt: skip


def test_what_has_to_look_first_stays_in_python() -> None:
    assert _parts(("whiteouts", "memory/cover-0", "base/workspace", ["secret"])) == ["whiteouts"]
    assert _parts(("whiteouts", "memory/cover-0", "base/workspace", [])) == ["1 calls"]
    assert _parts(("tripwires", ["/x"], 1, 1), ("seal root",)) == ["tripwires", "seal root"]


def test_a_mount_point_is_opened_without_links_and_made_where_it_is_missing() -> None:
    calls = _calls(("new root", 4096, ["/a"]), ("bind", "base/0", "/a/b", True))[4:]
    assert calls[0].startswith('open_tree(AT_FDCWD, "base/0", ') and calls[0].endswith("= tree")
    assert calls[1].startswith('openat2(<root>, "a/b", ') and calls[1].endswith("= place or ENOENT, then skip 4")
    assert [call.partition("(")[0] for call in calls[2:]] == [
        "openat2", "mkdirat", "close", "openat2", "move_mount", "close", "close",
    ]  # fmt: skip


def test_a_limit_that_the_policy_asks_for_is_never_lowered() -> None:
    asked, ours = _calls(("rlimit", "RLIMIT_CPU", 2, 4)), _calls(("rlimit", "RLIMIT_NPROC", 9, 9))
    assert len(asked) == 1 and "EPERM" not in asked[0]
    assert "EPERM" in ours[0] and "then skip" in ours[0] and len(ours) == 5


def test_a_filter_is_installed_unheard_only_where_somebody_listens_already() -> None:
    plain, other = (_calls(("seccomp", bytes(8), True, unheard)) for unheard in (b"", bytes(8)))
    assert not any("EBUSY" in call for call in plain)
    assert [call for call in other if "EBUSY" in call and call.startswith("seccomp(")]
    assert not any(code in call for call in plain for code in ("EPERM", "EACCES", "any error")
                   if call.startswith(("seccomp", "prctl", "sendmsg")))  # fmt: skip


@pytest.mark.parametrize("step", ["landlock", "seccomp", "drop capabilities", "no new privileges", "take identity",
                                  "seal root", "run as init", "show", "overlay", "await leader"])  # fmt: skip
def test_no_protection_is_allowed_to_fail(step: str) -> None:
    """Errors that are no reason to stop are listed call by call: this is the whole list, for who changes it."""
    arguments: dict[str, tuple[object, ...]] = {
        "landlock": (bytes(24), [("/", 13, 5)], []), "seccomp": (bytes(8), True), "take identity": (1, 1),
        "show": ("/usr", "0"), "overlay": ("/etc", ["ro"], "lowerdir=x"),
    }  # fmt: skip
    (part,) = call_table.parts([(step, *arguments.get(step, ()))])
    assert part.build is not None
    allowed = {(call.name, code) for call in part.build.table.calls for code in call.allowed}
    assert allowed <= {
        ("openat2", errno.ENOENT),  # then it is made
        ("landlock_add_rule", errno.EINVAL),  # of a file: then the rights of files are given
        ("seccomp", errno.EINVAL),  # an older kernel: then without the flag
        ("sendmsg", errno.ETOOMANYREFS), ("nanosleep", 255),  # then once more
        ("keyctl", errno.ENOSYS), ("prctl", errno.EINVAL),  # past the last capability
        ("rseq", 255), ("set_robust_list", errno.EINVAL), ("close", errno.EBADF),
    }, allowed  # fmt: skip


LOOK = """
import os, resource, json
def lines(path):
    with open(path) as file: return file.read().splitlines()
def key(line): return [word for word in line.split() if word[:2] not in ("Vm", "Rs")]
status = [line for line in lines("/proc/self/status") if line.split(":")[0] in (
    "Uid", "Gid", "Groups", "Pid", "PPid", "NSpid", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs",
    "Seccomp", "SigBlk", "SigIgn", "SigCgt", "Umask", "Name")]
mounts = [line.split(" - ")[0].split(" ", 3)[3] + " " + line.split(" - ")[1] for line in lines("/proc/self/mountinfo")]
print(json.dumps({
    "status": status,
    "mounts": sorted(mounts),
    "limits": [resource.getrlimit(number) for number in range(16)],
    "root": sorted((name, oct(os.lstat("/" + name).st_mode)) for name in os.listdir("/")),
    "dev": sorted((name, oct(os.lstat("/dev/" + name).st_mode)) for name in os.listdir("/dev")),
    "pid 1": [lines("/proc/1/comm"), open("/proc/1/cmdline").read().strip("\\0"), os.stat("/proc/1/fd").st_uid],
    "seen": [lines("/proc/self/cmdline")[:0], os.getsid(0), os.getpgrp(), os.getcwd(), os.uname().nodename],
    "descriptors": sorted(os.listdir("/proc/self/fd")),
    "settings": [lines("/proc/sys/user/max_inotify_watches"), lines("/proc/sys/net/ipv4/tcp_rmem")],
}))
"""


def _without_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_table, "compiled", lambda plan: [])


@pytest.mark.system
@pytest.mark.privileges
@pytest.mark.parametrize("workspace", [False, True])
def test_a_job_sees_the_same_whoever_built_its_sandbox(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, workspace: bool
) -> None:
    """By the native part with a program as pid 1, by the same table through ctypes, and by the steps one by one."""
    (tmp_path / "file").write_text("content")
    cwd = str(tmp_path) if workspace else None

    def look() -> str:
        outcome = ringfence.run([sys.executable, "-I", "-S", "-c", LOOK], STRICT, cwd=cwd)
        assert outcome.ok, outcome
        return re.sub(r"[ug]id=\d+", "id=N", outcome.stdout.decode())  # each builder has ids of its own to give

    by_native = look()
    monkeypatch.setenv("RINGFENCE_PURE", "1")
    by_ctypes = look()
    _without_tables(monkeypatch)
    assert by_native == by_ctypes == look()


@pytest.mark.system
@pytest.mark.privileges
@pytest.mark.parametrize("way", ["native", "ctypes", "steps"])
def test_a_step_that_fails_is_named_whoever_executes_it(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    from ringfence.sandbox import root

    if way != "native":
        monkeypatch.setenv("RINGFENCE_PURE", "1")
    if way == "steps":
        _without_tables(monkeypatch)
    monkeypatch.setattr(root, "USER_SETTINGS", {"user/no_such_setting": "1"})
    with pytest.raises(ringfence.SetupError) as failed:
        ringfence.run(["true"], STRICT)
    assert failed.value.step == "kernel settings" and "No such file" in str(failed.value)


SPLIT = """
import os, sys, threading
from ringfence.kernel.calls import native, thread
from ringfence.kernel.proc import processes
from ringfence.steps import call_table, pid1, table_step
from ringfence.steps.step import StepFailed
from ringfence.steps.state import SETUP
SETUP.thread, SETUP.init = thread.facts(), thread.open_init()
assert thread.can_split() and SETUP.init >= 40, (thread.facts(), SETUP.init)
status, SETUP.status = os.pipe()
SETUP.tally = os.eventfd(0, os.EFD_NONBLOCK)
((_, *arguments),) = call_table.compiled([("run as init",), ("umask", 18)])
child = processes.fork_into(0x30000000)
if child == 0:
    table_step.execute_table(*arguments)
    told = threading.Thread(target=lambda: os.write(1, b"thread %d\\n" % os.getpid()))
    told.start(); told.join()
    grandchild = os.fork()
    if grandchild == 0: os._exit(5)
    assert os.waitpid(grandchild, 0)[1] == 5 << 8
    orphan = os.fork()
    if orphan == 0:
        if os.fork() == 0: os._exit(0)
        os._exit(0)
    os.waitpid(orphan, 0)
    assert (os.getpid(), os.getppid(), threading.get_native_id()) == (2, 1, 2)
    try: os.kill(1, 9)
    except OSError: pass
    bytearray(30 << 20)
    os._exit(7)
os.close(SETUP.status)
ended = os.read(status, 100)
print(pid1.ENDED.unpack(ended)[0], pid1.ENDED.unpack(ended)[3] > 20 << 20, os.waitpid(child, 0)[1])
"""


def _need_native() -> None:
    if native._opened() is None:
        pytest.skip("the native part is not built")


@pytest.mark.system
def test_pid_1_becomes_a_program_and_the_job_goes_on() -> None:
    _need_native()
    done = subprocess.run([sys.executable, "-c", SPLIT], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == f"thread 2\n{7 << 8} True 0\n", done.stderr


@pytest.mark.system
@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
def test_the_job_waits_until_pid_1_has_left_its_memory(tmp_path: Path) -> None:
    """Until then pid 1, which is under no filter, would execute what a job writes into the memory of both."""
    _need_native()
    log = tmp_path / "log"
    subprocess.run(["strace", "-f", "-o", str(log), sys.executable, "-c", SPLIT], check=True, timeout=60,
                   stdout=subprocess.DEVNULL)  # fmt: skip
    lines = log.read_text().splitlines()
    parted = next(number for number, line in enumerate(lines) if "CLONE_VM|CLONE_CHILD_SETTID" in line)
    first = next(number for number, line in enumerate(lines) if number > parted and "set_robust_list(" in line)
    # The kernel lets go of the memory, and wakes the job, in the middle of the exec: it need not have returned.
    waited = any("FUTEX_WAIT" in line or "execveat(" in line for line in lines[parted:first])
    assert waited, lines[parted : first + 5]


@pytest.mark.system
@pytest.mark.root
def test_pid_1_holds_its_descriptors_and_nothing_of_the_host() -> None:
    _need_native()
    with ringfence.Pool(STRICT) as pool:
        assert pool.run_source("print(1)").ok
        # One that begins or ends in this moment holds other things, but not for long.
        eventually(lambda: (held := _held_by_inits()) and all(each == BARE for each in held), told=_held_by_inits)


BARE = [("0", "pipe"), ("1", "anon_inode:[eventfd]"), ("2", "anon_inode:[signalfd]"),
        ("exe", "/memfd:init (deleted)"), ("private KiB", "<= 64")]  # fmt: skip


def _held_by_inits() -> list[list[tuple[str, str]]]:
    return [_held(pid) for pid in descendants() if _is_init(pid)]


def _held(pid: int) -> list[tuple[str, str]]:
    proc = Path(f"/proc/{pid}")
    try:
        found = [(each.name, os.readlink(each)) for each in sorted((proc / "fd").iterdir())]
        rollup = (proc / "smaps_rollup").read_text().splitlines()
        program = os.readlink(proc / "exe")
    except OSError:
        return []
    private = sum(int(line.split()[1]) for line in rollup if line.startswith("Private"))
    named = [(name, "pipe" if target.startswith("pipe:") else target) for name, target in found]
    return [*named, ("exe", program), ("private KiB", "<= 64" if private <= 64 else str(private))]


def _is_init(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    return any(line.startswith("NSpid:") and line.split()[-1] == "1" and len(line.split()) > 2
               for line in status.splitlines())  # fmt: skip


@pytest.mark.privileges
def test_nobody_may_read_or_change_the_program_of_pid_1() -> None:
    """Whoever executes what it may not read is not dumpable, from its first moment."""
    _need_native()
    from ringfence.kernel.calls import thread

    program = thread._in_memory(Path(native.init_path()).read_bytes())
    try:
        assert os.fstat(program).st_mode & 0o777 == 0o111
        if os.geteuid() != 0:
            with pytest.raises(PermissionError):
                os.open(f"/proc/self/fd/{program}", os.O_RDONLY)
        else:  # whom no mode stops, the seals do
            opened = os.open(f"/proc/self/fd/{program}", os.O_WRONLY)
            with pytest.raises(PermissionError):
                os.write(opened, b"other")
            os.close(opened)
    finally:
        os.close(program)
