"""Control groups as a list of directories, of whatever hierarchies: enter, list, freeze, kill, remove.

Runs in small processes too (a sandbox's init enters with it, a spawner that outlives its caller cleans up
with it), so it imports nothing heavy and takes only plain data. It chooses no directory and sets no limit.
"""

from __future__ import annotations

import errno
import os
import time

from ringfence.errors import SetupError, SupervisionError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

SIGKILL = 9
_PIECE_BYTES = 65536
GONE = (errno.ENOENT, errno.ENODEV)
FREEZERS = ("cgroup.freeze", "freezer.state")
TWIN = "ringfence.jobs-"
"""Prefix of the name of a group that exists only while groups of jobs are in it: see twin.py."""


def enter(procs_paths: Iterable[str]) -> None:
    """Move the calling process, which has one thread, into every group, before the job's first instruction and before
    it gives up its ids."""
    for path in procs_paths:
        try:
            write(path, "0")
        except OSError as error:
            raise SetupError("enter cgroup", f"{path}: {error.strerror}") from error


def write(path: str, text: str) -> None:
    """One write to a file that exists. No O_CREAT: in a plain directory a limit must fail, not become a file."""
    fd = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode("ascii"))
    finally:
        os.close(fd)


def write_back(path: str, text: str) -> str:
    """One write, and what the file says then."""
    fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode("ascii"))
        return os.pread(fd, _PIECE_BYTES, 0).decode("ascii", "replace")
    finally:
        os.close(fd)


def read(path: str, *, at_once: bool = False) -> str | None:
    """The content, or None if this kernel has no such file, or the group or process is gone. ``at_once``: the kernel
    gives all of it at once, as it does of whatever counts or limits."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)  # twice as fast as open(), and there are many of these
        try:
            content = os.read(fd, _PIECE_BYTES) if at_once else _content(fd)
            return content.decode("ascii", "replace")
        finally:
            os.close(fd)
    except OSError as error:
        if error.errno in (*GONE, errno.ESRCH, errno.EOPNOTSUPP):
            return None
        raise SupervisionError(f"{path}: {error.strerror}") from error


def _content(fd: int) -> bytes:
    content = b""
    while piece := os.read(fd, _PIECE_BYTES):
        content += piece
    return content


def as_table(text: str) -> dict[str, int]:
    """A flat keyed file such as memory.events."""
    rows = (line.split() for line in text.splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) == 2 and row[1].isdigit()}


def groups_within(directory: str) -> Iterator[str]:
    """The group and all below it, deepest first."""
    for here, _, _ in os.walk(directory, topdown=False):
        yield here


def members(directories: Iterable[str]) -> set[int]:
    """Process ids in the groups. Those of other pid namespaces read as 0 and can't be named: they stay 0."""
    found: set[int] = set()
    for directory in directories:
        for group in groups_within(directory):
            found.update(int(word) for word in (read(f"{group}/cgroup.procs") or "").split())
    return found


def kill(directories: Iterable[str]) -> None:
    """SIGKILL until the groups are empty. cgroup.kill does it in one step, also against a fork bomb; on a kernel
    without it, no process may start (pids.max 0) and the rest is killed while frozen. Final."""
    kept = tuple(directories)
    _write_if_there(kept, "cgroup.kill", "1")
    if _quiet_within(kept, 0.05):
        return
    _write_if_there(kept, "pids.max", "0")
    _wait(lambda: _strike(kept), 10.0, "processes survive SIGKILL", kept)


def kill_members(directories: Iterable[str]) -> bool:
    """One pass over groups of somebody else, where more may be forbidden; whether anybody was there to be killed. Who
    can't be seen or signalled from here is left out."""
    kept = tuple(directories)
    try:
        _write_if_there(kept, "cgroup.kill", "1")
    except SupervisionError:
        pass  # a caller who is not root
    found = [pid for pid in members(kept) if pid > 0]
    for pid in found:
        try:
            _kill_member(pid, kept)
        except PermissionError:
            continue
    return bool(found)


def remove(directories: Iterable[str]) -> None:
    """Kill what is left, then remove the groups and all below; a group that is gone already is fine."""
    # A group without processes and without groups below goes at once, and most jobs leave just that.
    asked = tuple(directories)
    kept = tuple(directory for directory in asked if not remove_if_empty(directory))
    if members(kept):
        kill(kept)
    _wait(lambda: not any(map(_remains, kept)), 5.0, "can't remove", kept)
    for twin in {os.path.dirname(directory) for directory in asked}:
        if os.path.basename(twin).startswith(TWIN):
            remove_if_empty(twin)  # or somebody else is still in it


def remove_if_empty(directory: str) -> bool:
    """Whether it is gone now."""
    try:
        os.rmdir(directory)
    except OSError as error:
        return error.errno in GONE
    return True


def _strike(directories: tuple[str, ...]) -> bool:
    frozen = any(os.path.exists(f"{directory}/{name}") for directory in directories for name in FREEZERS)
    if frozen:
        _switch(directories, "1", "FROZEN")
    for pid in members(directories):
        _kill_member(pid, directories)
    if frozen:
        # A process frozen by the v1 freezer dies only after it is thawed.
        _switch(directories, "0", "THAWED")
    _write_if_there(directories, "cgroup.kill", "1")
    return not members(directories)


def _kill_member(pid: int, directories: tuple[str, ...]) -> None:
    """Kill through a descriptor, and only if the process behind it is still in the group: pids are reused."""
    from signal import pidfd_send_signal

    if pid <= 0:
        return
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    except OSError:
        fd = -1  # a kernel without pidfd (< 5.3)
    try:
        groups = read(f"/proc/{pid}/cgroup") or ""
        if not any(f"/{os.path.basename(directory)}" in groups for directory in directories):
            return
        if fd >= 0:
            pidfd_send_signal(fd, SIGKILL)
        else:
            os.kill(pid, SIGKILL)
    except ProcessLookupError:
        pass
    finally:
        if fd >= 0:
            os.close(fd)


def _switch(directories: tuple[str, ...], v2_text: str, v1_text: str) -> None:
    _write_if_there(directories, "cgroup.freeze", v2_text)
    _write_if_there(directories, "freezer.state", v1_text)


def _write_if_there(directories: Iterable[str], name: str, text: str) -> None:
    for directory in directories:
        try:
            write(f"{directory}/{name}", text)
        except OSError as error:
            if error.errno not in GONE:
                raise SupervisionError(f"{directory}/{name}: {error.strerror}") from error


def _remains(directory: str) -> bool:
    for group in groups_within(directory):
        try:
            os.rmdir(group)
        except OSError as error:
            if error.errno == errno.EBUSY:
                return True
            if error.errno not in GONE:
                raise SupervisionError(f"can't remove {group}: {error.strerror}") from error
    return False


def _quiet_within(directories: tuple[str, ...], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while members(directories):
        if time.monotonic() > end:
            return False
        time.sleep(0.0005)
    return True


def _wait(done: Callable[[], bool], timeout_s: float, problem: str, directories: tuple[str, ...]) -> None:
    end = time.monotonic() + timeout_s
    pause_s = 0.0005
    while not done():
        if time.monotonic() > end:
            left = sorted(members(directories))
            raise SupervisionError(f"{problem} after {timeout_s:g} s: {directories[0]} (processes {left})")
        time.sleep(pause_s)
        pause_s = min(pause_s * 2, 0.02)
