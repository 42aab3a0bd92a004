"""Hidden paths watched by open notification: each call that names a file is looked at before it goes on.

The fallback of the recorder where no tripwire can be mounted. Hidden paths are absent by construction; this only
finds out who asked for them. It decides nothing, opens nothing but names, and waits for nobody. What it reads is
what stood in the guest's memory at that moment: another thread may change it before the kernel reads it
(seccomp_unotify(2)), which is what ``CAVEAT`` says in the recorder's health.
"""

from __future__ import annotations

import errno
import os
import stat
from _collections_abc import Iterable
from posixpath import dirname, normpath

from ringfence.kernel.proc import first_files, guest_paths, memory
from ringfence.kernel.proc.guest_paths import PathEnd
from ringfence.kernel.seccomp import interpreters
from ringfence.kernel.seccomp.notify import Notification
from ringfence.kernel.seccomp.watched_calls import CWD, WATCHED, Watched
from ringfence.model.record import record

CAVEAT = (
    "paths were read before the kernel read them: a guest that changes a path, a link, a directory or the first bytes "
    "of a program at that moment can keep an attempt out of the record or put another path into it; sendmsg to a "
    "hidden socket is not watched"
)
_AT_FDCWD = -100
_AF_UNIX = 1
_MOST_REMEMBERED = 20_000
_LONGEST_REMEMBERED_BYTES = 256
_FIRST, _FIRST_FILES = os.fsencode(first_files.FOLDER), frozenset(map(os.fsencode, first_files.FILES))


@record
class Sighting:
    """A hidden path that somebody asked for."""

    asked: bytes
    resolved: bytes
    root: bytes
    """The hidden path that it is at or below, or that of pid 1."""
    absent: bool
    """False: the guest has made something of its own at that place, or it is pid 1's."""


@record
class Look:
    """What came of looking at one call."""

    sightings: tuple[Sighting, ...] = ()
    problem: str = ""
    """Why there may be one more that was not seen; empty: there is none."""


