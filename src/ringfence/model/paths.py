"""Where a path lies, by its text alone: nothing is looked at, and no link is followed."""

from __future__ import annotations

import os


def within(path: str, top: str) -> bool:
    """Whether it is the directory, or below it.

    >>> within("/a/b", "/a"), within("/ab", "/a"), within("/a", "/")
    (True, False, True)
    """
    return path == top or path.startswith(top.rstrip("/") + "/")


def lies_in(path: str, folder: str) -> bool:
    """The same for absolute paths of this host: on Windows case and kind of slash do not matter."""
    if os.name != "nt":
        return within(path, folder)
    from ringfence.model import windows_paths  # loads ntpath, which every cold start here would wait for

    return windows_paths.is_within(path, folder)


def quoted(name: str) -> str:
    """A name for people. Names with line ends, quotes or bytes that are not text are written as git does: a program
    chose them, and could put a whole diff, or terminal commands, into one.

    >>> quoted("plain"), quoted("esc\\x1b[2J")
    ('plain', '"esc\\\\033[2J"')
    """
    if name.isprintable() and not set('"\\') & set(name):
        return name
    spelled = (chr(each) if 32 <= each < 127 else f"\\{each:03o}" for each in _bytes(name))
    return '"' + "".join(f"\\{each}" if each in ('"', "\\") else each for each in spelled) + '"'


def _bytes(name: str) -> bytes:
    """Those of a file's name; half a character, which no file's name has, stays visible."""
    try:
        return name.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return name.encode("utf-8", "backslashreplace")
