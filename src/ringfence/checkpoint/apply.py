"""Turns a tree from one manifest into another, so that it can be broken off anywhere and done again.

A file appears whole, by a rename; directories get their modes and times last. Trees that a program has written are
changed through descriptors only. Does not decide what is written, and does not check for changes by others. """

from __future__ import annotations

import errno
import os
import stat
from _collections_abc import Callable, Iterable, Mapping

from ringfence.checkpoint import content, preflight
from ringfence.checkpoint import entry as entries
from ringfence.checkpoint.entry import DELETED, FILE, FOLDER, LINK, Entry, Index, Manifest, Seen, ordered, parent
from ringfence.checkpoint.held import Held, give, give_group, group_at, held, keeps_us_out, set_attributes
from ringfence.checkpoint.tree import NEW_FILE_FLAGS, Tree, is_folder
from ringfence.errors import CheckpointError
from ringfence.model import windows_paths
from ringfence.model.own_files import set_mode

Source = Callable[[str, Entry], int]
"""A descriptor of the content of a file entry."""
_WHITEOUT = stat.S_IFCHR
_UTIME_BY_DESCRIPTOR = os.utime in os.supports_fd
KNOWS_NO_CASE = os.name == "nt"
_UTIME_SEES_LINKS = os.utime in os.supports_follow_symlinks
"""Elsewhere (Windows) links keep their creation time."""


_PREFIX, _STAGED = ".ringfence-", "-new"


def new_name() -> str:
    return f"{_PREFIX}{os.urandom(8).hex()}"


def is_new_name(name: object) -> bool:
    return isinstance(name, str) and name.startswith(_PREFIX) and name.removeprefix(_PREFIX).isalnum()


