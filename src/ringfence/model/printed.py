"""What is printed: small graphs made of characters, counts and times, foreign text made harmless, and JSON."""

from __future__ import annotations

import math
import sys
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise

BLOCKS, PLAIN = " ▁▂▃▄▅▆▇█", " .:-=+*#%"


def levels() -> str:
    """The characters from nothing to full that the output can show."""
    encoding = getattr(sys.stdout, "encoding", None) or "ascii"
    try:
        BLOCKS.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return PLAIN
    return BLOCKS


def graph(values: Sequence[float], width: int, *, top: float = 0.0, characters: str = BLOCKS) -> str:
    """One line; ``top`` is at least the full height. Any value above zero shows at least the lowest character."""
    columns = squeezed(values, width)
    highest = max(top, max(columns, default=0.0))
    if highest <= 0:
        return characters[0] * len(columns)
    full = len(characters) - 1
    heights = (min(full, max(1, round(value / highest * full))) if value > 0 else 0 for value in columns)
    return "".join(characters[height] for height in heights)


def squeezed(values: Sequence[float], width: int) -> list[float]:
    """At most this many columns, each with the largest value that falls into it."""
    count = len(values)
    if count <= width:
        return list(values)
    edges = [column * count // width for column in range(width + 1)]
    return [max(values[begin:end]) for begin, end in pairwise(edges)]


def harmless(text: str, width: int) -> str:
    """The text in one line that can't move the cursor or change colours, cut if it is too long."""
    clean = "".join(char if char.isprintable() else "?" for char in text[: 4 * width + 1])
    cells = list(accumulate(map(_cells, clean)))
    if not cells or cells[-1] <= width:
        return clean
    return clean[: bisect_right(cells, max(0, width - 1))] + "…"


def _cells(char: str) -> int:
    """How many columns of a terminal it takes."""
    from unicodedata import east_asian_width  # which a run has no use for

    return 2 if east_asian_width(char) in "WF" else 1


def counted(count: int, word: str) -> str:
    """``1 path``, ``2 paths``, ``0 sandboxes``."""
    ending = "" if count == 1 else "es" if word.endswith(("s", "x")) else "s"
    return f"{count} {word}{ending}"


def clock(seconds: float) -> str:
    """``0:07``, ``12:34`` or ``3:25:45``."""
    whole = int(seconds)
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"


def json_text(value: object, *, indent: int | None = 2) -> str:
    """A number that JSON can't express becomes null, half a character an escape, any other object its text.

    >>> json_text([float("nan"), "\\ud800"], indent=None)
    '[null, "\\\\\\\\ud800"]'
    """
    import json

    return json.dumps(_plain(value), indent=indent, allow_nan=False)


def _plain(value: object) -> object:
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {_text(str(name)): _plain(item) for name, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return _text(str(value))


def _text(text: str) -> str:
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")
