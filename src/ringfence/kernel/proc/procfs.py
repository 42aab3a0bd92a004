"""Reads the process tree below one process from /proc, in time that grows with the tree, not the host.

It measures and lists; what follows from it is decided elsewhere. Everything read here may be gone or
belong to a new process a moment later, so a process is known by its pid *and* its start time.
"""

from __future__ import annotations

import os
from _collections_abc import Callable, Collection, Iterator

PAGE_BYTES = 4096 if not hasattr(os, "sysconf") else os.sysconf("SC_PAGE_SIZE")
TICKS_PER_S = 100 if not hasattr(os, "sysconf") else os.sysconf("SC_CLK_TCK")
_CLOCK_OF_PROCESS = 2
"""The kernel's number for the clock of a process; the rest of the clock's name is the pid."""
# Fields of /proc/<pid>/stat, counted from the one after the name (which may hold anything).
_STATE, _PARENT, _SESSION, _UTIME, _THREADS, _START, _RSS = 0, 1, 3, 11, 17, 19, 21
_ENDED = (b"Z", b"X")
_TRIES = 5
_KCMP_VM, _KCMP_FILES = 1, 2


class Process:
    """One line of the table: enough to measure and to signal it safely."""

    __slots__ = (
        "asked", "cpu_ticks", "own_ticks", "parent", "pid", "rss_bytes", "session", "start", "system_ticks", "threads",
        "zombie",
    )  # fmt: skip

    def __init__(self, pid: int, fields: list[bytes]) -> None:
        self.pid = self.asked = pid
        """``asked``: the thread by which /proc tells of its memory and files: the first one, unless that has ended."""
        self.parent, self.session = int(fields[_PARENT]), int(fields[_SESSION])
        self.start = int(fields[_START])
        self.own_ticks = int(fields[_UTIME]) + int(fields[_UTIME + 1])
        # Its own two and the two of the children it has waited for: work done in short-lived children.
        self.cpu_ticks = sum(map(int, fields[_UTIME : _UTIME + 4]))
        self.system_ticks = int(fields[_UTIME + 1]) + int(fields[_UTIME + 3])
        self.threads = int(fields[_THREADS])
        self.rss_bytes = int(fields[_RSS]) * PAGE_BYTES
        # A process whose first thread alone has ended looks dead but goes on: its threads and memory count.
        self.zombie = fields[_STATE] in _ENDED and self.threads < 2
        if fields[_STATE] in _ENDED and not self.zombie:
            self._ask_another()

    def _ask_another(self) -> None:
        """The kernel no longer shows its memory under its pid, but still shows all of it under a living thread."""
        for thread in threads(self.pid):
            try:
                pages = int(_read(f"/proc/{self.pid}/task/{thread}/statm").split()[1])
            except (OSError, ValueError, IndexError):
                continue  # this one has ended meanwhile
            if pages:
                self.asked, self.rss_bytes = thread, pages * PAGE_BYTES
                return


def threads(pid: int) -> list[int]:
    """The threads that it has now, including the first even if that has ended; none: it is gone."""
    try:
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return []


