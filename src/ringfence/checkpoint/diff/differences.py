"""What a layer changed, for people: which paths, and in which way. ``texts`` makes diffs of them.

A directory counts as changed if its mode or attributes changed, not if something in it did. A deleted directory is
reported by its own path only. Everything that a commit would carry over is reported. Nothing of this decides what a
commit does. """

from __future__ import annotations

import os

from ringfence.checkpoint import content
from ringfence.checkpoint.entry import DELETED, FILE, FOLDER, UNKNOWN, Entry, Manifest, ordered, parent
from ringfence.checkpoint.modes import Grant, Noted, grants
from ringfence.checkpoint.scan import OF_BASE, Reading, Scan
from ringfence.model.outcome import Change, ChangeKind, Changes
from ringfence.model.record import replace


class Below:
    """The base as it lies there."""

    def __init__(self, base: Scan, live: Scan, noted: Noted) -> None:
        self._base, self._live, self._noted = base, live, noted
        self._grant: Grant | None = None

    def mode(self, path: str, entry: Entry) -> int:
        """The mode that a commit would give it."""
        if self._grant is None:
            self._grant = grants(self._noted)
        return self._grant(path, entry, self.one(path))

    def one(self, path: str) -> Entry | None:
        try:
            seen = self._base.one(path, OF_BASE)
        except PermissionError:
            return None  # behind a directory of the base that is closed to us
        return seen.entry if seen else None

    def names(self, folder: str) -> list[str]:
        return list(self._base.below(folder, OF_BASE))

    def same_content(self, path: str, entry: Entry) -> bool:
        try:
            known = _digest_of(entry, path, self._live)
            other = self._base.one(path, Reading(content.digest))
        except PermissionError:
            return False
        return bool(known) and other is not None and known == other.entry.digest

    def are_one(self, path: str, twin: str) -> bool:
        """Whether both are names of one file."""
        one, other = map(self._base.tree.status, (path, twin))
        return one is not None and other is not None and os.path.samestat(one, other)

    def open(self, path: str) -> int:
        return self._base.tree.read(path)


def _digest_of(entry: Entry, path: str, live: Scan) -> str:
    """The digest of its content; if the layer was read without contents, it is read now, from the live layer."""
    if entry.digest != UNKNOWN:
        return entry.digest
    seen = live.one(path, Reading(content.digest))
    return seen.entry.digest if seen else ""


def changes(layer: Manifest, base: Below, *, complete: bool = True) -> Changes:
    """Sorted by path, directories before what is in them. ``complete``: nothing was left out of the layer."""
    found: dict[str, ChangeKind] = {}
    hidden: set[str] = set()
    for path in ordered(layer):
        entry = layer[path]
        below = None if parent(path) in hidden else base.one(path)
        if below is None or below.kind != FOLDER:
            hidden.add(path)
        if kind := change_of(path, layer, below, base):
            found[path] = kind
        if entry.opaque and below is not None and below.kind == FOLDER:
            found |= dict.fromkeys(_missing(path, layer, base), ChangeKind.DELETED)
    return Changes((Change(path=path, kind=found[path]) for path in ordered(found)), complete=complete)


def _missing(folder: str, layer: Manifest, base: Below) -> list[str]:
    """What an opaque directory hides: the highest paths only."""
    gone = {path for path in base.names(folder) if path not in layer}
    return [path for path in gone if parent(path) not in gone and _is_folder_in(layer, parent(path))]


def _is_folder_in(layer: Manifest, path: str) -> bool:
    return path in layer and layer[path].kind == FOLDER


def change_of(path: str, layer: Manifest, below: Entry | None, base: Below) -> ChangeKind | None:
    """How a path of the layer differs from what the base has there; None: it does not."""
    entry = layer[path]
    if below is None:
        return None if entry.kind == DELETED else ChangeKind.ADDED
    if entry.kind == DELETED:
        return ChangeKind.DELETED
    if entry.kind != below.kind:
        return ChangeKind.TYPE_CHANGED
    if _told(as_committed(path, layer, base)) != _told(below):
        return ChangeKind.MODIFIED
    if joins(path, layer, base):
        return ChangeKind.MODIFIED
    same = entry.kind != FILE or not entry.digest or base.same_content(path, entry)
    return None if same else ChangeKind.MODIFIED


def joins(path: str, layer: Manifest, base: Below) -> bool:
    """Whether a commit makes it a new hard link of another path: a write to one is then a write to both."""
    entry = layer[path]
    return entry.kind == FILE and entry.twin in layer and not base.are_one(path, entry.twin)


def as_committed(path: str, layer: Manifest, base: Below) -> Entry:
    """With the mode that a commit gives; all names of one file have that of the first."""
    entry = layer[path]
    first = entry.twin if entry.twin in layer else path
    return replace(entry, mode=base.mode(first, layer[first]))


def _told(entry: Entry) -> Entry:
    """Only what counts as a change, content apart."""
    mtime_ns = 0 if entry.kind == FOLDER else entry.mtime_ns
    return replace(entry, digest="", twin="", opaque=False, copied=False, mtime_ns=mtime_ns)
