"""A layer that overlayfs keeps: the upper directory holds what changed, the base is below it.

Reading costs what the layer holds, however large the base is. The ctimes of the base tell whether others changed it:
what is younger than the layer was not there when the layer was opened. Mounts nothing; while the layer is written here
(rollback, commit) no overlay may be mounted over it.
"""

from __future__ import annotations

import os
import stat
from _collections_abc import Collection

from ringfence.checkpoint import entry as entries
from ringfence.checkpoint.apply import Writer
from ringfence.checkpoint.commit.commit_plan import CommitPlan
from ringfence.checkpoint.entry import Entry, Index, Manifest, Seen, index_rows, parent
from ringfence.checkpoint.records.documents import reading
from ringfence.checkpoint.scan import MAX_ENTRIES, UNREAD, Reading, Scan
from ringfence.checkpoint.store import Moment, Store
from ringfence.checkpoint.tree import Tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

Noted = tuple[int, int | None]
_PREFIX = "user.overlay."
_SECOND_NS = 10**9
"""Prefix of the attributes that overlayfs sets if mounted with ``userxattr``, as it always is here."""
_OPENED, _SINCE, _INDEX, _OURS, _FOLDERS = "opened", "since", "index", "ours", "folders"


class OverlayLayer:
    """One upper directory and the base that it lies over."""

    def __init__(
        self, upper: str | Tree, base: Tree, store: Store, *, hidden: frozenset[str] = frozenset()
    ) -> None:
        self.live = Tree(upper) if isinstance(upper, str) else upper
        self._base = base
        self._store = store
        self.scan = Scan(self.live, prefix=_PREFIX, without=hidden)
        self._everything = Scan(self.live, prefix=_PREFIX)
        self._index = store.index(_INDEX)
        self._ours = (store.read(_OURS) or {}) if store.holds(_OURS) else {}
        self._folders = _noted((store.read(_FOLDERS) or {}) if store.holds(_FOLDERS) else {})
        """The directory of the base at each path of the layer when that was first looked at, as inode and mode; 0:
        there was none."""
        since = store.read(_SINCE) if store.holds(_SINCE) else None
        self._opened = store.moment(_OPENED) or store.tick(_OPENED)
        if since:
            with reading(f"{store.path}/{_SINCE}.json"):
                self._opened = Moment(wall_ns=int(since["ns"]), awake_ns=int(since.get("awake_ns", since["ns"])))
        self._since_ns = self._opened.wall_ns
        """Files of the base that are younger were changed by others."""
        self._top_is_known = False

    def leave_out(self, paths: frozenset[str]) -> None:
        self.scan.leave_out(paths)

    def read(self, how: Reading) -> dict[str, Entry]:
        """The changes as they are now."""
        begun = self._store.now()
        self._since_ns = self._opened.wall_ns - begun.set_back_since(self._opened)
        found = self.scan.below("", how, self._index, cut=how is UNREAD, most=MAX_ENTRIES)
        self._store.tick("read")
        self._index = settled(found, begun)
        self._note_folders(found)
        return entries.of_index(found)

    def _note_folders(self, found: Index) -> None:
        known = self._folders
        folders = (path for path, seen in found.items() if seen.entry.kind == entries.FOLDER)
        self._set_folders({path: known[path] if path in known else self._folder(path) for path in folders})

    def _set_folders(self, folders: dict[str, Noted]) -> None:
        if folders != self._folders:
            self._folders = folders
            try:
                self._store.write(_FOLDERS, folders)
            except OSError:
                pass  # looking at a layer must not need room on the disk

    def _folder(self, path: str) -> Noted:
        status = self._base.status(path)
        found = status is not None and stat.S_ISDIR(status.st_mode)
        return (status.st_ino, stat.S_IMODE(status.st_mode)) if status is not None and found else (0, None)

    def base_mode(self, path: str) -> int | None:
        return self._folders.get(path, (0, None))[1]

    def restore(self, layer: Manifest, temporary: str) -> int:
        """Make the upper directory hold this layer; return how many paths were written or removed."""
        # This includes what the job put where something is hidden: that is reported to nobody, and is removed.
        now = self._everything.below("", self.scan.unread(), self._index, cut=True)
        writer = Writer(self.live, lambda _, entry: self._store.open(entry.digest), temporary, prefix=_PREFIX)
        before = entries.of_index(entries.replaceable(now))
        written = writer.apply(entries.replaceable(now), layer)
        self.live.reset_top(_PREFIX)
        kept = {path: seen for path, seen in now.items() if layer.get(path) == seen.entry}
        cut_off = {path for path in kept if layer[path].kind != entries.FOLDER and self._cut_off(path)}
        self._index = {**{path: seen for path, seen in kept.items() if path not in cut_off}, **written}
        self._set_folders({path: number for path, number in self._folders.items() if path in layer})
        self._store.tick("read")
        return count_changed(before, layer)

    def _cut_off(self, path: str) -> bool:
        """Remove from a file the overlay's note of which base file it was copied from.

        That base file may now be visible again under its own name, and the overlay would take both for one.
        """
        name = _PREFIX + "origin"
        try:
            if not self.live.attributes(path).get(name):
                return False
        except PermissionError:
            return False  # it is closed to us as an ordinary user, for whom overlayfs notes no file
        self.live.set_attribute(path, name, b"")
        return True

    def remember(self) -> None:
        self._store.write(_INDEX, index_rows(self._index))

    def hand_on(self, store: Store) -> None:
        """Note in that store that its layer, over the same base, counts as opened when this one was."""
        store.write(_SINCE, {"ns": self._opened.wall_ns, "awake_ns": self._opened.awake_ns})

    def foreign(self, path: str, seen: Seen | None, entry: Entry | None) -> bool:
        """Whether somebody else changed the base here since the layer was opened."""
        if seen is not None and seen.entry.kind == entries.FOLDER:
            # A directory's contents tell, unless it is to be removed: it may have been moved here with old files in it.
            return (entry is None or entries.hides_base(entry)) and self._is_younger(path, seen.fingerprint)
        if seen is not None:
            return self._is_younger(path, seen.fingerprint) or self._is_elsewhere(path)
        if entry is None or not entry.copied:
            return False
        # A copy of something that is not there: somebody removed it, or the job moved it here. It can't move
        # directories.
        return entry.kind == entries.FOLDER or self._folder_is_younger(parent(path))

    def _is_younger(self, path: str, mark: tuple[int, ...]) -> bool:
        ours = list(mark) == self._ours.get(path) or list(mark[:3]) == self._ours.get(_by_inode(mark))
        # A file system that keeps whole seconds makes a change look as old as the second in which it came.
        since_ns = self._since_ns if mark[3] % _SECOND_NS else self._since_ns // _SECOND_NS * _SECOND_NS
        return mark[3] >= since_ns and not ours

    def _is_elsewhere(self, path: str) -> bool:
        """Whether a directory above was replaced by another: the contents were never seen, however old they are."""
        known = (above for above in entries.ancestors(path) if above in self._folders)
        return any(self._folder(above)[0] != self._folders[above][0] for above in known)

    def _folder_is_younger(self, folder: str) -> bool:
        try:
            status = os.fstat(self._base.folder(folder))
        except OSError:
            return False
        return self._is_younger(folder, entries.fingerprint(status))

    def begin_staging(self) -> None:
        """We are about to write into the top of the base; note first whether others changed it."""
        self._top_is_known = not self._folder_is_younger("")

    def end_staging(self) -> None:
        if not self._top_is_known:
            return
        self._ours[""] = self._mark("")
        try:
            self._store.write(_OURS, self._ours)
        except OSError:
            pass  # the disk may be full, which is why nothing was staged

    def settle(
        self, rest: Manifest | None, commit: CommitPlan, written: Index, temporary: str, *, whole: bool,
        anew: Collection[str] = (),
    ) -> None:  # fmt: skip
        """After a commit: the layer holds only the rest, and lies over the base as it is now.

        No rest: an overlay is mounted over the upper directory, which must not be touched then.
        """
        self._set_folders({})
        if rest is not None:
            self.restore(rest, temporary)
        if whole:
            self._ours = {}
            self._opened = self._store.tick(_OPENED)
            self._since_ns = self._opened.wall_ns
            self._store.remove(_SINCE)
        else:
            touched = {*commit.now, *commit.target, *anew}
            concerned = touched | {parent(path) for path in touched}
            for path in [each for each in concerned if self._was_known(each, commit)]:
                self._ours[path] = self._mark(path, written.get(path) or commit.now.get(path))
            # Other names of a replaced file have a new ctime, and we do not know where those names are.
            files = (seen.fingerprint for seen in commit.now.values() if seen.entry.kind != entries.FOLDER)
            linked = [mark for mark in files if mark[5] > 1]
            self._ours |= {_by_inode(mark): list(mark[:3]) for mark in linked}
        self._store.write(_OURS, self._ours)
        self.remember()

    def _was_known(self, path: str, commit: CommitPlan) -> bool:
        """Whether a directory was as we knew it before the commit; a removal by others must not be forgotten."""
        seen = commit.now.get(path)
        if seen is None or seen.entry.kind != entries.FOLDER:
            return path != "" or self._top_is_known
        return not self._is_younger(path, seen.fingerprint)

    def _mark(self, path: str, seen: Seen | None = None) -> list[int]:
        """``seen``: as we left it. A program may have caused its directory to be closed to us."""
        try:
            status = self._base.status(path)
        except PermissionError:
            return list(seen.fingerprint) if seen else []
        return list(entries.fingerprint(status)) if status else []

    def close(self) -> None:
        self.live.close()


def _noted(rows: dict[str, Any]) -> dict[str, Noted]:
    """Earlier versions noted the inode only."""
    return {path: (row, None) if isinstance(row, int) else (row[0], row[1]) for path, row in rows.items()}


def _by_inode(mark: tuple[int, ...]) -> str:
    return f"//{mark[0]}"  # never a path


def settled(found: Index, begun: Moment) -> dict[str, Seen]:
    """The entries whose times are reliable from now on. A file that changed at the moment of the look, or during it,
    may have changed again after it was read, while the clock stood still."""
    return {path: seen for path, seen in found.items() if seen.fingerprint[3] < begun.wall_ns}


def count_changed(before: Manifest, after: Manifest) -> int:
    """How many paths differ, not counting directories where only the time differs."""
    paths = {*before, *after}
    plain = [path for path in paths if not all(m.get(path, _NONE).kind == entries.FOLDER for m in (before, after))]
    return sum(before.get(path) != after.get(path) for path in plain)


_NONE = Entry(kind="")