class Watcher:
    """Knows the hidden paths of one sandbox, and its root once somebody asked for something."""

    def __init__(self, hidden: Iterable[str], private: Iterable[str] = ()) -> None:
        """``private``: those of them where the guest may make something of its own, which is no attempt."""
        self._hidden = frozenset(map(os.fsencode, hidden))
        self._private = frozenset(map(os.fsencode, private))
        self._problem = ""
        self._root = self._proc_device = -1
        # Paths that can't lead to anything hidden, ever; by whether a link at the end is followed.
        self._harmless: tuple[set[bytes], set[bytes]] = (set(), set())
        # Programs that the kernel opens nothing hidden for, ever.
        self._harmless_programs: set[bytes] = set()
        # Directories of which that can't be said, since the guest may change what lies on the way.
        self._changing: set[bytes] = set()

    def close(self) -> None:
        if self._root >= 0:
            os.close(self._root)
            self._root = -1

    def look(self, told: Notification, call: str) -> Look:
        """The hidden paths that a waiting call names. Only true if the call still waits afterwards."""
        watched = WATCHED[call]
        follow = watched.follows(told.args)
        self._problem = ""
        found = [self._look_at(told, watched, place, follow) for place in watched.places]
        opens = _opens(told, watched)
        writes = watched.may_write(told.args)
        sightings = (each for each in found if each is not None and (opens or each.root != _FIRST)
                     and not self._is_own(each, writes))  # fmt: skip
        return Look(sightings=tuple(sightings), problem=self._problem)

    def _is_own(self, seen: Sighting, writes: bool) -> bool:
        """Whether the guest has made something of its own at the hidden path, or is about to. Of one below another the
        outer one counts."""
        if seen.root not in self._private:
            return False
        root = seen.root
        while outer := self._root_of(dirname(root)):
            root = outer
        return (writes and seen.resolved == root) or guest_paths.is_there(self._root, root)

    def _look_at(
        self, told: Notification, watched: Watched, place: tuple[int, int], follow: bool
    ) -> Sighting | None:
        asked = self._asked(told, told.args[place[1]], watched)
        folder = _folder(told, place[0])
        try:
            seen = self._sight(told.thread, asked, folder, follow) if self._may_lead(asked, follow) else None
            if seen is None and watched.runs and asked not in self._harmless_programs:
                return self._sight_interpreter(told.thread, asked, folder)
            return seen
        except OSError as error:
            self._blind(error)
            return None

    def _may_lead(self, asked: bytes, follow: bool) -> bool:
        return bool(asked) and asked not in self._harmless[follow]

    def _sight_interpreter(self, thread: int, asked: bytes, folder: bytes) -> Sighting | None:
        """What the kernel opens besides the program: the interpreter of a script, its interpreter, a loader."""
        program, steady = asked, asked in self._harmless[True]
        for _ in range(interpreters.MAX_DEPTH):
            names, is_script = self._named_in(thread, program, folder)
            for name in names:
                seen = self._sight(thread, name, b"cwd", True) if self._may_lead(name, True) else None
                if seen is not None:
                    return seen
                steady = steady and name in self._harmless[True]
                program, folder = name, b"cwd"
            if not is_script:
                break
        if steady:
            _remember(self._harmless_programs, asked)
        return None

    def _named_in(self, thread: int, program: bytes, folder: bytes) -> tuple[list[bytes], bool]:
        """The paths that the kernel reads in a program, and whether they are those of a script."""
        file = self._open_program(thread, program, folder)
        if file < 0:
            return [], False
        try:
            head = interpreters.head_of(file)
            return interpreters.named_in(file, head), interpreters.is_script(head)
        finally:
            os.close(file)

    def _open_program(self, thread: int, program: bytes, folder: bytes) -> int:
        """Open it for reading; -1: nothing that can be executed. Nothing but a plain file is opened, and no lease is
        waited for.

        Nothing on a mount without programs either: to read a file of /proc may change the host (kmsg loses lines).
        """
        if program:
            full = self._full(thread, program, folder)
            place = guest_paths.reach(self._root_at(thread), full, lambda: guest_paths.inside_numbers(thread))
        else:
            place = os.open(b"/proc/%d/%s" % (thread, folder), os.O_PATH | os.O_CLOEXEC)
        if place < 0:
            return -1
        try:
            if not stat.S_ISREG(os.fstat(place).st_mode) or os.fstatvfs(place).f_flag & os.ST_NOEXEC:
                return -1
            return os.open(f"/proc/self/fd/{place}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        finally:
            os.close(place)

    def _asked(self, told: Notification, address: int, watched: Watched) -> bytes:
        """The path as it was written; nothing where there is none."""
        skip_bytes = watched.skip_bytes
        try:
            if not skip_bytes:
                return memory.read_string(told.thread, address)
            # struct sockaddr_un; the kernel reads no more of it than it is told, whatever stands behind
            head = memory.read(told.thread, address, min(110, told.args[watched.size] & 0x7FFFFFFF))
        except OSError as error:
            self._blind(error)
            return b""
        is_path = int.from_bytes(head[:2], "little") == _AF_UNIX
        return head[skip_bytes:].partition(b"\0")[0] if is_path else b""

    def _blind(self, error: OSError) -> None:
        """A bad pointer fails in the kernel, and a process that is gone asks for nothing. Everything else is a loss."""
        if error.errno not in (errno.EFAULT, errno.ESRCH, errno.ENOENT):
            self._problem = f"a path could not be followed: {error.strerror}"

    def _sight(self, thread: int, asked: bytes, folder: bytes, follow: bool) -> Sighting | None:
        self._root_at(thread)
        full = self._full(thread, asked, folder)
        named = full in _FIRST_FILES or self._root_of(full)
        if self._is_changing(asked) and not named and self._is_elsewhere(full, follow):
            return None
        place = guest_paths.walk(self._root, full, follow, lambda: guest_paths.inside_numbers(thread))
        return self._judge(asked, full, place, follow)

    def _root_at(self, thread: int) -> int:
        if self._root < 0:
            # One for all: a sandbox has one root, and no call to change it.
            self._root = os.open(b"/proc/%d/root" % thread, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            self._proc_device = guest_paths.proc_device(self._root)
        return self._root

    def _full(self, thread: int, asked: bytes, folder: bytes) -> bytes:
        if asked[:1] == b"/":
            return asked
        return guest_paths.join(os.readlink(b"/proc/%d/%s" % (thread, folder)), asked)

    def _is_elsewhere(self, full: bytes, follow: bool) -> bool:
        """By few steps, whether it is certainly not hidden."""
        # What is hidden is absent: something that is there is not it, unless the guest made it there itself.
        found = guest_paths.found(self._root, full, follow, self._proc_device)
        if found is not None:
            return found not in _FIRST_FILES
        place = guest_paths.beside(self._root, full, follow)
        return place is not None and not self._root_of(place)

    def _judge(self, asked: bytes, full: bytes, place: PathEnd | None, follow: bool) -> Sighting | None:
        if place is None:  # more links than the kernel follows
            root = self._root_of(full)
            return Sighting(asked=asked, resolved=full, root=root, absent=True) if root else None
        root = self._root_of(place.path) or self._root_of(full)
        if root:
            return Sighting(asked=asked, resolved=place.path, root=root, absent=not place.there)
        if place.path in _FIRST_FILES:
            return Sighting(asked=asked, resolved=place.path, root=_FIRST, absent=False)
        root = b"" if place.there else self._root_of(normpath(full))
        if root:
            return Sighting(asked=asked, resolved=normpath(full), root=root, absent=True)
        if full is asked:
            self._learn(asked, place, follow)
        return None

    def _learn(self, asked: bytes, place: PathEnd, follow: bool) -> None:
        if place.steady:
            _remember(self._harmless[follow], asked)
        else:
            _remember(self._changing, dirname(asked))

    def _is_changing(self, asked: bytes) -> bool:
        """Whether walking the whole way is no use, since the answer can't be remembered."""
        return asked[:1] != b"/" or dirname(asked) in self._changing

    def _root_of(self, path: bytes) -> bytes:
        """The hidden path that it is at or below, empty if there is none; by the directories above it, since there may
        be thousands of hidden paths."""
        while path and path not in self._hidden:
            path = path[: path.rfind(b"/")] if b"/" in path else b""
        return path


def _remember(known: set[bytes], path: bytes) -> None:
    if len(path) > _LONGEST_REMEMBERED_BYTES:
        return
    if len(known) >= _MOST_REMEMBERED:
        known.clear()
    known.add(path)


def _opens(told: Notification, watched: Watched) -> bool:
    """Whether it opens what it names, and not only its name."""
    is_name = watched.flags >= 0 and told.args[watched.flags] & getattr(os, "O_PATH", 0)
    return watched.operation == first_files.OPEN and not is_name


def _folder(told: Notification, argument: int) -> bytes:
    """What a path without a slash at its start is relative to, as a name in /proc/<thread>."""
    if argument == CWD:
        return b"cwd"
    number = (told.args[argument] & 0xFFFFFFFF ^ 0x80000000) - 0x80000000  # the kernel takes an int
    return b"cwd" if number == _AT_FDCWD else b"fd/%d" % number
