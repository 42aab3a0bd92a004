"""A layer for hosts without an overlay: a working copy of the base, and what is known of both.

The copy shares bytes with the base where the file system can. Reading looks at every file's status, and
opens only those that changed.
"""

from __future__ import annotations

import stat
from _collections_abc import Collection

from ringfence.checkpoint import merge
from ringfence.checkpoint.apply import Writer, new_name
from ringfence.checkpoint.commit.commit_plan import CommitPlan
from ringfence.checkpoint.entry import (
    FILE,
    FOLDER,
    Entry,
    Index,
    Manifest,
    Seen,
    fingerprint,
    index_rows,
    of_index,
    replaceable,
    shown,
)
from ringfence.checkpoint.overlay import count_changed, settled
from ringfence.checkpoint.scan import MAX_ENTRIES, OF_BASE, UNREAD, Reading, Scan
from ringfence.checkpoint.store import Store
from ringfence.checkpoint.tree import Tree
from ringfence.errors import ConflictError
from ringfence.model.record import replace

_BASE, _INDEX, _NEWER, _WORK = "base", "index", "newer", "work"


class Snapshot:
    """A tree and the base that it was made from."""

    def __init__(self, base: Tree, store: Store, *, hidden: frozenset[str] = frozenset()) -> None:
        self._tree = base
        self._store = store
        store.tree.make(_WORK)
        self.live = store.tree.below(_WORK)
        self.scan = Scan(self.live, without=hidden)
        self._base_scan = Scan(base, without=hidden, ours=False)
        self._base: dict[str, Seen] = {}
        self._index: dict[str, Seen] = {}
        self._written: dict[str, Seen] = {}
        if store.holds(_BASE):
            self._base = store.index(_BASE)
            self._written = store.index(_INDEX)
            self._index = {**self._written, **store.index(_NEWER)}
        else:
            self._begin()

    def _begin(self) -> None:
        """Starts again from the beginning if it was broken off: the base's manifest is written last."""
        self._base = self._base_scan.below("", OF_BASE)
        self.restore({}, new_name())
        self._store.tick("read")
        self._written = dict(self._index)
        self._store.write(_INDEX, index_rows(self._written))
        self._store.write(_BASE, index_rows(self._base))

    def _below(self) -> dict[str, Entry]:
        return of_index(self._base)

    def base_mode(self, path: str) -> int | None:
        known = self._base.get(path)
        same = known is not None and stat.S_IMODE(known.fingerprint[4]) == known.entry.mode
        return known.entry.mode if known is not None and same else None  # else a commit gave the base fewer bits

    def leave_out(self, paths: frozenset[str]) -> None:
        for scan in (self.scan, self._base_scan):
            scan.leave_out(paths)
        self._base = {path: seen for path, seen in self._base.items() if not merge.is_below(path, paths)}

    def read(self, how: Reading) -> dict[str, Entry]:
        """The changes as they are now."""
        found = self._look(how)
        base = self._below()
        if self.scan.cut_short:  # a path that was not looked at is not deleted
            base = {path: base[path] for path in base if path in found}
        layer = merge.delta(base, of_index(found))
        for twin in {entry.twin for entry in layer.values() if entry.twin} - layer.keys():
            # The first name of a file must be in the layer too, or the others would have nothing to join.
            seen = self.scan.one(twin, how)
            if seen is not None:
                layer[twin] = seen.entry
        return layer

    def _look(self, how: Reading) -> dict[str, Seen]:
        begun = self._store.now()
        most = len(self._base) + MAX_ENTRIES  # it is the whole tree, and the base's own part is no program's mischief
        found = self.scan.below("", how, self._index, cut=how is UNREAD, most=most)
        self._store.tick("read")
        self._index = settled(found, begun)
        return found

    def restore(self, layer: Manifest, temporary: str) -> int:
        """Make the working copy match the layer over the base; return how many paths were written or removed."""
        target = merge.view(self._below(), layer)
        now = self.scan.below("", self.scan.unread(), self._index, cut=True)
        before = of_index(replaceable(now))
        written = Writer(self.live, self._source, temporary).apply(replaceable(now), target)
        kept = {path: seen for path, seen in now.items() if target.get(path) == seen.entry}
        self._index = {**kept, **written}
        self._store.tick("read")
        return count_changed(before, target)

    def _source(self, path: str, entry: Entry) -> int:
        if entry.digest:
            return self._store.open(entry.digest)
        status = self._tree.status(path)
        if status is None or self._differs(self._base[path].fingerprint, fingerprint(status)):
            raise ConflictError(f"{shown(path)} of the base was changed by somebody else", paths=(path,))
        return self._tree.read(path)

    def remember(self) -> None:
        """Store only what differs from the beginning: the cost is that of the changes, not of the whole tree."""
        newer = {path: seen for path, seen in self._index.items()
                 if seen.entry.kind == FILE and self._written.get(path) is not seen}  # fmt: skip
        self._store.write(_NEWER, index_rows(newer))

    def give_to(self, owner: tuple[int, int]) -> None:
        """Give the working copy to these ids. That is not a change, and what was known of a file stays known: no box
        may work on it meanwhile."""
        paths = [*self.scan.below("", UNREAD, self._index, cut=True)]
        for path in ("", *paths):
            before = self.live.status(path)
            if before is None or (before.st_uid, before.st_gid) == owner:
                continue
            self.live.give(path, owner, before.st_mode)
            after, known = self.live.status(path), self._index.get(path)
            if after is not None and known is not None and known.fingerprint == fingerprint(before):
                self._index[path] = Seen(entry=known.entry, fingerprint=fingerprint(after))
        self._store.tick("read")
        self.remember()

    def foreign(self, path: str, seen: Seen | None, entry: Entry | None) -> bool:
        """Whether somebody else changed the base here since the copy was made."""
        known = self._base.get(path)
        if seen is not None and seen.entry.kind == FOLDER:
            return False  # its contents tell
        if seen is None or known is None:
            return seen is not known
        return self._differs(known.fingerprint, seen.fingerprint)

    @staticmethod
    def _differs(known: tuple[int, ...], now: tuple[int, ...]) -> bool:
        """Inode, size, mtime, mode; the ctime too, unless another name of the file explains it."""
        links_changed = known[5] != now[5]
        return (known[:3], known[4]) != (now[:3], now[4]) or (known[3] != now[3] and not links_changed)

    def begin_staging(self) -> None:
        """The top directory of a copy is not compared."""

    end_staging = begin_staging

    def settle(
        self, rest: Manifest | None, commit: CommitPlan, written: Index, temporary: str, *, whole: bool,
        anew: Collection[str] = (),
    ) -> None:  # fmt: skip
        """After a commit: compare the copy with what the base holds now."""
        for path in {*commit.now, *commit.target}:
            self._settle_one(path, commit.target.get(path), written.get(path) or commit.now.get(path))
        for path in anew:
            self._see_anew(path)
        if anew and rest is not None:
            self.restore(rest, temporary)
        self._store.tick("read")
        self._store.write(_BASE, index_rows(self._base))
        self.remember()

    def _see_anew(self, path: str) -> None:
        """The base and the copy differ there: look at the base again."""
        seen = self._base_scan.one(path, OF_BASE)
        if seen is None:
            self._base.pop(path, None)
        else:
            self._base[path] = seen

    def _settle_one(self, path: str, entry: Entry | None, seen: Seen | None) -> None:
        """``seen``: as we left it. A program may have caused its directory to be closed to us."""
        try:
            status = self._tree.status(path)
            mark = fingerprint(status) if status is not None else None
        except PermissionError:
            mark = seen.fingerprint if seen is not None else None
        if entry is None or mark is None:
            self._base.pop(path, None)
            return
        held = replace(entry, digest="") if entry.kind == FILE else entry
        known = self._index.get(path)
        if known is not None and replace(known.entry, mode=entry.mode) == entry:
            held = replace(held, mode=known.entry.mode)  # the copy's mode: a commit may have given the base fewer bits
            self._index[path] = Seen(entry=held, fingerprint=known.fingerprint)
        self._base[path] = Seen(entry=held, fingerprint=mark)

    def close(self) -> None:
        self.live.close()
