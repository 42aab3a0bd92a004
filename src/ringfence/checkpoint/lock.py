"""One process at a time: a file that is held locked, with the holder's pid in it.

The kernel lets go of it when the process ends, however it ends. A fork does not keep it. If a holder is killed, its
running processes end a moment later, and the next holder waits for that. Not for threads: threads that share a
transaction must take turns themselves.
"""

from __future__ import annotations

import os
import stat
import time

from ringfence.errors import BusyError, CheckpointError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.checkpoint.tree import Tree

_FLAGS = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)
_PLACE = 1 << 30
"""On Windows a locked byte can't be read, so we lock one far behind the pid."""
_ENDING_S, _LOOK_S = 15.0, 0.01
"""Longer than leaders try to end a tree."""
_TURN_S = 30.0
"""Longer than commits take."""
_HEX, _DIGITS = b"0123456789abcdef", 16
"""Length of the name of a box's private directory."""
_held: set[Lock] = set()


class Lock:
    """Held from the moment it is made; BusyError where somebody else holds it."""

    def __init__(self, path: str, name: str, **where: int) -> None:
        """``name``: in the directory that ``where`` names, or the path itself."""
        try:
            self._descriptor = os.open(name, _FLAGS, 0o600, **where)
        except OSError as error:
            raise CheckpointError(f"{path}: {error.strerror}") from error
        taken = _take(self._descriptor)
        pid, place = self._read()
        if not taken:
            os.close(self._descriptor)
            named = f"process {pid}" if pid else "another process"
            raise BusyError(f"{os.path.dirname(path)} is in use by {named}", pid=pid, hint="wait until it has ended")
        _held.add(self)
        self._folder, self._boxes = os.path.dirname(path), set[bytes]()
        _await_end(place)
        try:
            self._write(b"%d\n" % os.getpid())
        except OSError:
            pass  # the disk is full, and a process that makes room by removing this needs no pid in it

    def note(self, place: bytes) -> None:
        """A box has a private directory there, which is gone once all its processes have ended."""
        self._boxes.add(place)
        try:
            self._write(b"%d\n%s" % (os.getpid(), place))
        except OSError as error:
            raise CheckpointError(f"the lock can't be written: {error.strerror}") from error

    def forget(self, place: bytes) -> None:
        """The processes of that box have ended, and its directory goes later."""
        self._boxes.discard(place)

    def refuse_boxes(self) -> None:
        """BusyError while a box is open: what its processes write after this would be lost."""
        self._boxes = {*filter(is_private_folder, self._boxes)}
        if self._boxes:
            raise BusyError(f"a box is open over {self._folder}", pid=os.getpid(),
                            hint="close it first; the box's own commit() commits while it is open")  # fmt: skip

    def _write(self, content: bytes) -> None:
        os.ftruncate(self._descriptor, 0)
        os.lseek(self._descriptor, 0, os.SEEK_SET)
        os.write(self._descriptor, content)

    def _read(self) -> tuple[int, bytes]:
        """Whoever owns the directory may have put anything in its place: we must not wait on a pipe."""
        if not stat.S_ISREG(os.fstat(self._descriptor).st_mode):
            os.close(self._descriptor)
            raise CheckpointError("the lock of the transaction is not a file")
        pid, _, place = os.read(self._descriptor, 8192).partition(b"\n")
        return int(pid) if pid.isdigit() and len(pid) < 12 else 0, place

    @property
    def is_held(self) -> bool:
        return self in _held

    def release(self) -> None:
        if self.is_held:
            self._write(b"")
            _held.discard(self)
            let_go(self._descriptor)  # also for a child that was just forked and still has a copy
            os.close(self._descriptor)

    def leave(self) -> None:
        """In a forked child: the lock stays the parent's, and must not live as long as the child."""
        os.close(self._descriptor)


def hold(folder: Tree) -> Lock:
    """The lock of a transaction's directory."""
    name, where = folder.at("lock")
    return Lock(f"{folder.path}/lock", name, **where)


def await_turn(descriptor: int, path: str) -> None:
    """Lock an open directory; where somebody else has it, wait for a while."""
    end = time.monotonic() + _TURN_S
    while not _take_if_possible(descriptor):
        if time.monotonic() > end:
            raise BusyError(f"somebody else commits into {path}, or holds a lock on it", hint="try again later")
        time.sleep(_LOOK_S)


def _take_if_possible(descriptor: int) -> bool:
    try:
        return _take(descriptor)
    except OSError:
        return True  # a file system that has no locks on directories


def _await_end(place: bytes) -> None:
    """A killed holder left its directory to the process that ends the rest. If the directory is gone, so is the
    rest."""
    end = time.monotonic() + _ENDING_S
    while is_private_folder(place) and time.monotonic() < end:
        time.sleep(_LOOK_S)


def is_private_folder(place: bytes) -> bool:
    """Whether it is there and can be a box's directory: we do not wait for one that can't be, e.g. ``/``."""
    digits = os.path.basename(place).rpartition(b"-")[2]  # a prefix stands before them
    if len(digits) != _DIGITS or digits.strip(_HEX):
        return False
    try:
        status = os.lstat(place)
    except (OSError, ValueError):
        return False
    return stat.S_ISDIR(status.st_mode) and (not hasattr(os, "geteuid") or status.st_uid == os.geteuid())


def _leave_all() -> None:
    for lock in _held:
        lock.leave()
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_all)


def _take(descriptor: int) -> bool:
    try:
        import fcntl
    except ImportError:
        return _take_on_windows(descriptor)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def let_go(descriptor: int) -> None:
    try:
        import fcntl
    except ImportError:
        return  # Windows has no fork, and unlocks when it is closed
    try:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    except OSError:
        pass  # there was no lock to be had either


def _take_on_windows(descriptor: int) -> bool:
    import msvcrt

    os.lseek(descriptor, _PLACE, os.SEEK_SET)
    try:
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
    except OSError:
        return False
    finally:
        os.lseek(descriptor, 0, os.SEEK_SET)
    return True
