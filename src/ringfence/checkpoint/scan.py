"""Reads a tree into entries. What has not changed since an earlier look is not opened again, except contents of files
that a job has written.

Knows how overlayfs marks what is removed (a character device 0/0) and what hides (an opaque directory), when
told the prefix of its attributes. Writes nothing, except the mode of our own directories and files that keeps us out.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from _collections_abc import Callable, Generator, Iterable, Mapping
from types import MappingProxyType

from ringfence.checkpoint import content
from ringfence.checkpoint import entry as entries
from ringfence.checkpoint.entry import FILE, FOLDER, GONE, LINK, Entry, Index, Seen
from ringfence.checkpoint.modes import without_list
from ringfence.checkpoint.tree import UNLISTABLE, Tree, is_folder
from ringfence.errors import CheckpointError
from ringfence.model import windows_paths
from ringfence.model.record import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeVar

    T = TypeVar("T")

MAX_DEPTH, MAX_PATH_CHARS = 500, 4096
"""Deeper trees are a program's mischief: neither shown nor kept, but removed all the same."""
MAX_ENTRIES = 500_000
"""How much of a layer is read, and so shown or committed. A path weighs one, plus one for each KiB of its name, link
target and attributes: a program chooses all three, and they are held in the caller's memory."""
_ACCESS_LIST = "system.posix_acl_access"
_REFUSED = ("redirect", "metacopy")
_WITHOUT_TIMES = ("tmpfs", "ramfs")
_VANISHED = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EINVAL, errno.ESTALE)
"""Something seen a moment ago is gone, or was replaced: a program is at work."""
NOTHING: Index = MappingProxyType({})


class Reading:
    """How a file's content becomes a digest: by a function of its descriptor, or by not looking."""

    def __init__(self, take: Callable[[int], str] | str, keeps: Callable[[str], bool] | None = None) -> None:
        self.take = take
        self.keeps = keeps
        """Whether a digest that is already known will do. Absent: it always does."""


UNREAD = Reading(entries.UNKNOWN)
"""For trees that will be overwritten anyway."""
OF_BASE = Reading("")
"""For the base itself, where the content can be read later."""


