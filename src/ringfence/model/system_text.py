"""What a system call can take as a string, what a terminal can, and what an error shows of a value. Nothing here knows
what a string is for."""

from __future__ import annotations

import os

MOST_QUOTED = 200


def is_system_text(text: object) -> bool:
    """Whether it has bytes at all (a lone surrogate has none) and no NUL among them."""
    try:
        return isinstance(text, str) and b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


def escape_controls(text: str, *, keep: str = "") -> str:
    """Return the whole text; characters that could control a terminal or change the direction of writing are escaped.

    >>> escape_controls("é\\t\\x1b[2J", keep="\\t")
    'é\\t\\\\x1b[2J'
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in keep else ascii(char)[1:-1] for char in text)


def quoted(value: object) -> str:
    """A value as an error shows it, cut: whoever gave megabytes knows them, and everybody else would wait for them.

    >>> quoted("a"), len(quoted("a" * 1000))
    ("'a'", 203)
    """
    is_long = isinstance(value, str | bytes | list | tuple) and len(value) > MOST_QUOTED
    text = repr(value[:MOST_QUOTED] if is_long else value)  # type: ignore[index]
    return f"{text[:MOST_QUOTED]}..." if is_long or len(text) > MOST_QUOTED else text


def cut(text: str) -> str:
    """The same of what is no value any more, such as a list of names."""
    return f"{text[:MOST_QUOTED]}..." if len(text) > MOST_QUOTED else text
