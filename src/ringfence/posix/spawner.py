"""The caller's side of the spawner: one per process, started on first use, restarted when it dies.

Forking a process that has threads is unsafe and copies its secrets, so a library caller never forks:
it sends descriptors to a small process that does. The command line is single-threaded and its own
process; it forks in place and saves the start of a second interpreter.
"""

from __future__ import annotations

import os
import sys
import time
from _thread import allocate_lock

from ringfence.errors import SetupError
from ringfence.posix import forker

_BOOT = (
    "import sys; sys.path.insert(0, {path!r}); from ringfence.posix.forker import main; "
    "del sys.path[0]; main({door})"
)
_BUSY_WAIT_S = 10.0

_lock = allocate_lock()
_current: Spawner | None = None
_in_place = False


class Leader:
    """A leader that was forked: ``pid`` is ours to collect only if it was forked in place."""

    def __init__(self, pid: int = 0) -> None:
        self.pid = pid

    def collect(self) -> None:
        if self.pid:
            os.waitpid(self.pid, 0)
            self.pid = 0


class Spawner:
    """A running spawner process and the socket to it."""

    def __init__(self) -> None:
        import socket
        import subprocess

        kind = socket.SOCK_SEQPACKET if sys.platform == "linux" else socket.SOCK_STREAM
        self.owner_pid = os.getpid()
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, kind)
        code = _BOOT.format(path=_import_root(), door=theirs.fileno())
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", code],
                pass_fds=(theirs.fileno(),), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL, env={}, cwd="/",
            )  # fmt: skip
        except OSError as error:
            raise SetupError("start the spawner", str(error)) from error
        finally:
            theirs.close()

    def usable(self) -> bool:
        return self.owner_pid == os.getpid() and self.process.poll() is None

    def send(self, descriptors: list[int]) -> None:
        import errno
        import socket

        give_up = time.monotonic() + _BUSY_WAIT_S
        while True:
            try:
                socket.send_fds(self.socket, [b"f"], descriptors)
                return
            except OSError as error:
                # Too many descriptors under way at once: the kernel's bound per user, a matter of time.
                if error.errno != errno.ETOOMANYREFS or time.monotonic() > give_up:
                    raise
                time.sleep(0.002)

    def close(self) -> None:
        self.socket.close()
        if self.owner_pid == os.getpid():
            self.process.wait()


def _import_root() -> str:
    return os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def fork_in_place() -> None:
    """For a process that is ours alone and has one thread: leaders are forked from it directly."""
    global _in_place
    _in_place = True


def fork_leader(descriptors: list[int]) -> Leader:
    """Have a leader forked that owns copies of ``descriptors``."""
    if _in_place:
        return Leader(forker.fork_leader(descriptors))
    with _lock:
        try:
            _running().send(descriptors)
        except OSError:
            _forget()
            try:
                _running().send(descriptors)
            except OSError as error:
                raise SetupError("reach the spawner", str(error)) from error
    return Leader()


def _running() -> Spawner:
    global _current
    if _current is None or not _current.usable():
        _forget()
        _current = Spawner()
    return _current


def _forget() -> None:
    global _current
    if _current is not None:
        _current.socket.close()
    _current = None


def shutdown() -> None:
    """End the spawner of this process; the next job starts a new one."""
    with _lock:
        if _current is not None:
            _current.close()
        _forget()


def _after_fork_in_child() -> None:
    """A forked copy of the caller has no spawner: the lock may be held by a thread that is not here."""
    global _lock, _current
    _lock = allocate_lock()
    if _current is not None:
        _current.socket.close()
    _current = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
