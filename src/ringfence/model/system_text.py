"""What a system call can take as a string, and what a terminal can. Nothing here knows what a string is for."""

from __future__ import annotations

import os


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