class Scan:
    """How to read one tree."""

    def __init__(
        self, tree: Tree, *, prefix: str = "", without: frozenset[str] = frozenset(), ours: bool = True,
        mounted: bool = True,
    ) -> None:  # fmt: skip
        self.tree = tree
        self.ours = ours
        """Whether a mode that keeps us out may be changed for a moment. Never in the base."""
        self.prefix = prefix
        """Of overlayfs's attributes: ``user.overlay.`` or ``trusted.overlay.``. Empty: no overlay's layer."""
        self.without: frozenset[str] = frozenset()
        self._hidden: frozenset[str] = frozenset()
        self.leave_out(without)
        self.mounted = mounted
        """Whether mounts in it are part of it. Not for an overlay, which does not show them."""
        self.cut_short = self._cutting = False
        """The last look left something out because it is too deep or too much. ``_cutting``: it may."""
        self._telling: bool | None = None

    def leave_out(self, paths: frozenset[str]) -> None:
        """From now on these are not looked at either."""
        self.without |= paths
        self._hidden = frozenset(map(windows_paths.fold, self.without)) if os.name == "nt" else frozenset()

    def below(
        self, top: str, take: Reading, index: Index = NOTHING, *, cut: bool = False, most: int | None = None
    ) -> dict[str, Seen]:
        """Everything below a directory, itself not included, in order. ``cut``: leave out what is too deep, or more
        than ``most``; otherwise that is an error."""
        found: dict[str, Seen] = {}
        inodes: dict[str, tuple[int, int]] = {}
        room = most = sys.maxsize - 1 if most is None else most
        self.cut_short, self._cutting = False, cut
        walk = self._walk(top, cut=cut, most=room)
        try:
            for path, status in walk:
                try:
                    seen = self._seen(path, status, take, index.get(path))
                except OSError as error:
                    if cut and error.errno in _VANISHED:
                        continue
                    raise
                room -= _weight(path, seen.entry)
                if room < 0:
                    self._leave_out(_too_many(most), cut=cut)
                    break
                found[path] = seen
                if status.st_nlink > 1 and not stat.S_ISDIR(status.st_mode):
                    inodes[path] = (status.st_dev, status.st_ino)
        finally:
            walk.close()  # at once: nothing stays open after an error
        return _with_twins(found, inodes)

    def _leave_out(self, problem: str, *, cut: bool) -> None:
        if not cut:
            raise CheckpointError(problem, hint="remove it, or roll back")
        self.cut_short = True

    def one(self, path: str, take: Reading) -> Seen | None:
        status = None if self._is_hidden(path) or self._is_bare(entries.parent(path)) else self.tree.status(path)
        return None if status is None else self._seen(path, status, take, None)

    def _walk(self, top: str, *, cut: bool, most: int) -> Generator[tuple[str, os.stat_result], None, None]:
        waiting = [] if self._is_bare(top) else [top]
        locked: list[tuple[str, int]] = []
        try:
            while waiting:
                folder = waiting.pop()
                for name in sorted(self._names(folder, most, cut=cut)):
                    path = f"{folder}/{name}" if folder else name
                    if os.name == "nt" and (problem := windows_paths.problem(name)):
                        self._leave_out(f"{entries.shown(path)}: {problem}", cut=cut)
                        continue
                    status = None if self._is_hidden(path) else self.tree.listed_status(path)
                    if status is None:
                        continue
                    yield path, status
                    if is_folder(status) and self._is_shown(path, cut=cut) and not self._is_bare(path):
                        waiting.append(path)
                        self._unlock(path, status, locked)
        finally:
            for path, mode in reversed(locked):
                self.tree.allow(path, mode)

    def _is_hidden(self, path: str) -> bool:
        """On Windows however it is written."""
        return path in self.without or (os.name == "nt" and windows_paths.fold(path) in self._hidden)

    def _names(self, folder: str, most: int, *, cut: bool) -> list[str]:
        try:
            names = self.tree.names(folder, most + 1)
        except OSError as error:
            if cut and error.errno in _VANISHED:
                return []
            raise
        if len(names) > most:
            self._leave_out(_too_many(most), cut=cut)
        return names

    def _is_shown(self, path: str, *, cut: bool) -> bool:
        shown = path.count("/") < MAX_DEPTH and len(path) <= MAX_PATH_CHARS
        if not shown:
            problem = f"more than {MAX_DEPTH} directories deep, or {MAX_PATH_CHARS} characters"
            self._leave_out(f"{entries.shown(path[:100])}…: {problem}", cut=cut)
        return shown

    def _is_bare(self, folder: str) -> bool:
        """Whether something is mounted there, or above, that is no part of it."""
        mounts = frozenset() if self.mounted else self.tree.mounts()
        return bool(mounts) and not mounts.isdisjoint((folder, *entries.ancestors(folder)))

    def _unlock(self, path: str, status: os.stat_result, locked: list[tuple[str, int]]) -> None:
        """A directory of ours that we may not list is opened for the time of the scan."""
        if self.ours and status.st_mode & 0o500 != 0o500 and os.name == "posix" and os.geteuid() == status.st_uid != 0:
            self.tree.allow(path, stat.S_IMODE(status.st_mode) | 0o700)
            locked.append((path, stat.S_IMODE(status.st_mode)))

    def _seen(self, path: str, status: os.stat_result, take: Reading, before: Seen | None) -> Seen:
        mark = entries.fingerprint(status)
        if before is not None and before.fingerprint == mark and _lasts(before.entry):
            if not before.entry.digest or before.entry.kind != FILE:
                return before
            digest = self._digest(path, status, take, before.entry.digest)
            return before if digest == before.entry.digest else Seen(
                entry=replace(before.entry, digest=digest), fingerprint=mark)  # fmt: skip
        return Seen(entry=self._entry(path, status, take), fingerprint=mark)

    def _digest(self, path: str, status: os.stat_result, take: Reading, known: str = "") -> str:
        if isinstance(take.take, str):
            return take.take if known in ("", entries.UNKNOWN) or not self.times_tell() else known
        kept = known and known != entries.UNKNOWN and (take.keeps is None or take.keeps(known))
        if kept and (self.times_tell() or self._read(path, status, content.digest) == known):
            return known
        return self._read(path, status, take.take)

    def used_bytes(self, paths: Iterable[str]) -> int:
        """What these take on the disk, including blocks beyond their ends; a file with several names counts once."""
        statuses = (self.tree.status(path) for path in paths)
        blocks = {(each.st_dev, each.st_ino): getattr(each, "st_blocks", 0) for each in statuses if each is not None}
        return 512 * sum(blocks.values())

    def unread(self) -> Reading:
        """How to read a tree that is overwritten where it differs: by times if they tell, else by content."""
        return UNREAD if self.times_tell() else Reading(content.digest)

    def times_tell(self) -> bool:
        """Whether every write changes a file's times. On tmpfs a write through a mapping does not; on Windows a program
        can set all of them back. Where jobs write, no file system's times tell: a direct read into a mapping changes
        them when it begins, and the bytes arrive later, after somebody has looked."""
        if self._telling is None:
            believed = not self.ours and os.name == "posix"
            self._telling = believed and self.tree.file_system() not in _WITHOUT_TIMES
        return self._telling

    def _read(self, path: str, status: os.stat_result, take: Callable[[int], str]) -> str:
        descriptor = self._reached(path, status, self.tree.read)
        try:
            return take(descriptor)
        finally:
            os.close(descriptor)

    def open(self, path: str) -> int:
        """A regular file's content, also in directories of ours whose mode keeps us out."""
        try:
            return self._open(path)
        except PermissionError:
            if not self.ours:
                raise
        locked: list[tuple[str, int]] = []
        try:
            for above in entries.ancestors(path):
                status = self.tree.status(above)
                if status is not None and stat.S_ISDIR(status.st_mode):
                    self._unlock(above, status, locked)
            return self._open(path)
        finally:
            for above, mode in reversed(locked):
                self.tree.allow(above, mode)

    def _open(self, path: str) -> int:
        status = self.tree.status(path)
        if status is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return self._reached(path, status, self.tree.read)

    def _reached(self, path: str, status: os.stat_result, work: Callable[[str], T]) -> T:
        """Do this even if the mode of a file of ours keeps its own owner from reading it."""
        try:
            return work(path)
        except PermissionError:
            if not self.ours:
                raise
        mode = stat.S_IMODE(status.st_mode)
        self.tree.allow(path, mode | 0o400)
        try:
            return work(path)
        finally:
            self.tree.allow(path, mode)

    def _attributes(self, path: str, status: os.stat_result) -> dict[str, bytes]:
        try:
            return self._reached(path, status, self.tree.attributes)
        except PermissionError:
            return {}  # somebody else's, in the base
        except OSError as error:
            if error.errno not in UNLISTABLE:
                raise
            self._leave_out(f"{entries.shown(path)}: more attributes than can be listed", cut=self._cutting)
            return dict.fromkeys((name for name, _ in entries.UNLISTED), b"")

    def _entry(self, path: str, status: os.stat_result, take: Reading) -> Entry:
        kind = entries.kind_of(status)
        if self.prefix and kind == entries.CHARACTER and status.st_rdev == 0:
            return GONE
        marks = self._attributes(path, status) if kind in (FILE, FOLDER) else {}
        self._refuse(path, marks)
        name, where = self.tree.at(path)
        return Entry(
            kind=kind,
            mode=_mode(status, marks) if kind != LINK else 0,
            mtime_ns=status.st_mtime_ns,
            size=status.st_size if kind == FILE else 0,
            digest=self._digest(path, status, take) if kind == FILE else "",
            target=os.readlink(name, **where) if kind == LINK else "",
            device=status.st_rdev if kind in (entries.CHARACTER, entries.BLOCK) else 0,
            attributes=_plain(marks),
            opaque=bool(self.prefix) and marks.get(self.prefix + "opaque") == b"y",
            copied=bool(self.prefix) and self.prefix + "origin" in marks,
        )

    def _refuse(self, path: str, marks: Mapping[str, bytes]) -> None:
        for name in _REFUSED if self.prefix else ():
            if self.prefix + name in marks:
                raise CheckpointError(
                    f"{entries.shown(path)}: the overlay keeps part of it elsewhere ({name})",
                    hint="mount it with redirect_dir=off,metacopy=off",
                )


