"""What a layer changed, for people: which paths, and in which way. ``texts`` makes diffs of them.

A folder counts as changed when its mode or attributes are, not when something in it is. Of a deleted folder
only its own path is told. All that a commit would carry over is told. Nothing of this decides what a commit does.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from ringfence.checkpoint import content
from ringfence.checkpoint.entry import DELETED, FILE, FOLDER, Entry, Manifest, ordered, parent
from ringfence.checkpoint.modes import callers_umask, granted
from ringfence.checkpoint.scan import OF_BASE, Reading, Scan
from ringfence.model.outcome import Change, ChangeKind, Changes
from ringfence.model.record import replace


class TreeBelow:
    """The base as it lies there."""

    def __init__(self, base: Scan, live: Scan) -> None:
        self._base, self._live = base, live
        self._umask: int | None = None

    def mode(self, entry: Entry, below: Entry | None) -> int:
        """What a commit would make of its mode."""
        if self._umask is None:
            self._umask = callers_umask()
        return granted(entry, below, self._umask)

    def one(self, path: str) -> Entry | None:
        try:
            seen = self._base.one(path, OF_BASE)
        except PermissionError:
            return None  # behind a folder of the base that is closed to us
        return seen.entry if seen else None

    def names(self, folder: str) -> list[str]:
        return list(self._base.below(folder, OF_BASE))

    def same_content(self, path: str) -> bool:
        try:
            one, other = (scan.one(path, Reading(content.digest)) for scan in (self._live, self._base))
        except PermissionError:
            return False
        return one is not None and other is not None and one.entry.digest == other.entry.digest

    def are_one(self, path: str, twin: str) -> bool:
        """Whether both are names of one file."""
        one, other = map(self._base.tree.status, (path, twin))
        return one is not None and other is not None and os.path.samestat(one, other)

    def open(self, path: str) -> int:
        return self._base.tree.read(path)


class ManifestBelow:
    """The base as it was, its contents in the store: where the program works in the base itself."""

    def __init__(self, manifest: Callable[[], Manifest], open_content: Callable[[str], int], live: Scan) -> None:
        self._manifest, self._open, self._live = manifest, open_content, live

    def mode(self, entry: Entry, below: Entry | None) -> int:
        """The file is in the base already, with the mode that it has."""
        return entry.mode

    def one(self, path: str) -> Entry | None:
        return self._manifest().get(path)

    def names(self, folder: str) -> list[str]:
        return [path for path in self._manifest() if path.startswith(folder + "/")]

    def same_content(self, path: str) -> bool:
        seen = self._live.one(path, Reading(content.digest))
        return seen is not None and seen.entry.digest == self._manifest()[path].digest

    def are_one(self, path: str, twin: str) -> bool:
        """Whether both were names of one file."""
        known = self._manifest()
        return path in known and (known[path].twin or path) == (known[twin].twin or twin if twin in known else "")

    def open(self, path: str) -> int:
        return self._open(self._manifest()[path].digest)


Below = TreeBelow | ManifestBelow


def changes(layer: Manifest, base: Below, *, complete: bool = True) -> Changes:
    """Sorted by path, folders before what is in them. ``complete``: nothing was left out of the layer."""
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
    """What an opaque folder hides: the highest paths only."""
    gone = {path for path in base.names(folder) if path not in layer}
    return [path for path in gone if parent(path) not in gone and _is_folder_in(layer, parent(path))]


def _is_folder_in(layer: Manifest, path: str) -> bool:
    return path in layer and layer[path].kind == FOLDER


def change_of(path: str, layer: Manifest, below: Entry | None, base: Below) -> ChangeKind | None:
    """In which way a path of the layer differs from what the base has there; None: in none."""
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
    same = entry.kind != FILE or not entry.digest or base.same_content(path)
    return None if same else ChangeKind.MODIFIED


def joins(path: str, layer: Manifest, base: Below) -> bool:
    """Whether a commit makes it one file with another path, which it was not: who writes one then writes both."""
    entry = layer[path]
    return entry.kind == FILE and entry.twin in layer and not base.are_one(path, entry.twin)


def as_committed(path: str, layer: Manifest, base: Below) -> Entry:
    """With the mode that a commit gives; all names of one file have that of the first."""
    entry = layer[path]
    first = entry.twin if entry.twin in layer else path
    return replace(entry, mode=base.mode(layer[first], base.one(first)))


def _told(entry: Entry) -> Entry:
    """Only what counts as a change, content apart."""
    mtime_ns = 0 if entry.kind == FOLDER else entry.mtime_ns
    return replace(entry, digest="", twin="", opaque=False, copied=False, mtime_ns=mtime_ns)
