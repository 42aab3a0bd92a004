"""Hidden paths watched by open notification: each call that names a file is looked at before it goes on.

The fallback of the recorder where no tripwire can be mounted. Hidden paths are absent by construction; this only
finds out who asked for them. It decides nothing, opens nothing but names, and waits for nobody. What it reads is
what stood in the guest's memory at that moment: another thread may change it before the kernel reads it
(seccomp_unotify(2)), which is what ``CAVEAT`` says in the recorder's health.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable
from functools import partial
from posixpath import dirname, normpath

from ringfence.linux import guest_paths, memory
from ringfence.linux.guest_paths import Place
from ringfence.linux.notify import Notification
from ringfence.linux.watched_calls import CWD, WATCHED, Watched
from ringfence.model.record import record

CAVEAT = (
    "paths were read before the kernel read them: a program that changes a path, a link or a folder at that moment "
    "can keep an attempt out of the record or put another path into it; sendmsg to a hidden socket is not watched"
)
_AT_FDCWD = -100
_AF_UNIX = 1
_MOST_REMEMBERED = 20_000
_LONGEST_REMEMBERED_BYTES = 256


@record
class Sighting:
    """A hidden path that somebody asked for."""

    asked: bytes
    resolved: bytes
    absent: bool
    """False: the guest has made something of its own at that place."""


class Watcher:
    """Knows the hidden paths of one sandbox, and its root once somebody asked for something."""

    def __init__(self, hidden: Iterable[str], lose: Callable[[int, str], None]) -> None:
        self._hidden = frozenset(map(os.fsencode, hidden))
        self._lose = lose
        self._root = -1
        # Paths that can't lead to anything hidden, ever; by whether a link at the end is followed.
        self._harmless: tuple[set[bytes], set[bytes]] = (set(), set())
        # Folders of which that can't be said, since the guest may change what lies on the way.
        self._changing: set[bytes] = set()

    def close(self) -> None:
        if self._root >= 0:
            os.close(self._root)
            self._root = -1

    def look(self, told: Notification, call: str) -> list[Sighting]:
        """The hidden paths that a waiting call names. Only true if the call still waits afterwards."""
        watched = WATCHED[call]
        follow = watched.follows(told.args)
        found = (self._look_at(told, watched, place, follow) for place in watched.places)
        return [sighting for sighting in found if sighting is not None]

    def _look_at(
        self, told: Notification, watched: Watched, place: tuple[int, int], follow: bool
    ) -> Sighting | None:
        asked = self._asked(told, told.args[place[1]], watched.skip_bytes)
        if not asked or asked in self._harmless[follow]:
            return None
        try:
            return self._sight(told.thread, asked, _folder(told, place[0]), follow)
        except OSError as error:
            self._blind(error)
            return None

    def _asked(self, told: Notification, address: int, skip_bytes: int) -> bytes:
        """The path as it was written; nothing where there is none."""
        try:
            if not skip_bytes:
                return memory.read_string(told.thread, address)
            head = memory.read(told.thread, address, 110)  # struct sockaddr_un
        except OSError as error:
            self._blind(error)
            return b""
        is_path = int.from_bytes(head[:2], "little") == _AF_UNIX
        return head[skip_bytes:].partition(b"\0")[0] if is_path else b""

    def _blind(self, error: OSError) -> None:
        """A bad pointer fails in the kernel, and who is gone asks for nothing. All else is a loss."""
        if error.errno not in (errno.EFAULT, errno.ESRCH, errno.ENOENT):
            self._lose(1, f"a path could not be followed: {error.strerror}")

    def _sight(self, thread: int, asked: bytes, folder: bytes, follow: bool) -> Sighting | None:
        if self._root < 0:
            # One for all: a sandbox has one root, and no call to change it.
            self._root = os.open(b"/proc/%d/root" % thread, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        full = asked if asked[:1] == b"/" else os.readlink(b"/proc/%d/%s" % (thread, folder)) + b"/" + asked
        if self._is_changing(asked) and not self._is_hidden(full) and self._is_elsewhere(full, follow):
            return None
        place = guest_paths.walk(self._root, full, follow, partial(guest_paths.inside_numbers, thread))
        return self._judge(asked, full, place, follow)

    def _is_elsewhere(self, full: bytes, follow: bool) -> bool:
        """By few steps, whether it is certainly not hidden."""
        # What is hidden is absent: something that is there is not it, unless the guest made it there itself.
        if guest_paths.exists(self._root, full, follow):
            return True
        place = guest_paths.beside(self._root, full, follow)
        return place is not None and not self._is_hidden(place)

    def _judge(self, asked: bytes, full: bytes, place: Place | None, follow: bool) -> Sighting | None:
        if place is None:  # more links than the kernel follows
            return Sighting(asked=asked, resolved=full, absent=True) if self._is_hidden(full) else None
        if self._is_hidden(place.path) or self._is_hidden(full):
            return Sighting(asked=asked, resolved=place.path, absent=not place.there)
        if not place.there and self._is_hidden(normpath(full)):
            return Sighting(asked=asked, resolved=normpath(full), absent=True)
        if full is asked:
            self._learn(asked, place, follow)
        return None

    def _learn(self, asked: bytes, place: Place, follow: bool) -> None:
        if place.steady:
            _remember(self._harmless[follow], asked)
        else:
            _remember(self._changing, dirname(asked))

    def _is_changing(self, asked: bytes) -> bool:
        """Whether it is no use to walk the whole way, since the answer can't be remembered."""
        return asked[:1] != b"/" or dirname(asked) in self._changing

    def _is_hidden(self, path: bytes) -> bool:
        """By the folders above it, since there may be thousands of hidden paths."""
        while path and path not in self._hidden:
            path = path[: path.rfind(b"/")] if b"/" in path else b""
        return bool(path)


def _remember(known: set[bytes], path: bytes) -> None:
    if len(path) > _LONGEST_REMEMBERED_BYTES:
        return
    if len(known) >= _MOST_REMEMBERED:
        known.clear()
    known.add(path)


def _folder(told: Notification, argument: int) -> bytes:
    """What a path without a slash at its start is relative to, as a name in /proc/<thread>."""
    if argument == CWD:
        return b"cwd"
    number = (told.args[argument] & 0xFFFFFFFF ^ 0x80000000) - 0x80000000  # the kernel takes an int
    return b"cwd" if number == _AT_FDCWD else b"fd/%d" % number
