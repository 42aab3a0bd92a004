"""Values of anybody's choice as JSON that any reader takes: bounded, printable, without half characters.

A guest chooses arguments, paths and names. In evidence they must not steer a terminal, break a line or fill a disk.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

from ringfence.evidence.strictjson import MAX_SAFE_INTEGER
from ringfence.model.system_text import escape_controls

_T = TypeVar("_T")
CUT = "…"
RECORD_CHARS = 64 * 1024
"""Characters of all texts of one record: as JSON they take at most a quarter of a chain's longest line."""
_TEXT_CHARS = 4096
_ITEMS = 1000
_DEPTH = 6
_LONGEST_NUMBER_BITS = 1024


def shown(text: str) -> str:
    """Text that encodes as UTF-8 and that a terminal only prints; other bytes are ``\\xNN``.

    >>> shown("caf\\udce9 \\x1b[2J")
    'caf\\\\xe9 \\\\x1b[2J'
    """
    try:
        data = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # a lone surrogate that stands for no byte
        data = text.encode("utf-8", "backslashreplace")
    return escape_controls(data.decode("utf-8", "backslashreplace"))


class Plain:
    """Makes plain values as long as there is room; what is cut ends with ``…``."""

    def __init__(self, room: int = RECORD_CHARS, *, text: int = _TEXT_CHARS, items: int = _ITEMS) -> None:
        """The most characters in all, characters of one text, and items of one list."""
        self.room = room
        self._text_chars = text
        self._items = items

    def of(self, value: object, depth: int = 0) -> object:
        """A value that canonical JSON can be made of."""
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, int):
            return self._integer(value)
        if isinstance(value, float):
            return value if math.isfinite(value) else self.text(str(value))
        if isinstance(value, Mapping | list | tuple | set | frozenset) and depth >= _DEPTH:
            return CUT
        if isinstance(value, Mapping):
            return {self.text(str(name)): self.of(item, depth + 1) for name, item in self._first(value.items())}
        if isinstance(value, list | tuple | set | frozenset):
            made = [self.of(item, depth + 1) for item in self._first(value)]
            return made if len(made) == len(value) else [*made, CUT]
        return self.text(value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else str(value))

    def text(self, text: str) -> str:
        most = max(0, min(self.room, self._text_chars))
        printable = shown(text[:most])
        whole = len(text) <= most and len(printable) <= most
        printable = printable if whole else printable[:most] + CUT
        self.room -= len(printable)
        return printable

    def _integer(self, value: int) -> object:
        if value.bit_length() > _LONGEST_NUMBER_BITS:
            return self.text(f"a number of {value.bit_length()} bits")
        return int(value) if abs(value) <= MAX_SAFE_INTEGER else self.text(str(value))

    def _first(self, values: Iterable[_T]) -> Iterator[_T]:
        """The first items, as many as allowed, while there is room."""
        for number, value in enumerate(values):
            if number >= self._items or self.room <= 0:
                return
            yield value