def _read(path: str) -> bytes:
    """The whole file: the kernel hands out at most a page or so for one read."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    text = b""
    try:
        while piece := os.read(descriptor, 65536):
            text += piece
    finally:
        os.close(descriptor)
    return text


def stat(pid: int) -> Process | None:
    """The process as it is now, or None when there is none."""
    try:
        line = _read(f"/proc/{pid}/stat")
        return Process(pid, line[line.rindex(b")") + 2 :].split())
    except (OSError, ValueError, IndexError):
        return None  # gone, maybe between two reads


def is_stopped(pid: int) -> bool:
    """Whether somebody has stopped it, or traces it; not when it is gone."""
    return _state(pid) in (b"T", b"t")


def _state(pid: int) -> bytes:
    """The letter of its state; empty: it is gone."""
    try:
        line = _read(f"/proc/{pid}/stat")
    except OSError:
        return b""
    return line[line.rindex(b")") + 2 :][:1]


def children(pid: int) -> list[int]:
    """Direct children, of every thread of the process."""
    found: list[int] = []
    for thread in threads(pid):
        try:
            found += map(int, _read(f"/proc/{pid}/task/{thread}/children").split())
        except OSError:
            continue
    return found


def descendants(root: int, most: float = float("inf")) -> list[Process]:
    """Every process below ``root`` that can be seen in one pass; a busy tree needs several passes.

    ``most``: stop once there are more than this many. A tree that grows faster than a busy machine lets us
    read is never read to its end.
    """
    return list(walk(root, most, []))


def walk(root: int, most: float, lost: list[int]) -> Iterator[Process]:
    """The same, each as soon as it is found. ``lost`` gets those that ended before they were read: they may have left
    children."""
    seen: set[int] = set()
    waiting = children(root)
    while waiting and len(seen) <= most:
        pid = waiting.pop()
        process = None if pid in seen else stat(pid)
        if process is not None:
            seen.add(pid)
            yield process
            waiting += children(pid)
        elif pid not in seen:
            lost.append(pid)


def usage(pid: int) -> tuple[int, ...]:
    """(user and system time in µs, largest memory in bytes, switches of both kinds) of a process that still lives, with
    the time of children that it has waited for; empty: it is gone."""
    import time

    try:
        line, status = _read(f"/proc/{pid}/stat"), _read(f"/proc/{pid}/status")
        own_us = time.clock_gettime_ns((~pid << 3) | _CLOCK_OF_PROCESS) // 1000
        _, system, child_user, child_system = _ticks_us(line[line.rindex(b")") + 2 :].split())
    except (OSError, ValueError, IndexError):
        return ()
    system = min(system, own_us)
    names = (b"\nvoluntary_ctxt_switches:", b"\nnonvoluntary_ctxt_switches:")
    switches = (_number_after(status, name) for name in names)
    return (own_us - system + child_user, system + child_system, _number_after(status, b"\nVmHWM:") * 1024, *switches)


def _ticks_us(fields: list[bytes]) -> list[int]:
    return [int(ticks) * 1_000_000 // TICKS_PER_S for ticks in fields[_UTIME : _UTIME + 4]]


def programs_below(root: int) -> list[tuple[int, str]]:
    """(pid, command line) of what runs below a leader, but for its own forks and those that call themselves init.

    The command lines are the programs' own word: they can rewrite them.
    """
    from ringfence.kernel.proc.processes import OWN_NAME

    ours = ("", OWN_NAME, _command_line(root))
    lines = ((process.pid, _command_line(process.asked)) for process in descendants(root))
    return [(pid, line) for pid, line in lines if line not in ours]


def _command_line(pid: int) -> str:
    try:
        return _read(f"/proc/{pid}/cmdline").rstrip(b"\0").replace(b"\0", b" ").decode("utf-8", "replace")
    except OSError:
        return ""


def proportional_bytes(process: Process) -> int:
    """Memory with shared pages divided among their sharers, without pages of files, which the kernel can take back.
    With them it would depend on the moment whether a process that is refused more at its limit is ended for its
    libraries. Slow, so asked only in doubt."""
    try:
        text = _read(f"/proc/{process.asked}/smaps_rollup")
    except ProcessLookupError:
        return 0  # it has ended, and its memory with it
    except OSError:
        return process.rss_bytes  # it may have made itself unreadable to look small
    if b"Pss_Anon:" not in text:  # before Linux 5.9
        return _number_after(text, b"Pss:") * 1024 or process.rss_bytes
    return sum(_number_after(text, name) for name in (b"Pss_Anon:", b"Pss_Shmem:")) * 1024


def unshared_bytes(process: Process) -> int:
    """The same with shared pages counted each time that they are mapped. Quick, however often that is."""
    try:
        text = _read(f"/proc/{process.asked}/status")
    except ProcessLookupError:
        return 0
    except OSError:
        return process.rss_bytes
    if b"RssAnon:" not in text:
        return process.rss_bytes
    return sum(_number_after(text, name) for name in (b"\nRssAnon:", b"\nRssShmem:")) * 1024


def has_its_parents_memory(process: Process, tree: Collection[int]) -> bool:
    """Whether its memory is that of its parent, which is one of these: between vfork and exec. Asked only in doubt."""
    if process.parent not in tree:
        return False
    return _share(_KCMP_VM, process.asked, process.parent)


def tables_of_descriptors(pid: int) -> list[int]:
    """A thread for each: threads share one unless they part. None: it is gone. A program with many threads and
    descriptors would else take long to look at."""
    found: list[int] = []
    for thread in threads(pid):
        if not found or not _share(_KCMP_FILES, found[-1], thread):
            found.append(thread)
    return found


def _share(kind: int, first: int, second: int) -> bool:
    from ringfence.kernel import syscalls

    try:
        return syscalls.call("kcmp", first, second, kind, 0, 0) == 0
    except OSError:
        return False  # one has ended, or this kernel does not tell


def written_bytes(asked: int) -> int | None:
    """Bytes that the process of this thread caused to be written to storage; None: this user can't look into it, which
    the process may choose."""
    try:
        return _number_after(_read(f"/proc/{asked}/io"), b"\nwrite_bytes:")
    except PermissionError:
        return None
    except OSError:
        return 0


def written_chars(pid: int) -> int:
    """Bytes that the process passed to write and its like; 0 where this user can't look into it."""
    try:
        return _number_after(_read(f"/proc/{pid}/io"), b"\nwchar:")
    except OSError:
        return 0


