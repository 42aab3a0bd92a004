"""What a layer changed, for people: kinds of changes, and diffs of text.

A folder counts as changed when its mode or attributes are, not when something in it is. Of a deleted folder
only its own path is told. Nothing of this decides what a commit does.
"""

from __future__ import annotations

import os

from ringfence.checkpoint import content
from ringfence.checkpoint.entry import DELETED, FILE, FOLDER, LINK, Entry, Manifest, ordered, parent
from ringfence.checkpoint.merge import hidden_above
from ringfence.checkpoint.scan import OF_BASE, Reading, Scan
from ringfence.model.outcome import Change, ChangeKind
from ringfence.model.record import replace

MAX_DIFF_BYTES = 1 << 20
MAX_CHANGES = 100_000


def changes(layer: Manifest, live: Scan, base: Scan) -> tuple[Change, ...]:
    """Sorted by path, folders before what is in them; the first hundred thousand."""
    found: dict[str, ChangeKind] = {}
    hidden: set[str] = set()
    for path in ordered(layer):
        entry = layer[path]
        seen = None if parent(path) in hidden else base.one(path, OF_BASE)
        below = seen.entry if seen else None
        if below is None or below.kind != FOLDER:
            hidden.add(path)
        if kind := _kind(path, entry, below, live, base):
            found[path] = kind
        if entry.opaque and below is not None and below.kind == FOLDER:
            found |= dict.fromkeys(_missing(path, layer, base), ChangeKind.DELETED)
    return tuple(Change(path=path, kind=found[path]) for path in ordered(found)[:MAX_CHANGES])


def _missing(folder: str, layer: Manifest, base: Scan) -> list[str]:
    """What an opaque folder hides: the highest paths only."""
    there = base.below(folder, OF_BASE)
    gone = {path for path in there if path not in layer}
    return [path for path in gone if parent(path) not in gone and _is_folder_in(layer, parent(path))]


def _is_folder_in(layer: Manifest, path: str) -> bool:
    return path in layer and layer[path].kind == FOLDER


def _kind(path: str, entry: Entry, below: Entry | None, live: Scan, base: Scan) -> ChangeKind | None:
    if below is None:
        return None if entry.kind == DELETED else ChangeKind.ADDED
    if entry.kind == DELETED:
        return ChangeKind.DELETED
    if entry.kind != below.kind:
        return ChangeKind.TYPE_CHANGED
    return None if _equal(path, entry, below, live, base) else ChangeKind.MODIFIED


def _equal(path: str, entry: Entry, below: Entry, live: Scan, base: Scan) -> bool:
    if _told(entry) != _told(below):
        return False
    if entry.kind != FILE or not entry.digest:
        return True
    try:
        one, other = (scan.one(path, Reading(content.digest)) for scan in (live, base))
    except PermissionError:
        return False
    return one is not None and other is not None and one.entry.digest == other.entry.digest


def _told(entry: Entry) -> Entry:
    """Only what counts as a change, content apart."""
    mtime_ns = 0 if entry.kind == FOLDER else entry.mtime_ns
    return replace(entry, digest="", twin="", opaque=False, copied=False, mtime_ns=mtime_ns)


def text_diff(path: str, layer: Manifest, live: Scan, base: Scan) -> str:
    """A unified diff of one file or link; one line that says why where there is none to show."""
    import difflib

    if path not in layer and not hidden_above(layer, path):
        return ""
    old, new = _text(path, base), _text(path, live) if path in layer else []
    for text in (old, new):
        if isinstance(text, str):
            return f"{path}: {text}\n"
    lines = difflib.unified_diff(list(old), list(new), f"a/{path}", f"b/{path}")
    return "".join(line if line.endswith("\n") else line + "\n\\ No newline at end of file\n" for line in lines)


def _text(path: str, scan: Scan) -> list[str] | str:
    """The lines, or why there are none to show."""
    seen = scan.one(path, OF_BASE)
    if seen is None or seen.entry.kind in (FOLDER, DELETED):
        return []
    if seen.entry.kind == LINK:
        return [seen.entry.target]
    if seen.entry.kind != FILE:
        return f"a {seen.entry.kind}"
    if seen.entry.size > MAX_DIFF_BYTES:
        return f"{seen.entry.size} bytes, too large to show"
    with os.fdopen(scan.tree.read(path), "rb") as file:
        raw = file.read(MAX_DIFF_BYTES)
    return "not text" if b"\0" in raw else raw.decode("utf-8", "backslashreplace").splitlines(keepends=True)
