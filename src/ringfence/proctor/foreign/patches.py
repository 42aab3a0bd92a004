"""Reads patches in git's form and applies them to bytes, strictly. A patch may be hostile.

What it names stays in the repository and out of ``.git``; links, submodules, other modes and binary contents are
refused by name. Run as a program (``patches.py PATCH FOLDER``) it applies one in a sandbox. Stands alone: standard
library, none of our modules.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Mapping, Sequence

MAX_BYTES = 64 << 20
MAX_COMPARED = 20_000_000
"""How many lines of one file are compared with lines of its hunks: in a hostile patch they could all be alike."""
PLAIN, EXECUTABLE = "100644", "100755"
_MODES = {PLAIN: PLAIN, EXECUTABLE: EXECUTABLE, "100664": PLAIN}
_REFUSED = {"120000": "a symbolic link", "160000": "a submodule", "040000": "a directory"}
_NO_LINE_END = b"\\ "
_ESCAPES = {ord(letter): byte for letter, byte in zip('abtnvfr"\\', b'\a\b\t\n\v\f\r"\\', strict=True)}
_IGNORED = (b"index ", b"similarity index ", b"dissimilarity index ")


class PatchError(ValueError):
    """What is wrong with a patch, in one sentence that names the file or the line."""


class Hunk:
    """Adjacent lines, and what they become."""

    def __init__(self, start: int, line: int) -> None:
        self.start, self.line = start, line
        """Where it belongs in the old file, and where it stands in the patch; both from 1."""
        self.rows: list[tuple[int, bytes]] = []
        """Each with its sign: a blank, ``-`` or ``+``."""

    def lines(self, signs: bytes) -> list[bytes]:
        """Those with one of the signs: ``b" -"`` were there before, ``b" +"`` are there afterwards."""
        return [text for sign, text in self.rows if sign in signs]


class FilePatch:
    """What a patch does to one file."""

    def __init__(self) -> None:
        self.old = self.new = ""
        """Its path before and after; empty: there is none."""
        self.mode = ""
        """What it becomes; empty: as it was."""
        self.copied = False
        self.hunks: list[Hunk] = []

    @property
    def path(self) -> str:
        return self.new or self.old


class Content:
    """A file as a patch leaves it."""

    def __init__(self, data: bytes, executable: bool = False) -> None:
        self.data, self.executable = data, executable


Read = Callable[[str], "Content | None"]
"""Returns what a repository has at a path; None: nothing. PatchError where that is no file."""


# ---- reading


def read_patch(text: str | bytes) -> list[FilePatch]:
    """Return what a patch does, file by file; text around the diffs is ignored, as git does."""
    data = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
    if len(data) > MAX_BYTES:
        raise PatchError(f"a patch of more than {MAX_BYTES} bytes")
    lines = data.split(b"\n")
    if lines and not lines[-1]:
        lines.pop()
    return _Reader(lines).files()


class _Reader:
    """The lines of a patch, and how far they are read."""

    def __init__(self, lines: Sequence[bytes]) -> None:
        self._lines, self._at = lines, 0

    def _line(self) -> bytes:
        return self._lines[self._at] if self._at < len(self._lines) else b""

    def files(self) -> list[FilePatch]:
        found = []
        while self._at < len(self._lines):
            if self._line().startswith(b"diff --git "):
                found.append(self._file(self._extended()))
            elif self._is_plain_head():
                found.append(self._file(FilePatch()))
            elif self._line().startswith(b"@@ -"):
                raise PatchError(f"line {self._at + 1}: a hunk without a file name")
            else:
                self._at += 1
        return found

    def _is_plain_head(self) -> bool:
        following = self._lines[self._at + 1 : self._at + 2]
        return self._line().startswith(b"--- ") and bool(following) and following[0].startswith(b"+++ ")

    def _file(self, made: FilePatch) -> FilePatch:
        """The rest, from its ``---`` on."""
        if self._is_plain_head():
            old, new = (_name(self._lines[self._at + n][4:], self._at + n + 1) for n in (0, 1))
            if made.path and (old or made.old, new or made.new) != (made.old, made.new):
                raise PatchError(f"line {self._at + 1}: two names for one file, {made.path!r} and {new or old!r}")
            made.old, made.new = old, new
            self._at += 2
            while self._line().startswith(b"@@ -"):
                made.hunks.append(self._hunk())
        if not made.path:
            raise PatchError(f"line {self._at}: a file without a name")
        for path in filter(None, (made.old, made.new)):
            check_path(path)
        return made

    def _extended(self) -> FilePatch:
        """Git's own lines between ``diff --git`` and ``---``."""
        made, first = FilePatch(), self._line()[len(b"diff --git ") :]
        made.old = made.new = _same_name(first)
        self._at += 1
        while self._at < len(self._lines) and self._take(made, self._line()):
            self._at += 1
        return made

    def _take(self, made: FilePatch, line: bytes) -> bool:
        """Whether it is such a line."""
        if line.startswith((b"rename from ", b"rename to ", b"copy from ", b"copy to ")):
            word, side, name = line.split(b" ", 2)
            setattr(made, "old" if side == b"from" else "new", _unquoted(name, self._at + 1))
            made.copied |= word == b"copy"
            return True
        if line.startswith((b"GIT binary patch", b"Binary files ")):
            raise PatchError(f"{made.path or 'a file'}: a binary patch is not applied")
        return self._take_mode(made, line) or line.startswith(_IGNORED)

    def _take_mode(self, made: FilePatch, line: bytes) -> bool:
        words = line.split()
        if line.startswith(b"index ") and len(words) == 3:
            _mode(words[2], made.path)
        elif line.startswith((b"new file mode ", b"deleted file mode ", b"old mode ", b"new mode ")):
            mode = _mode(words[-1], made.path)
            made.mode = mode if words[0] == b"new" else made.mode
            if words[1] == b"file":
                made.old, made.new = ("", made.new) if words[0] == b"new" else (made.old, "")
        else:
            return False
        return True

    def _hunk(self) -> Hunk:
        (start, old_count), (_, new_count) = _ranges(self._line(), self._at + 1)
        hunk = Hunk(start, self._at + 1)
        self._at += 1
        while old_count or new_count:
            if self._at >= len(self._lines):
                raise PatchError(f"line {hunk.line}: a hunk is cut short")
            line = self._line() or b" "
            sign = line[0]
            if line.startswith(_NO_LINE_END):
                self._end_without_newline(hunk)
                continue
            if sign not in b" -+" or (sign != ord("+") and not old_count) or (sign != ord("-") and not new_count):
                raise PatchError(f"line {self._at + 1}: does not match its hunk's header")
            old_count, new_count = old_count - (sign != ord("+")), new_count - (sign != ord("-"))
            hunk.rows.append((sign, line[1:] + b"\n"))
            self._at += 1
        if self._line().startswith(_NO_LINE_END):
            self._end_without_newline(hunk)
        return hunk

    def _end_without_newline(self, hunk: Hunk) -> None:
        """``\\ No newline at end of file``: of the line before."""
        if not hunk.rows:
            raise PatchError(f"line {self._at + 1}: a no-newline mark without a line before it")
        sign, text = hunk.rows[-1]
        hunk.rows[-1] = (sign, text.removesuffix(b"\n"))
        self._at += 1


