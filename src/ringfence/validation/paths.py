"""Where a path leads, judged by its text: inside the allowed paths, outside, or below the working directory.

Nothing is looked up on a disk: a link that leads away is the sandbox's business.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable

from ringfence.model.str_enum import StrEnum
from ringfence.validation.values import Const, PathOf, Ref, Start, Value

_STREAMS = frozenset({"/dev/stdin", "/dev/stdout", "/dev/stderr", "/dev/null", "-", "nul", "NUL", ":memory:"})
_ADDRESS = re.compile(r"(?i)(?:https?|ftps?|wss?|s3|gs|gcs|az|hdfs|sftp|ssh|smb|tcp|file|jar|data)://|\\\\|//\w")
_LONGEST = 8 * 1024
"""No system opens a longer path."""
_DRIVE = re.compile(r"[A-Za-z]:[\\/]|%\w+%|\$\w+|\$\{")


class Lead(StrEnum):
    """Where a path leads."""

    INSIDE = "inside"
    OUTSIDE = "outside"
    RELATIVE = "relative"
    NETWORK = "network"
    OWN = "own"
    """The program's own file."""
    UNKNOWN = "unknown"


def lead(value: Value | None, allowed: Iterable[str]) -> Lead:
    """Where the value of an argument leads; a number is a descriptor that is open already."""
    if isinstance(value, PathOf):
        return lead(value.at, allowed)
    if isinstance(value, Ref):
        return Lead.OWN if value.name == "__file__" else Lead.UNKNOWN
    if isinstance(value, Const):
        return _of_constant(value.value, allowed)
    return _of_start(value.value, allowed) if isinstance(value, Start) else Lead.UNKNOWN


def _of_constant(path: object, allowed: Iterable[str]) -> Lead:
    if isinstance(path, int):
        return Lead.INSIDE if path in (0, 1, 2) else Lead.UNKNOWN
    text = path[:_LONGEST].decode("latin-1") if isinstance(path, bytes) else path
    return _of_text(text, allowed) if isinstance(text, str) else Lead.UNKNOWN


def _of_text(text: str, allowed: Iterable[str]) -> Lead:
    text = text[:_LONGEST]
    if text in _STREAMS:
        return Lead.INSIDE
    if _ADDRESS.match(text):
        return Lead.NETWORK
    if text.startswith("~") or _DRIVE.match(text):
        return Lead.OUTSIDE
    plain = posixpath.normpath(text.replace("\0", "")) if text else "."
    if plain.startswith("/"):
        return Lead.INSIDE if any(_is_below(plain, root) for root in allowed) else Lead.OUTSIDE
    return Lead.OUTSIDE if plain.split("/")[0] == ".." else Lead.RELATIVE


def _of_start(text: str, allowed: Iterable[str]) -> Lead:
    """The last component may continue, so its directory counts."""
    if _ADDRESS.match(text):
        return Lead.NETWORK
    if text.startswith("~") or _DRIVE.match(text):
        return Lead.OUTSIDE
    folder = text.rpartition("/")[0]
    if not folder:
        return Lead.UNKNOWN
    found = _of_text(folder, allowed)
    return found if found is not Lead.RELATIVE else Lead.UNKNOWN


def _is_below(path: str, root: str) -> bool:
    path = path[1:] if path.startswith("//") else path
    return path == root or path.startswith(root.rstrip("/") + "/")
