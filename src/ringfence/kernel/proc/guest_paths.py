"""Where a path leads inside a sandbox, found from outside: as its kernel would resolve it, never on the host.

Everything starts at a descriptor of the sandbox's root. What is met on the way is looked at as a name only
(O_PATH, readlink): no FIFO, device or socket is opened, and nothing is read. Deliberately enforces nothing: the
sandbox can change the tree at any moment, so the answer is of the moment at which it was asked.
"""

from __future__ import annotations

import errno
import os
from _collections_abc import Callable
from struct import pack

from ringfence.kernel import syscalls
from ringfence.model.memo import lru_cache
from ringfence.model.record import record

MAX_LINKS = 40  # as the kernel
MAX_STEPS = 400
_RESOLVE_NO_MAGICLINKS, _RESOLVE_NO_SYMLINKS, _RESOLVE_IN_ROOT = 0x02, 0x04, 0x10
_O_PATH = getattr(os, "O_PATH", 0) | getattr(os, "O_CLOEXEC", 0)
_O_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)
_SELF, _THREAD_SELF = b"self", b"thread-self"

Myself = Callable[[], tuple[int, int]]
"""(process, thread) of the requester, in the numbers of the sandbox's own /proc."""


@record
class PathEnd:
    """The end of a way."""

    path: bytes
    """Absolute, without links; beyond the first absent name as it was asked."""
    there: bool
    steady: bool
    """The sandbox can't make the path lead elsewhere: every directory that was looked into is read-only."""


def found(root: int, path: bytes, follow: bool, device: int) -> bytes | None:
    """Where an existing path leads, by the kernel itself; empty: not to this device, which is cheaper to tell. None: it
    does not exist, or only ``walk`` can tell."""
    place = _openat2()(root, path, follow)
    if place < 0:
        return None
    try:
        return os.readlink(b"/proc/self/fd/%d" % place) if os.fstat(place).st_dev == device else b""
    except OSError:
        return None
    finally:
        os.close(place)


def proc_device(root: int) -> int:
    """The number of the sandbox's own /proc; -1: it can't be told, for a veil over the root answers nobody outside."""
    try:
        return os.stat(b"proc", dir_fd=root, follow_symlinks=False).st_dev
    except OSError:
        return -1


def opened(root: int, path: bytes) -> int:
    """What a path leads to below a root, as a descriptor of it alone; less than 0: nothing that can be reached."""
    return _openat2()(root, path, True)


def is_there(root: int, path: bytes) -> bool:
    """Whether a path leads to something below a root; a link at its end counts, wherever it leads."""
    place = _openat2()(root, path, False)
    if place >= 0:
        os.close(place)
    return place >= 0


def beside(root: int, path: bytes, follow: bool) -> bytes | None:
    """Where an absent name in an existing directory would be, by the kernel itself; None: only ``walk`` can tell."""
    folder, _, name = path.rpartition(b"/")
    place = _openat2()(root, folder or b"/", True) if name not in (b"", b".", b"..") else -1
    if place < 0:
        return None
    try:
        if follow and _is_link(name, place):
            return None
        # Told as the sandbox sees it: the kernel goes up to the root of the mounts that the directory lies in.
        return os.readlink(b"/proc/self/fd/%d" % place).rstrip(b"/") + b"/" + name
    except OSError:
        return None
    finally:
        os.close(place)


def join(folder: bytes, path: bytes) -> bytes:
    """A path that is relative to a directory. The directory's name is the kernel's own and has no links in it, so «..»
    is what stands before; that also holds for one that was removed, whose name may be another's by now."""
    names = _names(path)
    while names[-1:] == [b".."]:
        names.pop()
        folder = folder.rpartition(b"/")[0]
    rest = b"/".join(reversed(names)) + (b"/" if path.endswith((b"/", b"/.")) else b"")
    return folder.rstrip(b"/") + b"/" + rest


def _is_link(name: bytes, folder: int) -> bool:
    try:
        return bool(os.readlink(name, dir_fd=folder))
    except OSError:
        return False


def walk(root: int, path: bytes, follow: bool, myself: Myself) -> PathEnd | None:
    """Name by name, through links of every kind, /proc/self and /proc/<pid>/root too. None: too many links.

    OSError with E2BIG: too many names, which would keep us busy for longer than a guest may.
    """
    way = _Way(root, path, follow)
    try:
        for _ in range(MAX_STEPS):
            if not way.names:
                return way.end(there=True)
            if not way.step(myself):
                return None if way.links > MAX_LINKS else way.end(there=False)
        raise OSError(errno.E2BIG, f"more than {MAX_STEPS} names on the way")
    finally:
        way.close()


