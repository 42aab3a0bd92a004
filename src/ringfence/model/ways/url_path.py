"""The path of a URL in the one spelling that is compared, and the paths of rules.

What servers spell out differently (an encoded slash, a second layer of encoding, a backslash) has none.
"""

from __future__ import annotations

import re

_ESCAPE = re.compile(r"%(?P<digits>[0-9A-Fa-f]{2})|%")
_UNRESERVED = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~")
_AMBIGUOUS = frozenset(b"/\\%;?#") | frozenset(range(0x20)) | {0x7F}


class BadPath(ValueError):
    """A path that two servers could read differently; the text says why."""


def pattern(path: str) -> str:
    """Return the one spelling of a path of a rule, in which a final ``*`` stands for any rest. No part of it may be
    ``.`` or ``..``, in whatever spelling: without them it would be another pattern, and mostly one for more paths.

    >>> pattern("/v1/%6dessages/*")
    '/v1/messages/*'
    """
    stem = path.removesuffix("*")
    plain = normal_path(stem)
    if plain != _unescaped(stem):
        raise BadPath("it has a part of dots")
    return plain + path[len(stem) :]


def normal_path(path: str) -> str:
    """Return the one spelling of a path: nothing encoded that need not be, no dot segments.

    >>> normal_path("/v1/%6dessages/../models")
    '/v1/models'
    """
    if not path.startswith("/") or "\\" in path or "//" in path:
        raise BadPath("it has a backslash or an empty part, or does not begin with /")
    plain = _unescaped(path)
    kept: list[str] = []
    segments = plain.split("/")[1:]
    for number, segment in enumerate(segments):
        if segment.partition(";")[0] in (".", "..") and ";" in segment:
            raise BadPath("it has parameters at a part of dots")
        if segment == ".." and not kept:
            raise BadPath("it points above the root")
        if segment == "..":
            kept.pop()
        elif segment != ".":
            kept.append(segment)
        if segment in (".", "..") and number == len(segments) - 1:
            kept.append("")
    return "/" + "/".join(kept)


def _unescaped(path: str) -> str:
    plain = _ESCAPE.sub(_one_spelling, path)
    _check_utf8(plain)
    return plain


def _one_spelling(match: re.Match[str]) -> str:
    if not match["digits"]:
        raise BadPath("a % is not followed by two digits")
    byte = int(match["digits"], 16)
    if byte in _AMBIGUOUS:
        raise BadPath(f"servers read {match[0]} differently")
    return chr(byte) if byte in _UNRESERVED else match[0].upper()


def _check_utf8(path: str) -> None:
    """An overlong sequence is a slash for some decoders."""
    try:
        _ESCAPE.sub(lambda match: chr(int(match["digits"], 16)), path).encode("latin-1").decode("utf-8")
    except UnicodeError:
        raise BadPath("what is encoded in it is not UTF-8") from None