def operations(asked: int) -> int | None:
    """Calls of the read and the write family, by the process of this thread and by all children that it has waited for;
    0: it is gone, None: this user can't look into it."""
    try:
        counted = operations_in(_read(f"/proc/{asked}/io"))
    except PermissionError:
        return None
    except OSError:
        return 0
    # While a process is being collected its count can still be read, but its parent has it already.
    return counted if _state(asked) not in (b"", b"X") else 0


def operations_in(text: bytes) -> int:
    """The calls counted in the text of an io file."""
    return _number_after(text, b"\nsyscr:") + _number_after(text, b"\nsyscw:")


def operations_waited_for(own_io: int, thread_io: int) -> int:
    """Calls of all children that the calling process has waited for; never more. Taken from its own two files, since
    what it does itself is in both."""
    for _ in range(_TRIES):
        before, whole, after = (operations_in(os.pread(file, 4096, 0)) for file in (thread_io, own_io, thread_io))
        if after == before + 2:  # nothing but these reads, e.g. no handler of a signal
            return whole - before - 1
    return max(0, whole - after)


def open_thread_io() -> int:
    """Open the count of the calling thread alone."""
    try:
        return os.open("/proc/thread-self/io", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1


def own_written_chars(descriptor: int) -> int:
    """Return what this process has written, and every child that it has waited for."""
    try:
        return _number_after(os.pread(descriptor, 4096, 0), b"\nwchar:")
    except OSError:
        return 0


def open_own_io() -> int:
    """Open the calling process's own count, which includes that of every child it has waited for."""
    try:
        return os.open("/proc/self/io", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1


def own_written_bytes(descriptor: int) -> int:
    try:
        return _number_after(os.pread(descriptor, 4096, 0), b"\nwrite_bytes:")
    except OSError:
        return 0


_NO_SOCKETS = b"sockets: used 0\n"


def open_socket_count(pid: int) -> int:
    """Open the count of all sockets in the network namespace of a process, of whatever family; it can be read also when
    nobody is in there any more. -1: the process is gone."""
    try:
        return os.open(f"/proc/{pid}/net/sockstat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1


def has_sockets(count: int) -> bool:
    return not os.pread(count, 64, 0).startswith(_NO_SOCKETS)


def sees_sockets() -> bool:
    """Whether there are any in the calling process's network namespace, or nobody can tell."""
    count = open_socket_count(os.getpid())
    try:
        return count < 0 or has_sockets(count)
    finally:
        if count >= 0:
            os.close(count)


def oom_kills() -> int:
    """How often the kernel's out-of-memory killer has struck since boot, anywhere on this host."""
    try:
        return _number_after(_read("/proc/vmstat"), b"\noom_kill ")
    except OSError:
        return 0


def task_count() -> int:
    """Tasks on the whole host: a cheap upper bound of those of this user."""
    try:
        return int(_read("/proc/loadavg").split()[3].split(b"/")[1])
    except (OSError, ValueError, IndexError):
        return 0


def _number_after(text: bytes, name: bytes) -> int:
    place = text.find(name)
    return int(text[place + len(name) :].split(None, 1)[0]) if place >= 0 else 0


def kill(process: Process, number: int) -> None:
    """Signal exactly this process: never another one that was given its pid meanwhile."""

    def is_the_same() -> bool:
        now = stat(process.pid)
        return now is not None and now.start == process.start

    signal_if(process.pid, number, is_the_same)


def signal_if(pid: int, number: int, is_the_same: Callable[[], bool]) -> None:
    """Signal the process with this pid. Whether it is the same is asked when no other can get that pid any more."""
    from signal import pidfd_send_signal

    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return
    try:
        if is_the_same():
            pidfd_send_signal(descriptor, number)
    except OSError:
        pass  # gone, or not ours to signal (it changed its identity): the caller looks again
    finally:
        os.close(descriptor)
