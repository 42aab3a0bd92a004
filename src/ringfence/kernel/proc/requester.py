"""Who is waiting for our answer, by which system call, and which path it wrote: read from /proc, bounded.

The reader holds one descriptor of ``/proc/<tid>``: if that task ends, further reads fail; they never reach
another one with the same number. Best effort by design: what can't be read is left empty, never raised.
Enforces nothing, and what it reads is the guest's claim, except pid, start time and call number.

Nothing here can be made to wait by the guest: pages of its memory could only block us through userfaultfd in
kernel mode or a file system of its own, and a sandbox has neither.
"""

from __future__ import annotations

import os

from ringfence.kernel.opened import Opened, opened
from ringfence.kernel.proc.memory import POINTER_MASK
from ringfence.model.memo import lru_cache
from ringfence.model.record import record

MAX_ARGV_BYTES = 4096
MAX_ARGS = 64
MAX_PATH_BYTES = 4096
_PAGE = 4096
_SOCKADDR_PATH = 2
_MOST_STATUS_BYTES = 1 << 16  # the groups come before the number, and there may be many
_MOST_ABOVE, _TRIES = 1000, 3
_VISIT = b"visit "
_WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


@record
class PathCall:
    """One system call that takes paths: its numbers (-1: does not exist there) and where its paths are."""

    name: str
    x86_64: int
    aarch64: int
    paths: tuple[int, ...]
    writes: bool = False
    flags: int = -1
    """Argument with open flags; -1 when there is none."""
    flags_by_pointer: bool = False
    path_offset: int = 0


def _call(
    name: str, x86_64: int, aarch64: int, *paths: int, writes: bool = False, flags: int = -1
) -> PathCall:
    return PathCall(name=name, x86_64=x86_64, aarch64=aarch64, paths=paths, writes=writes, flags=flags)


CALLS = (
    _call("open", 2, -1, 0, flags=1),
    _call("openat", 257, 56, 1, flags=2),
    PathCall(name="openat2", x86_64=437, aarch64=437, paths=(1,), flags=2, flags_by_pointer=True),
    _call("creat", 85, -1, 0, writes=True),
    _call("open_tree", 428, 428, 1),
    _call("stat", 4, -1, 0),
    _call("lstat", 6, -1, 0),
    _call("newfstatat", 262, 79, 1),
    _call("statx", 332, 291, 1),
    _call("statfs", 137, 43, 0),
    _call("access", 21, -1, 0),
    _call("faccessat", 269, 48, 1),
    _call("faccessat2", 439, 439, 1),
    _call("execve", 59, 221, 0),
    _call("execveat", 322, 281, 1),
    _call("readlink", 89, -1, 0),
    _call("readlinkat", 267, 78, 1),
    _call("rename", 82, -1, 0, 1, writes=True),
    _call("renameat", 264, 38, 1, 3, writes=True),
    _call("renameat2", 316, 276, 1, 3, writes=True),
    _call("link", 86, -1, 0, 1, writes=True),
    _call("linkat", 265, 37, 1, 3, writes=True),
    _call("symlink", 88, -1, 1, writes=True),
    _call("symlinkat", 266, 36, 2, writes=True),
    _call("unlink", 87, -1, 0, writes=True),
    _call("unlinkat", 263, 35, 1, writes=True),
    _call("mkdir", 83, -1, 0, writes=True),
    _call("mkdirat", 258, 34, 1, writes=True),
    _call("rmdir", 84, -1, 0, writes=True),
    _call("mknod", 133, -1, 0, writes=True),
    _call("mknodat", 259, 33, 1, writes=True),
    _call("truncate", 76, 45, 0, writes=True),
    _call("chdir", 80, 49, 0),
    _call("chroot", 161, 51, 0),
    _call("chmod", 90, -1, 0, writes=True),
    _call("fchmodat", 268, 53, 1, writes=True),
    _call("fchmodat2", 452, 452, 1, writes=True),
    _call("chown", 92, -1, 0, writes=True),
    _call("lchown", 94, -1, 0, writes=True),
    _call("fchownat", 260, 54, 1, writes=True),
    _call("utime", 132, -1, 0, writes=True),
    _call("utimes", 235, -1, 0, writes=True),
    _call("futimesat", 261, -1, 1, writes=True),
    _call("utimensat", 280, 88, 1, writes=True),
    _call("setxattr", 188, 5, 0, writes=True),
    _call("lsetxattr", 189, 6, 0, writes=True),
    _call("getxattr", 191, 8, 0),
    _call("lgetxattr", 192, 9, 0),
    _call("listxattr", 194, 11, 0),
    _call("llistxattr", 195, 12, 0),
    _call("removexattr", 197, 14, 0, writes=True),
    _call("lremovexattr", 198, 15, 0, writes=True),
    _call("setxattrat", 463, 463, 1, writes=True),
    _call("getxattrat", 464, 464, 1),
    _call("listxattrat", 465, 465, 1),
    _call("removexattrat", 466, 466, 1, writes=True),
    _call("file_getattr", 468, 468, 1),
    _call("file_setattr", 469, 469, 1, writes=True),
    _call("name_to_handle_at", 303, 264, 1),
    _call("inotify_add_watch", 254, 27, 1),
    _call("fanotify_mark", 301, 263, 4),
    _call("uselib", 134, -1, 0),
    _call("acct", 163, 89, 0, writes=True),
    _call("quotactl", 179, 60, 1),
    _call("mount", 165, 40, 0, 1, writes=True),
    _call("umount2", 166, 39, 0, writes=True),
    PathCall(name="bind", x86_64=49, aarch64=200, paths=(1,), writes=True, path_offset=_SOCKADDR_PATH),
    PathCall(name="connect", x86_64=42, aarch64=203, paths=(1,), path_offset=_SOCKADDR_PATH),
    PathCall(name="sendto", x86_64=44, aarch64=206, paths=(4,), path_offset=_SOCKADDR_PATH),
)


