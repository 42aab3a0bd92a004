"""What a layer changed, as text: git's headers and unified diffs of files and links, one line about anything else.

Each part begins with a word of ours and lines of a file with a sign, so no name and no content can pass for another
part. Kinds and modes are those that a commit gives. Nothing of this decides what a commit does.
"""

from __future__ import annotations

import os
from _collections_abc import Callable, Iterable, Iterator

from ringfence.checkpoint.diff.differences import Below, as_committed, change_of, joins
from ringfence.checkpoint.entry import DELETED, FILE, LINK, SPECIAL, Entry, Manifest
from ringfence.checkpoint.merge import hidden_above
from ringfence.model.outcome import Changes
from ringfence.model.paths import quoted, within

MAX_DIFF_BYTES = 1 << 20
MAX_TEXT_CHARS = 64 << 20
"""The size of one text about all changes, which is held in the caller's memory."""
CUT = "not shown: what is too deep or too much to look through; a commit refuses it too\n"
_NOTHING = "/dev/null"
_EXACT = ("utf-8", "surrogateescape")
"""How bytes that are not text are compared. If they were spelled out first, they would equal their own spelling."""
_TOO_LARGE = "{} bytes, too large to show"
_SPECIAL = "not a file, directory or link, so a commit leaves it"


class Texts:
    """Makes the diffs of one layer, as it was read."""

    def __init__(self, layer: Manifest, open_new: Callable[[str], int], base: Below, title: str) -> None:
        self._layer, self._open_new, self._base, self._title = layer, open_new, base, title

    def all(self, told: Changes, paths: tuple[str, ...] | None, most: int) -> Iterator[str]:
        """Part by part, for these paths and what is below; after this many characters, changes are only named."""
        for path in _wanted([change.path for change in told], paths):
            text = self._one(path, brief=most < 0)
            most -= len(text)
            yield text
        if not told.complete:
            yield CUT

    def _one(self, path: str, *, brief: bool) -> str:
        """What changed at a path; empty: nothing."""
        if path not in self._layer and not hidden_above(self._layer, path):
            return ""
        old, new = self._base.one(path), self._new(path)
        apart = old is not None and new is not None and old.kind != new.kind
        pairs = ((old, None), (None, new)) if apart else ((old, new),)
        text = "".join(self._part(path, *pair, brief=brief) for pair in pairs) + self._joined(path)
        text += _attributes(self._title + path, None if apart else old, new, brief=brief)
        return text or self._the_rest(path, old, new)

    def _new(self, path: str) -> Entry | None:
        entry = self._layer.get(path)
        return None if entry is None or entry.kind == DELETED else as_committed(path, self._layer, self._base)

    def _part(self, path: str, old: Entry | None, new: Entry | None, *, brief: bool) -> str:
        """Both of one kind, or one of them absent."""
        entry = new or old
        if entry is None:
            return ""
        if entry.kind not in (FILE, LINK):
            return _line(self._title + path, old, new, _SPECIAL if entry.kind in SPECIAL else "")
        if brief:
            return _line(self._title + path, old, new, "not shown: this is too long already")
        texts = self._text(old, lambda: self._base.open(path)), self._text(new, lambda: self._open_new(path))
        for text in texts:
            if isinstance(text, str):
                return _line(self._title + path, old, new, text)
        return _diff(self._title + path, old, new, *texts)  # type: ignore[arg-type]

    def _joined(self, path: str) -> str:
        if path not in self._layer or not joins(path, self._layer, self._base):
            return ""
        names = (quoted(self._title + each) for each in (path, self._layer[path].twin))
        return "file {}: becomes one file with {}, by a hard link\n".format(*names)

    def _the_rest(self, path: str, old: Entry | None, new: Entry | None) -> str:
        if new is None or not change_of(path, self._layer, old, self._base):
            return ""
        return f"{new.kind} {quoted(self._title + path)}: modified, but only its times\n"

    @staticmethod
    def _text(entry: Entry | None, open_content: Callable[[], int]) -> list[str] | str:
        """The lines, or why there are none to show."""
        if entry is None:
            return []
        if entry.kind == LINK:
            return _lines(entry.target)
        if entry.size > MAX_DIFF_BYTES:
            return _TOO_LARGE.format(entry.size)
        try:
            descriptor = open_content()
        except PermissionError:
            return "not readable by this user"
        with os.fdopen(descriptor, "rb") as file:
            raw = file.read(MAX_DIFF_BYTES + 1)
        if len(raw) > MAX_DIFF_BYTES:  # it was made longer after its size was read
            return _TOO_LARGE.format(f"more than {MAX_DIFF_BYTES}")
        return "not text" if b"\0" in raw else _lines(raw.decode(*_EXACT))