def _ranges(line: bytes, number: int) -> tuple[tuple[int, int], tuple[int, int]]:
    words = line.split(b" ")
    try:
        if words[0] != b"@@" or words[3].rstrip(b"\r") != b"@@" or words[1][:1] != b"-" or words[2][:1] != b"+":
            raise ValueError
        return _range(words[1][1:]), _range(words[2][1:])
    except (ValueError, IndexError):
        raise PatchError(f"line {number}: {line[:80].decode('utf-8', 'replace')!r} does not begin a hunk") from None


def _range(text: bytes) -> tuple[int, int]:
    """``3,7``, or ``3`` for one line."""
    start, comma, count = text.partition(b",")
    if not (start.isdigit() and (count.isdigit() or not comma)) or max(len(start), len(count)) > 9:
        raise ValueError
    return int(start), int(count) if comma else 1


def _mode(text: bytes, path: str) -> str:
    mode = text.decode("ascii", "replace")
    if mode not in _MODES:
        raise PatchError(f"{path or 'a file'}: {_REFUSED.get(mode, f'mode {mode!r}')} is not applied")
    return _MODES[mode]


def _same_name(rest: bytes) -> str:
    """The name of ``a/NAME b/NAME``; empty: they are two, and other lines say which."""
    if rest.startswith(b'"'):
        end = rest.find(b'" "', 1)
        halves = (rest[: end + 1], rest[end + 2 :]) if end > 0 else (rest, b"")
    else:
        half = len(rest) // 2
        halves = rest[:half], rest[half + 1 :]
    names = [_unquoted(half, 0).partition("/")[2] for half in halves]
    return names[0] if names[0] == names[1] else ""