@record
class Requester:
    """What could be found out; empty or zero where nothing could."""

    pid: int = 0
    start_ticks: int = 0
    comm: str = ""
    argv: tuple[str, ...] = ()
    syscall: str = ""
    asked: tuple[str, ...] = ()
    writes: bool = False


def identify(tid: int, proc: int = -1) -> Requester:
    """Describe the task ``tid``, which must be waiting for us so that its call and arguments stand still.

    ``proc`` is the /proc in which it has that number; -1: our own.
    """
    if tid <= 0:
        return Requester()
    try:
        with _in_proc(tid, proc) as folder:
            return _describe(folder, tid)
    except OSError:
        return Requester(pid=tid)


class Callers:
    """Finds who makes the reported calls of one sandbox. Each of them waits, so only what is needed is read."""

    def __init__(self) -> None:
        self._last = (0, 0, 0)
        """A task, its start and its number inside. It is kept: most calls come from the same task as the one before."""

    def identify(self, tid: int) -> Requester:
        """Describe the task ``tid`` without its call; of one that is gone nothing is known."""
        try:
            with _in_proc(tid, -1) as folder:
                comm, start_ticks = _parse_stat(_read(folder, "stat", 1024))
                if self._last[:2] != (tid, start_ticks) or not start_ticks:
                    self._last = tid, start_ticks, _thread_group(_read(folder, "status", _MOST_STATUS_BYTES))
                argv = _parse_argv(_read(folder, "cmdline", MAX_ARGV_BYTES))
                return Requester(pid=self._last[2], start_ticks=start_ticks, comm=comm, argv=argv)
        except OSError:
            return Requester()


def is_writing(tid: int, proc: int = -1) -> bool:
    """Whether the call that a task waits in may change a file; False also where that can't be found out."""
    try:
        with _in_proc(tid, proc) as folder:
            return _describe_call(folder)[2]
    except OSError:
        return False


def visit_name(number: int) -> str:
    """What the reaper of a visit to a box is called, for ``visit_of``."""
    return f"{_VISIT.decode()}{number}"


def visit_of(tid: int, proc: int) -> int:
    """The number of the visit that a task of a box belongs to, by the reaper that it is below; 0: unknown.

    The task waits, but a process above it may end meanwhile; then the task has another parent, and is looked at again.
    """
    for _ in range(_TRIES):
        try:
            return _visit_above(tid, proc)
        except OSError:
            continue
    return 0


def _visit_above(tid: int, proc: int) -> int:
    filters = _status(1, proc)[2]
    for _ in range(_MOST_ABOVE):
        name, parent, own_filters = _status(tid, proc)
        if parent == 1:
            # A guest may call itself anything, but it has a filter, and no reaper has one.
            number = name.removeprefix(_VISIT) if filters and own_filters == filters else b""
            return int(number) if number.isdigit() else 0
        tid = parent
    return 0


