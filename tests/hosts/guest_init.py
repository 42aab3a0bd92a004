"""The guest's init on its real root: mounts, a delegated group, pytest as root or as a user.

Runs only inside the guest, as pid 1, after guest_boot.sh. Answers on the console, one JSON object a line behind
MARK; everything else on the console is noise.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import sys
import time
import traceback

MARK = "@@guest "
USER = 1000
ROOT_GROUP = "/sys/fs/cgroup/session.scope"
DELEGATED = "/sys/fs/cgroup/user.scope"
CONTROLLERS = ("cpu", "io", "memory", "pids")
DELEGATED_FILES = ("cgroup.procs", "cgroup.subtree_control", "cgroup.threads")

libc = ctypes.CDLL(None, use_errno=True)


def say(**fact: object) -> None:
    os.write(1, ("\n" + MARK + json.dumps(fact) + "\n").encode())


def mount(source: str, target: str, kind: str, options: str = "") -> None:
    os.makedirs(target, exist_ok=True)
    if libc.mount(source.encode(), target.encode(), kind.encode(), 0, options.encode()) != 0:
        raise OSError(ctypes.get_errno(), f"mount {target}")


def write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def prepare() -> None:
    mount("proc", "/proc", "proc")
    mount("sysfs", "/sys", "sysfs")
    mount("devtmpfs", "/dev", "devtmpfs")
    mount("tmpfs", "/dev/shm", "tmpfs")
    mount("devpts", "/dev/pts", "devpts", "ptmxmode=666")
    mount("tracefs", "/sys/kernel/tracing", "tracefs")
    # Not a mount of its own: the project may lie under /tmp.
    for folder in ("/tmp", "/var/tmp"):
        os.makedirs(folder, exist_ok=True)
        os.chmod(folder, 0o1777)
    os.makedirs("/mnt", exist_ok=True)
    mount("cgroup2", "/sys/fs/cgroup", "cgroup2")
    write("/sys/fs/cgroup/cgroup.subtree_control", " ".join("+" + name for name in CONTROLLERS))
    os.mkdir(ROOT_GROUP)
    os.mkdir(DELEGATED)
    # What systemd does for Delegate=yes: the directory and these files change hands, the limits above do not.
    for path in (DELEGATED, *(f"{DELEGATED}/{name}" for name in DELEGATED_FILES)):
        os.chown(path, USER, USER)
    # The test of io.max reads the device itself; udev would give /dev/fuse to all.
    os.chmod("/dev/vda", 0o644)
    os.chmod("/dev/fuse", 0o666)
    os.symlink("/proc/self/fd", "/dev/fd")


def run_pytest(who: str, job: dict[str, object]) -> None:
    """pytest in a child that is placed in its group and, for an ordinary user, has dropped root for good."""
    group, uid = {"root": (ROOT_GROUP, 0), "user": (DELEGATED, USER)}[who]
    started = time.monotonic()
    child = os.fork()
    if child == 0:
        write(f"{group}/cgroup.procs", "0")
        if uid:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
        os.environ["GUEST_WHO"] = who
        os._exit(pytest_main(who, job))
    _, status = os.waitpid(child, 0)
    groups = [here for here, _, _ in os.walk("/sys/fs/cgroup")]
    say(who=who, exit_code=os.waitstatus_to_exitcode(status), seconds=round(time.monotonic() - started, 2),
        left_behind=[here for here in groups if "/ringfence-" in here or "/ringfence.jobs-" in here])  # fmt: skip


def pytest_main(who: str, job: dict[str, object]) -> int:
    # Plain asserts: rewriting the test modules takes half as long as running them here.
    options = ["-q", "--color=no", "--assert=plain", "-p", "no:cacheprovider", "-p", "guest_report"]
    return int(pytest.main([*options, "-c", str(job["ini"]), f"--basetemp=/tmp/{who}", *job["tests"][who]]))


def become_ready(job: dict[str, object]) -> None:
    """Paths, variables, as many descriptors as a login gives; and modules, once for all that are forked."""
    global pytest
    sys.path[:0] = job["pythonpath"]
    sys.dont_write_bytecode = True
    os.chdir("/tmp")
    os.environ.update({"HOME": "/tmp", "PATH": "/usr/bin:/bin", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
                       "GUEST_REPORT_FD": str(os.dup2(1, 9)), **job["environment"]})  # fmt: skip
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
    import pytest

    import ringfence  # noqa: F401


def main() -> None:
    started = time.monotonic()
    try:
        prepare()
        with open("/guest/job.json", encoding="utf-8") as file:
            job = json.load(file)
        with open("/sys/fs/cgroup/cgroup.controllers", encoding="ascii") as file:
            say(kernel=os.uname().release, controllers=file.read().split(), boot_s=round(started, 2))
        become_ready(job)
        say(ready_s=round(time.monotonic() - started, 2))
        for who in job["tests"]:
            run_pytest(who, job)
        say(done=True)
    except BaseException:
        say(done=False, error=traceback.format_exc())
    finally:
        libc.reboot(0x4321FEDC)
        time.sleep(60)


main()
