"""Small hostile programs for the tests of control groups: forked, placed in a group, then run."""

from __future__ import annotations

import contextlib
import mmap
import os
import posix
import signal
import time
from collections.abc import Callable, Iterator

from ringfence.kernel.cgroup import tree as cgroup_tree
from ringfence.kernel.cgroup.group import Cgroup

PAGE = 4096
leave = posix._exit
"""Not os._exit: a coverage run has that write files, and a limited process should do nothing but its task."""
FAILED = 99


def told(group: Cgroup, capability: str, *names: str) -> str:
    """What the kernel says in the one of these files that it has; empty: in none."""
    found = (cgroup_tree.read(f"{group.places[capability]}/{name}") for name in names if capability in group.places)
    return next(filter(None, found), "")


def start(group: Cgroup | None, program: Callable[[], object]) -> int:
    """Run ``program`` in a new process that first enters ``group``; the pid, when it has entered."""
    read, write = os.pipe()
    pid = os.fork()
    if pid:
        os.close(write)
        os.read(read, 1)
        os.close(read)
        return pid
    code = FAILED
    try:
        if group is not None:
            cgroup_tree.enter(group.enter_paths)
        os.close(write)
        code = int(program() or 0)  # type: ignore[call-overload]
    finally:
        leave(code)


def end(pid: int) -> int:
    """Wait; the exit code, or minus the signal."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def use_memory(size: int) -> None:
    with mmap.mmap(-1, size) as memory:
        memory[::PAGE] = b"x" * (size // PAGE)


def spin(seconds: float, tell: int = -1) -> None:
    """Keep one core busy; tells which part of it was had."""
    started, used = time.monotonic(), time.process_time()
    while time.monotonic() < started + seconds:
        pass
    if tell >= 0:
        os.write(tell, str((time.process_time() - used) / (time.monotonic() - started)).encode())


def fork_until_refused(at_most: int) -> int:
    """Children that sleep; how many could be made."""
    for made in range(at_most):
        try:
            pid = os.fork()
        except OSError:
            return made
        if pid == 0:
            time.sleep(60)
            leave(0)
    return at_most


def fork_for_ever() -> None:
    """A bomb that moves: every process forks, and every parent leaves, so no list of pids is ever right."""
    while True:
        try:
            if os.fork():
                os.kill(os.getpid(), signal.SIGKILL)
        except OSError:
            time.sleep(0.001)


def daemonise(tell: int) -> None:
    """Two forks and a session of its own; tells its pid, then stays."""
    if os.fork():
        leave(0)
    os.setsid()
    if os.fork():
        leave(0)
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
