"""What a layer changed, for people: kinds of changes, and diffs of text.

A folder counts as changed when its mode or attributes are, not when something in it is. Of a deleted folder
only its own path is told. Nothing of this decides what a commit does.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from ringfence.checkpoint import content
from ringfence.checkpoint.entry import DELETED, FILE, FOLDER, LINK, Entry, Manifest, ordered, parent
from ringfence.checkpoint.merge import hidden_above
from ringfence.checkpoint.scan import OF_BASE, Reading, Scan
from ringfence.model.outcome import Change, ChangeKind
from ringfence.model.record import replace

MAX_DIFF_BYTES = 1 << 20
MAX_CHANGES = 100_000


class TreeBelow:
    """The base as it lies there."""

    def __init__(self, base: Scan, live: Scan) -> None:
        self._base, self._live = base, live

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

    def open(self, path: str) -> int:
        return self._base.tree.read(path)


class ManifestBelow:
    """The base as it was, its contents in the store: where the program works in the base itself."""

    def __init__(self, manifest: Callable[[], Manifest], open_content: Callable[[str], int], live: Scan) -> None:
        self._manifest, self._open, self._live = manifest, open_content, live

    def one(self, path: str) -> Entry | None:
        return self._manifest().get(path)

    def names(self, folder: str) -> list[str]:
        return [path for path in self._manifest() if path.startswith(folder + "/")]

    def same_content(self, path: str) -> bool:
        seen = self._live.one(path, Reading(content.digest))
        return seen is not None and seen.entry.digest == self._manifest()[path].digest

    def open(self, path: str) -> int:
        return self._open(self._manifest()[path].digest)


Below = TreeBelow | ManifestBelow


def changes(layer: Manifest, base: Below) -> tuple[Change, ...]:
    """Sorted by path, folders before what is in them; the first hundred thousand."""
    found: dict[str, ChangeKind] = {}
    hidden: set[str] = set()
    for path in ordered(layer):
        entry = layer[path]
        below = None if parent(path) in hidden else base.one(path)
        if below is None or below.kind != FOLDER:
            hidden.add(path)
        if kind := _kind(path, entry, below, base):
            found[path] = kind
        if entry.opaque and below is not None and below.kind == FOLDER:
            found |= dict.fromkeys(_missing(path, layer, base), ChangeKind.DELETED)
    return tuple(Change(path=path, kind=found[path]) for path in ordered(found)[:MAX_CHANGES])


def _missing(folder: str, layer: Manifest, base: Below) -> list[str]:
    """What an opaque folder hides: the highest paths only."""
    gone = {path for path in base.names(folder) if path not in layer}
    return [path for path in gone if parent(path) not in gone and _is_folder_in(layer, parent(path))]


def _is_folder_in(layer: Manifest, path: str) -> bool:
    return path in layer and layer[path].kind == FOLDER


def _kind(path: str, entry: Entry, below: Entry | None, base: Below) -> ChangeKind | None:
    if below is None:
        return None if entry.kind == DELETED else ChangeKind.ADDED
    if entry.kind == DELETED:
        return ChangeKind.DELETED
    if entry.kind != below.kind:
        return ChangeKind.TYPE_CHANGED
    if _told(entry) != _told(below):
        return ChangeKind.MODIFIED
    same = entry.kind != FILE or not entry.digest or base.same_content(path)
    return None if same else ChangeKind.MODIFIED


def _told(entry: Entry) -> Entry:
    """Only what counts as a change, content apart."""
    mtime_ns = 0 if entry.kind == FOLDER else entry.mtime_ns
    return replace(entry, digest="", twin="", opaque=False, copied=False, mtime_ns=mtime_ns)


def told_diff(change: Change, layer: Manifest, live: Scan, base: Below, title: str = "") -> str:
    """The same for something that is known to have changed: it is at least named."""
    text = text_diff(change.path, layer, live, base, title)
    return text or f"{_quoted(title + change.path)}: {change.kind}\n"


def text_diff(path: str, layer: Manifest, live: Scan, base: Below, title: str = "") -> str:
    """A unified diff of one file or link; one line that says why where there is none to show."""
    from ringfence.checkpoint.unified import unified

    if path not in layer and not hidden_above(layer, path):
        return ""
    old = _text(base.one(path), lambda: base.open(path))
    new = _text(layer.get(path), lambda: live.open(path))
    for text in (old, new):
        if isinstance(text, str):
            return f"{_quoted(title + path)}: {text}\n"
    lines = unified(list(old), list(new), _quoted(f"a/{title}{path}"), _quoted(f"b/{title}{path}"))
    return "".join(line if line.endswith("\n") else line + "\n\\ No newline at end of file\n" for line in lines)


def _text(entry: Entry | None, open_content: Callable[[], int]) -> list[str] | str:
    """The lines, or why there are none to show."""
    if entry is None or entry.kind in (FOLDER, DELETED):
        return []
    if entry.kind == LINK:
        return _lines(entry.target)
    if entry.kind != FILE:
        return f"a {entry.kind}"
    if entry.size > MAX_DIFF_BYTES:
        return f"{entry.size} bytes, too large to show"
    try:
        descriptor = open_content()
    except PermissionError:
        return "not ours to read"
    with os.fdopen(descriptor, "rb") as file:
        raw = file.read(MAX_DIFF_BYTES)
    return "not text" if b"\0" in raw else _lines(raw.decode("utf-8", "backslashreplace"))


def _lines(text: str) -> list[str]:
    """As ``diff`` and ``patch`` see them; Python would end lines at form feeds and the like too."""
    *whole, rest = text.split("\n")
    return [*(line + "\n" for line in whole), *([rest] if rest else [])]


def _quoted(name: str) -> str:
    """As git writes names that have line ends and the like in them: a program could write a whole diff into one."""
    if name.isprintable() and not set('"\\') & set(name):
        return name
    spelled = (chr(each) if 32 <= each < 127 else f"\\{each:03o}" for each in os.fsencode(name))
    return '"' + "".join(f"\\{each}" if each in ('"', "\\") else each for each in spelled) + '"'