def _status(tid: int, proc: int) -> tuple[bytes, int, bytes]:
    """Its name, its parent, and how many filters it has."""
    with _in_proc(tid, proc) as folder, opened("status", os.O_RDONLY, folder) as file:
        rows = os.read(file, _MOST_STATUS_BYTES).split(b"\n")
    fields = dict(row.partition(b":\t")[::2] for row in rows)
    return fields.get(b"Name", b""), int(fields.get(b"PPid", b"0")), fields.get(b"Seccomp_filters", b"")


def _in_proc(tid: int, proc: int) -> Opened:
    flags = os.O_RDONLY | os.O_DIRECTORY
    return opened(f"/proc/{tid}", flags) if proc < 0 else opened(str(tid), flags, proc)


def _describe(folder: int, tid: int) -> Requester:
    comm, start_ticks = _parse_stat(_read(folder, "stat", 1024))
    name, asked, writes = _describe_call(folder)
    return Requester(
        pid=_thread_group(_read(folder, "status", 1024)) or tid,
        start_ticks=start_ticks,
        comm=comm,
        argv=_parse_argv(_read(folder, "cmdline", MAX_ARGV_BYTES)),
        syscall=name,
        asked=asked,
        writes=writes,
    )


def _describe_call(folder: int) -> tuple[str, tuple[str, ...], bool]:
    words = _read(folder, "syscall", 256).split()
    if len(words) < 7 or not words[0].isdigit():
        return "", (), False
    call = _calls_by_number().get(int(words[0]))
    if call is None:  # none that takes a path: a kernel worker of io_uring, with stale registers
        return "", (), False
    arguments = [int(word, 16) for word in words[1:7]]
    try:
        with opened("mem", os.O_RDONLY, folder) as memory:
            asked = tuple(_string(memory, arguments[index] + call.path_offset) for index in call.paths)
            return call.name, asked, call.writes or _opens_to_write(memory, call, arguments)
    except OSError:
        return call.name, (), call.writes


def _opens_to_write(memory: int, call: PathCall, arguments: list[int]) -> bool:
    if call.flags < 0:
        return False
    flags = arguments[call.flags]
    if call.flags_by_pointer:
        flags = int.from_bytes(_peek(memory, flags, 8), "little")
    return bool(flags & _WRITE_FLAGS)


@lru_cache(maxsize=1)
def _calls_by_number() -> dict[int, PathCall]:
    machine = "aarch64" if os.uname().machine in ("aarch64", "arm64") else "x86_64"
    return {getattr(call, machine): call for call in CALLS if getattr(call, machine) >= 0}


def _parse_stat(data: bytes) -> tuple[str, int]:
    """Process name and start time. The name may hold spaces and brackets, so the last bracket ends it."""
    before, _, after = data.rpartition(b")")
    fields = after.split()
    start_ticks = int(fields[19]) if len(fields) > 19 and fields[19].isdigit() else 0
    return os.fsdecode(before.partition(b"(")[2]), start_ticks


def _thread_group(data: bytes) -> int:
    """The process in the innermost pid namespace that it is in: the number by which the sandbox knows it."""
    words = data.partition(b"\nNStgid:")[2].partition(b"\n")[0].split()
    return int(words[-1]) if words and words[-1].isdigit() else 0


def _parse_argv(data: bytes) -> tuple[str, ...]:
    words = data.removesuffix(b"\0").split(b"\0", MAX_ARGS)[:MAX_ARGS]
    return tuple(map(os.fsdecode, words)) if data else ()


def _string(memory: int, address: int) -> str:
    """A NUL-terminated string, read page by page since the next page may not be there."""
    found = b""
    address &= POINTER_MASK
    while len(found) < MAX_PATH_BYTES:
        chunk = _peek(memory, address + len(found), _PAGE - (address + len(found)) % _PAGE)
        found += chunk.partition(b"\0")[0]
        if not chunk or b"\0" in chunk:
            break
    return os.fsdecode(found[:MAX_PATH_BYTES])


def _peek(memory: int, address: int, size: int) -> bytes:
    try:
        return os.pread(memory, size, address & POINTER_MASK)
    except OSError:
        return b""


def _read(folder: int, name: str, limit_bytes: int) -> bytes:
    try:
        with opened(name, os.O_RDONLY, folder) as file:
            return os.read(file, limit_bytes)
    except OSError:
        return b""