def reach(root: int, path: bytes, myself: Myself) -> int:
    """A descriptor of what a path leads to, as a name only (O_PATH); -1: nothing that ``walk`` could find."""
    way = _Way(root, path, True)
    try:
        for _ in range(MAX_STEPS):
            if not way.names:
                return os.dup(way.here)
            if len(way.names) == 1 and way.is_in_proc():  # a file without a name has one there
                return os.open(way.names[0], _O_PATH, dir_fd=way.here)
            if not way.step(myself):
                break
    except OSError:
        pass
    finally:
        way.close()
    return -1


class _Way:
    """How far a walk has come: the directory it stands in, and the names that lie ahead, the next one last."""

    def __init__(self, root: int, path: bytes, follow: bool) -> None:
        self.root = root
        self.names = _names(path)
        self.follow = follow or path.endswith((b"/", b"/."))
        self.done: list[bytes] = []
        self.here = os.dup(root)
        self.links = 0
        self.steady = True

    def close(self) -> None:
        os.close(self.here)

    def step(self, myself: Myself) -> bool:
        """Take the next name. False: there is no going on."""
        name = self.names.pop()
        self.steady = self.steady and _read_only(self.here)
        if name == b"..":
            del self.done[-1:]
            return self._stand_in(self.done)
        target = self._target(name, myself) if self.names or self.follow else b""
        if target:
            return self._follow(target)
        self.done.append(name)
        return self._enter(name)

    def end(self, *, there: bool) -> PathEnd:
        rest = [name for name in reversed(self.names) if name != b".."]
        return PathEnd(path=b"/" + b"/".join(self.done + rest), there=there, steady=self.steady)

    def _follow(self, target: bytes) -> bool:
        self.links += 1
        if target.startswith(b"/") and self.is_in_proc():  # the kernel's own name of a directory, see ``join``
            while self.names[-1:] == [b".."]:
                self.names.pop()
                target = target.rpartition(b"/")[0] or b"/"
        self.names += _names(target)
        if self.links > MAX_LINKS:
            return False
        if target.startswith(b"/"):
            self.done = []
            return self._stand_in([])
        return True

    def is_in_proc(self) -> bool:
        try:
            return os.fstat(self.here).st_dev == proc_device(self.root)
        except OSError:
            return False

    def _target(self, name: bytes, myself: Myself) -> bytes:
        """Where the name points, nothing if it is no link."""
        # To us the sandbox's /proc has no «self»: it would be this process, which is not in there.
        if self.done == [b"proc"] and name in (_SELF, _THREAD_SELF):
            process, thread = myself()
            return b"%d" % process if name == _SELF else b"%d/task/%d" % (process, thread)
        try:
            return os.readlink(name, dir_fd=self.here)
        except OSError:
            return b""

    def _enter(self, name: bytes) -> bool:
        try:
            deeper = os.open(name, _O_PATH | _O_NOFOLLOW, dir_fd=self.here)
        except OSError:
            return False
        os.close(self.here)
        self.here = deeper
        return True

    def _stand_in(self, names: list[bytes]) -> bool:
        """By the names that were resolved already: a link that stands there now is a race, and leads nowhere."""
        how = pack("QQQ", _O_PATH, 0, _RESOLVE_IN_ROOT | _RESOLVE_NO_SYMLINKS | _RESOLVE_NO_MAGICLINKS)
        try:
            folder = syscalls.call("openat2", self.root, b"/".join(names) or b".", how, len(how))
        except OSError:
            return False
        os.close(self.here)
        self.here = folder
        return True


def _names(path: bytes) -> list[bytes]:
    """The next one last."""
    return [name for name in reversed(path.split(b"/")) if name not in (b"", b".")]


def _read_only(place: int) -> bool:
    try:
        return bool(os.fstatvfs(place).f_flag & os.ST_RDONLY)
    except OSError:
        return False


_HOW_BYTES = 24


@lru_cache(maxsize=1)
def _openat2() -> Callable[[int, bytes, bool], int]:
    """openat2 below a root, with its arguments made once; -1 for whatever it refuses."""
    call = syscalls.entrance(syscalls.libc())
    number = syscalls.number("openat2")
    follow_last = pack("QQQ", _O_PATH, 0, _RESOLVE_IN_ROOT)
    stop_at_last = pack("QQQ", _O_PATH | _O_NOFOLLOW, 0, _RESOLVE_IN_ROOT)

    def open_now(root: int, path: bytes, follow: bool) -> int:
        return call(number, root, path, follow_last if follow else stop_at_last, _HOW_BYTES, None, None)

    return open_now


def inside_numbers(thread: int) -> tuple[int, int]:
    """``Myself`` of a thread: its numbers in the innermost namespace, which is the sandbox's; zeros if it is gone."""
    try:
        with open(f"/proc/{thread}/status", "rb") as file:
            rows = dict(line.split(b":", 1) for line in file if line.startswith((b"NStgid:", b"NSpid:")))
        return int(rows[b"NStgid"].split()[-1]), int(rows[b"NSpid"].split()[-1])
    except (OSError, KeyError, ValueError, IndexError):
        return 0, 0
