"""Arguments and environment in the form in which Windows hands them over, and which program a name means. Pure.

A program gets one text and takes it apart itself; nearly all do it by the rules of the C runtime, which are kept here.
Batch files are read by cmd.exe, for which no quoting is safe: they are refused.
"""

from __future__ import annotations

import ntpath
from _collections_abc import Callable, Iterable, Mapping

from ringfence.errors import UsageError

MOST_CHARACTERS = 32767
"""Of a command line, and of a whole environment."""
_PROGRAMS, _BATCH = (".exe", ".com"), (".bat", ".cmd")
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=./\\:,@")


def command_line(argv: Iterable[str]) -> str:
    """Return the arguments as one text, from which the C runtime makes the same arguments."""
    words = list(argv)
    if '"' in words[0]:
        raise UsageError(f"{words[0]!r}: a program name can't contain a quotation mark")
    line = " ".join([f'"{words[0]}"', *map(_quoted, words[1:])])  # in the first word backslashes are plain
    if len(line) >= MOST_CHARACTERS:
        raise UsageError("the command line is longer than Windows takes (32,766 characters)",
                         hint="pass it in a file or on stdin")  # fmt: skip
    return line


def _quoted(word: str) -> str:
    """A backslash means itself, except before a quotation mark."""
    if word and set(word) <= _PLAIN:
        return word
    parts, backslashes = ['"'], 0
    for character in word:
        if character == "\\":
            backslashes += 1
            continue
        parts.append("\\" * (2 * backslashes + 1 if character == '"' else backslashes) + character)
        backslashes = 0
    return "".join((*parts, "\\" * (2 * backslashes), '"'))


def environment_block(variables: Mapping[str, str]) -> str:
    """Return name=value, each with a NUL behind it, sorted as Windows wants it, and one more NUL."""
    by_name = {name.upper(): (name, value) for name, value in variables.items()}  # of two that differ in case, the last
    block = "".join(f"{name}={value}\0" for _, (name, value) in sorted(by_name.items()))
    return (block or "\0") + "\0"


def program(name: str, folder: str, path: str, is_file: Callable[[str], bool]) -> str:
    """Return the whole path of a program, or nothing. A bare name is looked for in the directories of ``path`` only,
    never in the current one: what lies there may be a trap."""
    if ntpath.splitext(name.rstrip(" ."))[1].lower() in _BATCH:  # Windows drops dots and blanks at the end
        raise UsageError(f"{name} is a batch file, and its arguments can't be quoted safely",
                         hint="run cmd.exe /d /c with a line of your own")  # fmt: skip
    bare = not any(sign in name for sign in "\\/:")
    places = [part.strip('"') for part in path.split(";")] if bare else [folder]
    for place in places:
        if bare and not ntpath.isabs(place):
            continue
        for candidate in _candidates(ntpath.normpath(ntpath.join(place, name))):
            if is_file(candidate):
                return candidate
    return ""


def _candidates(path: str) -> tuple[str, ...]:
    if ntpath.splitext(path)[1].lower() in _PROGRAMS:
        return (path,)
    return (*(path + ending for ending in _PROGRAMS), path)
