"""Small hostile programs for the tests of control groups: forked, placed in a group, then run."""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
import time
from collections.abc import Callable, Iterator

from ringfence.linux import cgroup_tree
from ringfence.linux.cgroups import Cgroup

PAGE = 4096
FAILED = 99


def start(group: Cgroup | None, program: Callable[[], object]) -> int:
    """Run ``program`` in a new process that first enters ``group``; the pid."""
    pid = os.fork()
    if pid:
        return pid
    code = FAILED
    try:
        if group is not None:
            cgroup_tree.enter(group.enter_paths)
        code = int(program() or 0)  # type: ignore[call-overload]
    finally:
        os._exit(code)


def end(pid: int) -> int:
    """Wait; the exit code, or minus the signal."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def use_memory(size: int) -> None:
    with mmap.mmap(-1, size) as memory:
        memory[::PAGE] = b"x" * (size // PAGE)


def spin(seconds: float) -> None:
    end_at = time.monotonic() + seconds
    while time.monotonic() < end_at:
        pass


def fork_until_refused(at_most: int) -> int:
    """Children that sleep; how many could be made."""
    for made in range(at_most):
        try:
            pid = os.fork()
        except OSError:
            return made
        if pid == 0:
            time.sleep(60)
            os._exit(0)
    return at_most


def fork_for_ever() -> None:
    """A bomb that moves: every process forks, and every parent leaves, so no list of pids is ever right."""
    while True:
        try:
            if os.fork():
                os._exit(0)
        except OSError:
            time.sleep(0.001)


def daemonise(tell: int) -> None:
    """Two forks and a session of its own; tells its pid, then stays."""
    if os.fork():
        os._exit(0)
    os.setsid()
    if os.fork():
        os._exit(0)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.write(tell, str(os.getpid()).encode())
    os.close(tell)
    time.sleep(60)


def alive(pid: int) -> bool:
    text = cgroup_tree.read(f"/proc/{pid}/stat") or ""
    return bool(text) and text.rpartition(")")[2].split()[0] not in "ZX"


def eventually(true: Callable[[], bool], within_s: float = 10.0) -> bool:
    end_at = time.monotonic() + within_s
    while not true():
        if time.monotonic() > end_at:
            return False
        time.sleep(0.005)
    return True


@contextlib.contextmanager
def pipe() -> Iterator[tuple[int, int]]:
    read, write = os.pipe()
    try:
        yield read, write
    finally:
        for fd in (read, write):
            with contextlib.suppress(OSError):
                os.close(fd)