def _name(text: bytes, number: int) -> str:
    """After ``---`` or ``+++``: the path without its first directory, or nothing for ``/dev/null``."""
    if text.endswith(b"\r"):
        raise PatchError(f"line {number}: the patch itself has lines that end in CR LF")
    path = _unquoted(text.partition(b"\t")[0] if not text.startswith(b'"') else text, number)
    if path == "/dev/null":
        return ""
    first, slash, rest = path.partition("/")
    if not slash or not rest or not first:
        raise PatchError(f"line {number}: {path!r} is not a path of the form a/NAME")
    return rest


def _unquoted(text: bytes, number: int) -> str:
    """A name as git writes it: in quotes where it has letters beyond ASCII."""
    if not text.startswith(b'"'):
        return os.fsdecode(text)
    made, at = bytearray(), 1
    while at < len(text) and text[at] != ord('"'):
        if text[at] != ord("\\"):
            made.append(text[at])
            at += 1
        elif _is_octal(octal := text[at + 1 : at + 4]):
            made.append(int(octal, 8))
            at += 4
        elif at + 1 < len(text) and text[at + 1] in _ESCAPES:
            made.append(_ESCAPES[text[at + 1]])
            at += 2
        else:
            raise PatchError(f"line {number}: a quoted name in a form that git does not write")
    return os.fsdecode(bytes(made))


def _is_octal(digits: bytes) -> bool:
    return len(digits) == 3 and digits[0] in b"0123" and all(digit in b"01234567" for digit in digits)


def check_path(path: str) -> None:
    """PatchError of a name that leaves the repository, or is git's own."""
    parts = path.split("/")
    if "\0" in path or path.startswith("/") or any(part in ("", ".", "..") for part in parts):
        raise PatchError(f"{path!r} is outside the repository, or is not a normalized path")
    if any(part.lower().rstrip(". ") == ".git" or part.lower().startswith("git~") for part in parts):
        raise PatchError(f"{path!r} is git's own")


# ---- applying


def applied(patches: Sequence[FilePatch], read: Read) -> dict[str, Content | None]:
    """Return every file that the patches change, as they leave it; None: it is gone."""
    made: dict[str, Content | None] = {}

    def now(path: str) -> Content | None:
        return made[path] if path in made else read(path)

    for patch in patches:
        _check_clear(patch, now)
        content = _changed(patch, now(patch.old) if patch.old else None)
        if patch.old and patch.old != patch.new and not patch.copied:
            made[patch.old] = None
        if patch.new:
            made[patch.new] = content
    return made


