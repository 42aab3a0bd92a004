"""Where a path lies, by its text alone: nothing is looked at, and no link is followed."""

from __future__ import annotations


def within(path: str, top: str) -> bool:
    """Whether it is the folder, or below it.

    >>> within("/a/b", "/a"), within("/ab", "/a"), within("/a", "/")
    (True, False, True)
    """
    return path == top or path.startswith(top.rstrip("/") + "/")