def _wanted(told: list[str], tops: tuple[str, ...] | None) -> Iterable[str]:
    """A path without an entry may lie below a deleted directory, since only the top of that is reported."""
    if tops is None:
        return told
    found = [[path for path in told if within(path, top)] or [top] for top in tops]
    return dict.fromkeys(path for each in found for path in each)


def _diff(name: str, old: Entry | None, new: Entry | None, old_lines: list[str], new_lines: list[str]) -> str:
    from ringfence.checkpoint.diff.unified_diff import unified

    before, after = (quoted(f"{side}/{name}") for side in "ab")
    shown = (before if old else _NOTHING, after if new else _NOTHING)
    rows = unified(old_lines, new_lines, *shown)
    body = "".join(row if row.endswith("\n") else row + "\n\\ No newline at end of file\n" for row in rows)
    body = body.encode(*_EXACT).decode("utf-8", "backslashreplace")
    modes = _modes(old, new)
    return f"diff --git {before} {after}\n{modes}{body}" if modes or body else ""


def _modes(old: Entry | None, new: Entry | None) -> str:
    """As git tells them; empty where nothing of it changed."""
    if old is None or new is None:
        return f"new file mode {_git_mode(new)}\n" if new else f"deleted file mode {_git_mode(old)}\n" if old else ""
    before, after = _git_mode(old), _git_mode(new)
    return f"old mode {before}\nnew mode {after}\n" if before != after else ""


def _git_mode(entry: Entry) -> str:
    return "120000" if entry.kind == LINK else f"{0o100000 | entry.mode:06o}"


def _line(name: str, old: Entry | None, new: Entry | None, why: str) -> str:
    """About what has no lines: ``directory d: added, mode 0755``."""
    entry = new or old
    if entry is None or (old and new and old.mode == new.mode and not why):
        return ""
    verb = "modified" if old and new else "added" if new else "deleted"
    modes = dict.fromkeys(f"{each.mode:04o}" for each in (old, new) if each)
    mode = f", mode {' -> '.join(modes)}" if new and entry.kind != LINK else ""
    return f"{entry.kind} {quoted(name)}: {verb}{mode}{f', {why}' if why else ''}\n"


def _attributes(name: str, old: Entry | None, new: Entry | None, *, brief: bool) -> str:
    """Which attributes a commit carries over, a line for each: it ends with the name, which a program chose, so nothing
    in that can pass for another one. ``brief``: only how many. Those of what is deleted go with it."""
    if new is None:
        return ""
    before, after = dict(old.attributes if old else ()), dict(new.attributes)
    verbs = {each: "set" if each not in before else "changed" if each in after else "removed"
             for each in sorted(before.keys() | after.keys()) if before.get(each) != after.get(each)}  # fmt: skip
    start = f"{new.kind} {quoted(name)}: "
    if brief and verbs:
        return f"{start}other attributes, {len(verbs)} of them, not shown: this is too long already\n"
    return "".join(f"{start}attribute {verb}: {quoted(each)}\n" for each, verb in verbs.items())


def _lines(text: str) -> list[str]:
    """As ``diff`` and ``patch`` see them; Python would end lines at form feeds and the like too."""
    *whole, rest = text.split("\n")
    return [*(line + "\n" for line in whole), *([rest] if rest else [])]