def _check_clear(patch: FilePatch, now: Read) -> None:
    if patch.old and now(patch.old) is None:
        raise PatchError(f"{patch.old}: the repository has no such file")
    if patch.new and patch.new != patch.old and now(patch.new) is not None:
        raise PatchError(f"{patch.new} already exists")


def _changed(patch: FilePatch, before: Content | None) -> Content:
    start = before or Content(b"")
    data = changed(start.data, patch.hunks, patch.path)
    if not patch.new and data:
        raise PatchError(f"{patch.old}: the patch removes it, but its content differs")
    return Content(data, patch.mode == EXECUTABLE if patch.mode else start.executable)


def changed(data: bytes, hunks: Sequence[Hunk], name: str) -> bytes:
    """Return a file's bytes with all hunks applied. A hunk may have moved, but all its lines must match."""
    lines = _lines(data)
    made: list[bytes] = []
    done, moved, budget = 0, 0, [MAX_COMPARED]
    for hunk in hunks:
        before = hunk.lines(b" -")
        start = hunk.start - bool(before)
        place = _place(lines, before, start + moved, done, budget)
        if place < 0:
            raise PatchError(f"{name}: the hunk of line {hunk.line} of the patch does not fit")
        moved = place - start
        made += [*lines[done:place], *hunk.lines(b" +")]
        done = place + len(before)
    return b"".join([*made, *lines[done:]])


def _lines(data: bytes) -> list[bytes]:
    """Only a line feed ends a line: a carriage return belongs to it."""
    *whole, rest = data.split(b"\n")
    return [*(line + b"\n" for line in whole), *([rest] if rest else [])]


def _place(lines: list[bytes], before: list[bytes], expected: int, least: int, budget: list[int]) -> int:
    """The nearest place with these lines; -1: nowhere, or nowhere within what may be compared."""
    if not before:
        return expected if least <= expected <= len(lines) else -1
    last = len(lines) - len(before)
    near = min(max(expected, least), last)
    for distance in range(max(near - least, last - near) + 1 if least <= last else 0):
        for place in dict.fromkeys((near - distance, near + distance)):
            if least <= place <= last and lines[place] == before[0] and budget[0] > 0:
                budget[0] -= len(before)
                if lines[place : place + len(before)] == before:
                    return place
    return -1


# ---- as a program, in a sandbox


def read_below(folder: str, most: int = sys.maxsize) -> Read:
    """Reads files of a directory; no link is followed. ``most``: larger ones are a PatchError."""

    def read(path: str) -> Content | None:
        place = folder
        for part in path.split("/"):
            if os.path.islink(place) and place != folder:
                raise PatchError(f"{path}: a link is in the way")
            place = os.path.join(place, part)
        if not os.path.lexists(place):
            return None
        status = os.lstat(place)
        if not stat.S_ISREG(status.st_mode) or status.st_size > most:
            raise PatchError(f"{path} is not a file" if status.st_size <= most else f"{path} is too large")
        with open(place, "rb") as file:
            return Content(file.read(), bool(status.st_mode & 0o100))

    return read


def _write(folder: str, files: Mapping[str, Content | None]) -> None:
    """Removals go first: they make room for what is added."""
    for path, content in sorted(files.items(), key=lambda item: item[1] is not None):
        place = os.path.join(folder, path)
        if content is None:
            os.unlink(place)
            continue
        os.makedirs(os.path.dirname(place), exist_ok=True)
        with open(place, "wb") as file:
            file.write(content.data)
        os.chmod(place, 0o755 if content.executable else 0o644)


def main(arguments: Sequence[str]) -> int:
    """Apply a patch to a directory: all of it or nothing."""
    patch, folder = arguments
    try:
        with open(patch, "rb") as file:
            files = applied(read_patch(file.read(MAX_BYTES + 1)), read_below(folder))
        _write(folder, files)
    except (PatchError, OSError) as error:
        print(f"the patch is not applied: {error}", file=sys.stderr)
        return 1
    print(f"{len(files)} files changed")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