class _NamingPath:
    """Errors name the path in question: the calls know only a temporary name."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None:
        return

    def __exit__(self, _: object, error: object, __: object) -> None:
        if isinstance(error, OSError):
            raise OSError(error.errno, error.strerror, self._path) from error


class Writer:
    """Writes entries into one tree."""

    def __init__(
        self, tree: Tree, source: Source, temporary: str, *, prefix: str = "", special: bool = True,
        alone: bool = True,
    ) -> None:  # fmt: skip
        self.tree = tree
        self.source = source
        self.temporary = temporary
        """The name under which things are made: nobody can have guessed it, and so nobody uses it."""
        self.prefix = prefix
        self.special = special
        """Whether sockets, FIFOs and devices are made; else they are left out."""
        self.alone = alone
        """Whether nobody else writes there: else a directory stays if somebody has put something into it."""
        self._staging = temporary + _STAGED
        self._staged: dict[str, str] = {}
        self._folders: dict[str, int] = {}
        """The inodes of the directories that were looked at or made: another one under such a name is not ours to
        change."""

    def stage(self, now: Manifest, target: Manifest) -> None:
        """Make new files beside their places, so that a failure is reported before anything has changed."""
        changed, doomed = _difference(now, target)
        if not changed and not doomed:
            return
        with self._naming_path(""):
            name, where = self.tree.at(self._staging)
            os.mkdir(name, 0o700, **where)
            with Held(self.tree, self._staging) as staging:  # what is made here belongs elsewhere
                staging.hand_down_nothing()
        for path in ordered({parent(path) for path in (*changed, *doomed)}):
            with self._naming_path(path):
                preflight.check_writable(self.tree, path)
        for path in ordered({*changed, *doomed} & now.keys()):
            with self._naming_path(path):
                preflight.check_replaceable(self.tree, path)
        for number, path in enumerate(ordered(changed)):
            with self._naming_path(path):
                self._stage_one(path, target[path], f"{self._staging}/{number}", target, _is_folder(now.get(path)))

    def _stage_one(self, path: str, entry: Entry, place: str, target: Manifest, is_there: bool) -> None:
        if entry.kind == FOLDER and (entry.attributes or not is_there):
            self._make_folder(place)  # there may be no room for it, or for so many attributes
            self._set_metadata(place, entry)
            self._staged |= {} if is_there else {path: place}
        elif entry.kind != FOLDER and entry.kind not in entries.SPECIAL and not entries.joins(entry, target):
            self._make(place, path, entry, target)
            self._keep_staged(path, place)

    def _keep_staged(self, path: str, place: str) -> None:
        """Unless only the system can give it its group, when it is made at its own place."""
        group, made = self._group(path), self.tree.status(place)
        if made is not None and group in (None, made.st_gid):
            self._staged[path] = place
        else:
            self._unlink_file(place)

    def _group(self, path: str) -> int | None:
        """In the base, the one that a set-group-id directory hands down."""
        return None if self.alone else group_at(self.tree, path)

    def unstage(self) -> None:
        """Remove what is left of it, even if the writer was killed."""
        self._staged = {}
        if self.tree.status(self._staging) is not None:
            self._remove_folder(self._staging, whole=True)

    def apply(self, found: Index, target: Manifest) -> dict[str, Seen]:
        """Turn the tree from what was found in it into ``target``; return what was written, as it then is."""
        now = entries.of_index(found)
        self._folders = {path: seen.fingerprint[0] for path, seen in found.items() if seen.entry.kind == FOLDER}
        changed, doomed = _difference(now, target)
        touched = {parent(path) for path in (*changed, *doomed)} - {""}
        opened = self.open_closed({above for path in (*changed, *doomed) for above in entries.ancestors(path)})
        for path in reversed(ordered(doomed)):
            with self._naming_path(path):
                self._remove(path, now[path])
        written = []
        for path in ordered(changed):
            with self._naming_path(path):
                written += [path] if self._write(path, target[path], target) else []
        seen = self._as_written(written, target)  # before a directory's mode may keep us out
        folders = {path for path in (*changed, *touched, *opened) if _is_folder(target.get(path))}
        for path in reversed(ordered(folders)):
            with self._naming_path(path):
                self._set_metadata(path, target[path])
        return seen

    def _naming_path(self, path: str) -> _NamingPath:
        return _NamingPath(f"{self.tree.path}/{path}".rstrip("/"))

    def sweep(self, folders: set[str]) -> None:
        """Remove what a writer that was killed left half done."""
        self.unstage()
        for folder in folders:
            path = f"{folder}/{self.temporary}" if folder else self.temporary
            if self.tree.status(path) is not None:
                name, where = self.tree.at(path)
                os.unlink(name, **where)

    def open_closed(self, paths: Iterable[str]) -> list[str]:
        """Open those of our directories among these whose mode keeps us out, the highest first; return which they were.
        They get their mode back at the end."""
        opened = []
        for path in ordered(paths):
            status = self.tree.status(path)
            if status is not None and stat.S_ISDIR(status.st_mode) and keeps_us_out(status):
                with self._naming_path(path):
                    self.tree.allow(path, stat.S_IMODE(status.st_mode) | 0o700, inode=status.st_ino)
                opened.append(path)
        return opened

    def _remove(self, path: str, entry: Entry) -> None:
        if entry.kind == FOLDER:
            self._remove_folder(path, whole=self.alone)
        else:
            name, where = self.tree.at(path)
            os.unlink(name, **where)

    def _remove_folder(self, path: str, *, whole: bool) -> None:
        """``whole``: with what is in it."""
        name, where = self.tree.at(path)
        try:
            os.rmdir(name, **where)
        except OSError as error:
            if error.errno != errno.ENOTEMPTY or not whole:
                raise
            self.tree.allow(path, 0o700)
            self._empty(path)
            self.tree.forget(path)
            name, where = self.tree.at(path)
            os.rmdir(name, **where)
        self.tree.forget(path)

    def _empty(self, path: str) -> None:
        """Remove what is deeper than scans go: each directory in it is moved to the top, so that depth costs
        nothing."""
        serial = 0
        while names := self.tree.names(path):
            for name in names:
                inner = f"{path}/{name}"
                if self._unlink_file(inner):
                    continue
                self.tree.allow(inner, 0o700)
                for below in self.tree.names(inner):
                    if not self._unlink_file(f"{inner}/{below}"):
                        serial += 1
                        self._hoist(f"{inner}/{below}", f"{path}/{self.temporary}{serial}")
                self.tree.forget(inner)
                last, where = self.tree.at(inner)
                os.rmdir(last, **where)

    def _unlink_file(self, path: str) -> bool:
        """Remove it unless it is a directory; return whether it is gone."""
        status = self.tree.status(path)
        if status is not None and is_folder(status):
            return False
        name, where = self.tree.at(path)
        os.unlink(name, **where)
        return True

    def _hoist(self, path: str, higher: str) -> None:
        self.tree.allow(path, 0o700)  # moving a directory writes into it
        self.tree.forget(path)
        above = self.tree.folder(parent(higher))
        inner = self.tree.folder(parent(path))
        os.rename(path.rpartition("/")[2], higher.rpartition("/")[2], src_dir_fd=inner, dst_dir_fd=above)

    def _write(self, path: str, entry: Entry, target: Manifest) -> bool:
        """Put an entry at its place; return whether there is something now."""
        if entry.kind == entries.JUNCTION or (entry.kind in entries.SPECIAL and not self.special):
            return False
        if entry.kind == FOLDER:
            return self._make_folder(path)
        if path in self._staged and self._move(self._staged.pop(path), path):
            return True
        folder = parent(path)
        temporary = f"{folder}/{self.temporary}" if folder else self.temporary
        name, where = self.tree.at(temporary)
        if self.tree.status(temporary) is not None:
            os.unlink(name, **where)
        self._make(temporary, path, entry, target)
        # Looked up again: the directory's descriptor may have been closed meanwhile to make room for another.
        name, where = self.tree.at(temporary)
        folder_now = where.get("dir_fd")
        os.replace(name, self.tree.at(path)[0], src_dir_fd=folder_now, dst_dir_fd=folder_now)
        return True

    def _move(self, staged: str, path: str) -> bool:
        """False if that is another file system: then the file has to be copied."""
        name, where = self.tree.at(path)
        old, old_where = self.tree.at(staged)
        try:
            os.replace(old, name, src_dir_fd=old_where.get("dir_fd"), dst_dir_fd=where.get("dir_fd"))
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            return False
        return True

    def _make_folder(self, path: str) -> bool:
        if self.tree.status(path) is None:
            if path in self._staged:  # its room is given back: only one that is made here takes after those above
                self._remove_folder(self._staged.pop(path), whole=False)
            name, where = self.tree.at(path)
            os.mkdir(name, 0o700, **where)
            self._adopt(path)
        return True

    def _adopt(self, path: str) -> None:
        """Note the directory that we have just made, and give it to the owner of the tree, unless it is another one by
        now."""
        found = held(self.tree, path)
        if found is None:
            return
        with found:
            if found.is_just_made():
                self._folders[path] = found.status.st_ino
                if hasattr(os, "geteuid") and os.geteuid() == 0:
                    os.chown(found.place, *self.tree.owner)
                    give_group(lambda group: os.chown(found.place, -1, group), self._group(path))

    def _make(self, temporary: str, path: str, entry: Entry, target: Manifest) -> None:
        if entries.joins(entry, target) and self._join(entry.twin, temporary, path):
            return
        if entry.kind == FILE:
            self._make_file(temporary, path, entry)
        else:
            name, where = self.tree.at(temporary)
            if entry.kind == LINK:
                os.symlink(entry.target, name, **where)
            elif entry.kind == DELETED:
                os.mknod(name, _WHITEOUT, 0, **where)
            else:
                _make_special(name, where.get("dir_fd"), entry)
            self._chown(temporary, path)
            if entry.kind not in (DELETED, LINK):
                self.tree.allow(temporary, entry.mode)
            if entry.kind != DELETED and _UTIME_SEES_LINKS:
                name, where = self.tree.at(temporary)
                os.utime(name, ns=(entry.mtime_ns, entry.mtime_ns), follow_symlinks=False, **where)

    def _join(self, twin: str, temporary: str, path: str) -> bool:
        """A second name of a file, where the file system supports it. If both are one file already, a rename would
        leave the temporary name."""
        there, other = self.tree.status(path), self.tree.status(twin)
        if there is not None and other is not None and os.path.samestat(there, other):
            name, where = self.tree.at(path)
            os.unlink(name, **where)
        return self.tree.join(twin, temporary)

    def _make_file(self, temporary: str, path: str, entry: Entry) -> None:
        name, where = self.tree.at(temporary)
        writer = os.open(name, NEW_FILE_FLAGS, 0o600, **where)
        try:
            self._fill(writer, path, entry)
            if entry.attributes or entry.copied:
                set_attributes(writer, entry, self.prefix)
            if hasattr(os, "geteuid") and os.geteuid() == 0:  # not by a name: somebody may have put another file there
                os.fchown(writer, *self.tree.owner)
            give_group(lambda group: os.fchown(writer, -1, group), self._group(path))
            set_mode(writer, entry.mode)
            place = writer if _UTIME_BY_DESCRIPTOR else self.tree.at(temporary)[0]
            os.utime(place, ns=(entry.mtime_ns, entry.mtime_ns))
        finally:
            os.close(writer)

    def _fill(self, writer: int, path: str, entry: Entry) -> None:
        """Use a kept content only if it is the one that was looked at: somebody who can write into the store must not
        choose what is written here."""
        reader = self.source(path, entry)
        try:
            if not entry.digest:
                content.fill(reader, writer)
            elif not content.fill_known(reader, writer, entry.digest):
                problem = f"{entries.shown(path)}: what was kept of it was changed by somebody else"
                raise CheckpointError(problem, hint="leave this path out, or write the file once more")
        finally:
            os.close(reader)

    def _chown(self, place: str, path: str) -> None:
        """Give it to the owner of the tree: root writes here for others, who could not reach files of root."""
        if hasattr(os, "geteuid") and os.geteuid() == 0:
            give(self.tree, place, self.tree.owner)
        give_group(lambda group: give(self.tree, place, (-1, group)), self._group(path))

    def _set_metadata(self, path: str, entry: Entry) -> None:
        """Only of the directory that was looked at or made: whoever may rename it can put another in its place."""
        found = held(self.tree, path)
        if found is None:
            return
        with found:
            if found.status.st_ino == self._folders.get(path):
                found.set(entry, self.prefix)

    def _as_written(self, written: list[str], target: Manifest) -> dict[str, Seen]:
        """Looked at last, since making a second name changes the ctime of the first."""
        found = ((path, self.tree.status(path)) for path in written)
        return {
            path: Seen(entry=target[path], fingerprint=entries.fingerprint(status))
            for path, status in found
            if status is not None
        }


def _difference(now: Manifest, target: Manifest) -> tuple[list[str], list[str]]:
    """What is to be written, and what has to be removed before."""
    changed = [path for path in target if now.get(path) != target[path]]
    doomed = [path for path in now if path not in target or _in_the_way(now[path], target[path])]
    if KNOWS_NO_CASE and doomed:  # a path with only a new spelling is removed with the old one, and written again
        gone = {windows_paths.fold(path) for path in doomed}
        changed = [path for path in target if now.get(path) != target[path] or windows_paths.fold(path) in gone]
    return changed, doomed


def _is_folder(entry: Entry | None) -> bool:
    return entry is not None and entry.kind == FOLDER


def _in_the_way(now: Entry, wanted: Entry) -> bool:
    """What a rename cannot replace."""
    return (now.kind == FOLDER) != (wanted.kind == FOLDER) or now.attributes == entries.UNLISTED


def _make_special(name: str, folder: int | None, entry: Entry) -> None:
    kinds: Mapping[str, int] = {
        entries.FIFO: stat.S_IFIFO,
        entries.SOCKET: stat.S_IFSOCK,
        entries.CHARACTER: stat.S_IFCHR,
        entries.BLOCK: stat.S_IFBLK,
    }
    os.mknod(name, kinds[entry.kind] | 0o600, entry.device, dir_fd=folder)
