"""The caller's side of the spawner: one per process, started on first use, restarted when it dies.

Part of: caller, as its side of the spawner

Forking a process that has threads is unsafe and copies its secrets, so a library caller never forks:
it sends descriptors to a small process that does. The command line is single-threaded and its own
process; it forks that small process at once and saves the start of a second interpreter.
"""

from __future__ import annotations

import os
import sys
import time
from _collections_abc import Callable
from _thread import allocate_lock

from ringfence.errors import SetupError, is_of_a_call
from ringfence.transport import passing

_BOOT = (
    "import sys; sys.path.insert(0, {path!r}); from ringfence.roles.spawner_main import main; "
    "del sys.path[0]; main({door})"
)
_ANSWER_WAIT_S, _LOOK_MS = 60.0, 1000

_lock = allocate_lock()
_current: Spawner | None = None
_before_shutdown: list[Callable[[], None]] = []


class Spawner:
    """A running spawner process and our end of the channel to it."""

    def __init__(self, door: int, pid: int) -> None:
        self.owner_pid = os.getpid()
        self.door = door
        self.pid = pid

    @classmethod
    def started(cls) -> Spawner:
        """Start it with an interpreter of its own."""
        from ringfence.transport import interpreter

        boot = _BOOT
        return cls(*interpreter.started("start the spawner", lambda door: boot.format(path=_import_root(), door=door)))

    @classmethod
    def forked(cls, *, for_run: bool = False) -> Spawner:
        """Fork it from this process, which must have one thread."""
        ours, theirs = passing.channel()
        try:
            pid = os.fork()
        except OSError as error:
            os.close(ours)
            os.close(theirs)
            raise SetupError("fork the spawner", str(error)) from error
        if pid == 0:
            try:
                os.close(ours)
                # Only here: the caller itself has no use for what a fork server loads.
                from ringfence.roles import spawner_main

                spawner_main.main(theirs, for_run=for_run)
            finally:
                os._exit(0)
        os.close(theirs)
        return cls(ours, pid)

    def usable(self) -> bool:
        return self.owner_pid == os.getpid() and not self._ended()

    def _ended(self) -> bool:
        try:
            return os.waitpid(self.pid, os.WNOHANG)[0] != 0
        except ChildProcessError:
            return True

    def send(self, kind: bytes, descriptors: list[int]) -> None:
        passing.send(self.door, kind, descriptors)

    def close(self) -> None:
        """Close the door and wait until the spawner, and with it every leader, has ended."""
        os.close(self.door)
        try:
            os.waitpid(self.pid, 0)
        except ChildProcessError:
            pass


def _import_root() -> str:
    return os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def fork_early(*, for_run: bool = False) -> None:
    """For the command line, a process that is ours alone and has one thread: fork the spawner now.

    It gets ready on another core while this process still loads the rest of the program. ``for_run``: for a sandbox of
    one job; else it loads what a sandbox takes when one is asked for.
    """
    global _current
    _load_what_both_use(for_run)
    _current = Spawner.forked(for_run=for_run)


def _load_what_both_use(for_run: bool) -> None:
    """Before the fork, so that it is loaded once."""
    from ringfence.roles import standby  # noqa: F401

    if for_run and sys.platform == "linux":
        from ringfence.kernel import landlock, syscalls  # noqa: F401
        from ringfence.kernel.calls import native  # noqa: F401
        from ringfence.kernel.cgroup import tree  # noqa: F401
        from ringfence.kernel.mount import namespaces, privileges, submounts  # noqa: F401
        from ringfence.kernel.proc import procfs  # noqa: F401
        from ringfence.kernel.seccomp import compile as seccomp  # noqa: F401
        from ringfence.sandbox import hidden, limits_seen  # noqa: F401
        from ringfence.steps import state  # noqa: F401

        syscalls.bind()


def fork_leader(descriptors: list[int], kind: bytes = passing.LEADER) -> None:
    """Have a leader forked that owns copies of ``descriptors``."""
    send(kind, descriptors)


def send(kind: bytes, descriptors: list[int]) -> None:
    with _lock:
        try:
            _running().send(kind, descriptors)
        except OSError as broken:
            if not is_of_a_call(broken):
                raise
            _forget()
            try:
                _running().send(kind, descriptors)
            except OSError as error:
                if not is_of_a_call(error):
                    raise
                raise SetupError("reach the spawner", str(error)) from error


def pid() -> int:
    """The pid of this process's spawner; 0: it has none."""
    return 0 if _current is None else _current.pid


def give_up_on_spawner(which: int) -> None:
    """End a spawner that does not answer because somebody has stopped it. What it has forked lives on."""
    with _lock:
        if _current is not None and _current.pid == which and _current.usable():
            os.kill(which, 9)
            os.waitpid(which, 0)  # else the next message might still go to it


def give_up(reports: int) -> None:
    """End the one leader that reports through this pipe; the spawner only when it does not answer."""
    with _lock:
        if _current is None or not _current.usable():
            return
        asked, door = _current.pid, os.dup(_current.door)
    try:
        answered = end_leader(door, asked, reports)
    finally:
        os.close(door)
    if not answered:
        give_up_on_spawner(asked)


def end_leader(door: int, server: int, reports: int) -> bool:
    """Have the fork server behind the door kill a leader; False: it does not answer.

    It takes messages in turn: once it has answered, that leader was forked and killed, or could not be forked.
    """
    answer, theirs = os.pipe()
    try:
        # Only if there is room: sending to a process that is stopped would block for ever.
        if not _comes(door, "POLLOUT", server):
            return False
        passing.send(door, passing.END, [reports, theirs])
        os.close(theirs)
        theirs = -1
        return _comes(answer, "POLLIN", server)
    except OSError:
        return True  # it has ended, and with it whatever waited for its turn
    finally:
        for descriptor in (answer, theirs):
            if descriptor >= 0:
                os.close(descriptor)


def _comes(descriptor: int, event: str, server: int) -> bool:
    """Whether it answers while the fork server is at work; that may have much to do on a slow machine."""
    import select

    poller = select.poll()
    poller.register(descriptor, getattr(select, event))
    give_up = time.monotonic() + _ANSWER_WAIT_S
    while not is_stopped(server) and time.monotonic() < give_up:
        if poller.poll(_LOOK_MS):
            return True
    return False


def is_stopped(process: int) -> bool:
    """Whether somebody has stopped it; known on Linux only."""
    if sys.platform != "linux":
        return False
    from ringfence.kernel.proc import procfs

    return procfs.is_stopped(process)


def _running() -> Spawner:
    global _current
    if _current is None or not _current.usable():
        _forget()
        _current = Spawner.started()
    return _current


def _forget() -> None:
    global _current
    if _current is not None:
        os.close(_current.door)
    _current = None


def before_shutdown(close: Callable[[], None]) -> None:
    """What else must be closed, since a spawner waits until everything it has forked has ended."""
    _before_shutdown.append(close)


def shutdown() -> None:
    """End the spawner of this process, once its last leader has ended; the next job starts a new one."""
    global _current
    for close in tuple(_before_shutdown):
        close()
    with _lock:
        ending, _current = _current, None
    if ending is not None:
        ending.close()


def _after_fork_in_child() -> None:
    """A forked copy of the caller has no spawner: the lock may be held by a thread that is not here."""
    global _lock
    _lock = allocate_lock()
    _forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