def _mode(status: os.stat_result, marks: Mapping[str, bytes]) -> int:
    """A directory keeps its access control list, and so the bits that are its mask."""
    mode = stat.S_IMODE(status.st_mode)
    return mode if stat.S_ISDIR(status.st_mode) else without_list(mode, marks.get(_ACCESS_LIST, b""))


def _lasts(entry: Entry) -> bool:
    """Whether it is known as long as its fingerprint stays. What could not be listed is told by every look."""
    return entry.kind != FOLDER and entry.attributes != entries.UNLISTED


def _weight(path: str, entry: Entry) -> int:
    texts = len(path) + len(entry.target) + sum(len(name) + len(value) for name, value in entry.attributes)
    return 1 + texts // 1024


def _too_many(most: int) -> str:
    return f"more than {most} paths, or as much in long names, links and attributes: too many to look through"


def _plain(marks: Mapping[str, bytes]) -> tuple[tuple[str, str], ...]:
    """The user's own attributes. Others are about rights, and only the host may grant those."""
    own = (name for name in marks if name.startswith("user.") and not name.startswith("user.overlay."))
    return tuple((name, marks[name].hex()) for name in sorted(own))


def _with_twins(found: dict[str, Seen], inodes: Mapping[str, tuple[int, int]]) -> dict[str, Seen]:
    first: dict[tuple[int, int], str] = {}
    result = {path: found[path] for path in entries.ordered(found)}
    for path in result:
        inode = inodes.get(path)
        twin = first.setdefault(inode, path) if inode else path
        twin = "" if twin == path else twin
        seen = result[path]
        if seen.entry.twin != twin and seen.entry.kind != entries.DELETED:
            result[path] = Seen(entry=replace(seen.entry, twin=twin), fingerprint=seen.fingerprint)
    return result
