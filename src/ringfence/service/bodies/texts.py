"""Takes the long texts out of JSON, so that what is left is small however much was sent.

Python's decoder holds the interpreter from the first byte of an array of texts to its last. So each long text is
decoded by itself, a piece at a time, and a number stands in its place. What is not well-formed beside them is left to
the decoder, which refuses it.
"""

from __future__ import annotations

import codecs
import re
import secrets
from collections.abc import Iterator
from itertools import pairwise
from json.decoder import scanstring  # type: ignore[attr-defined]  # it is there, and untyped

PIECE = 32 << 10
"""Bytes that are looked at in one call."""
LONG_BYTES = 32
"""A longer text is taken out, and so is one with escapes, which take ten times as long as other characters."""
MOST_REST_BYTES = 3 << 20
"""Of what is left: names, numbers, short texts and space."""
_OUTSIDE = re.compile(rb'[^"]*+')
_INSIDE = re.compile(rb'(?:[^"\\]++|\\u[0-9a-fA-F]{4}|\\[^u])*+')
_NAME_FOLLOWS = re.compile(rb"[ \t\r\n]{0,64}:")
_QUOTE = ord('"')
_VALUES = (b",", b"[", b"{")
"""Each value but the first stands behind one of these; a text in which they occur does not count."""


class TooMuch(ValueError):
    """More values, or more beside long texts, than a body may have."""


class Lifted:
    """JSON without its long texts: ``rest`` has a number for each, by which ``texts`` has it."""

    def __init__(self, data: bytes, most: int) -> None:
        self.rest, self.texts = "", dict[str, str]()
        self._data, self._most = data, most
        self._begin = f"0e{secrets.randbelow(10**9):09}"  # no number of the body is like this by chance
        self._kept: list[bytes] = []
        self._kept_bytes, self._values, self._quoted = 0, 1, 0
        at = 0
        while at < len(data):
            at = self._after_text(at) if data[at] == _QUOTE else self._after_rest(at)
        self.rest = b"".join(self._kept).decode("utf-8")

    def _after_rest(self, at: int) -> int:
        end = _end(_OUTSIDE, self._data, at)
        piece = self._data[at:end]
        self._values += sum(map(piece.count, _VALUES))
        if self._values > self._most:
            raise TooMuch(f"a body may have at most {self._most:,} values")
        self._keep(piece)
        return end

    def _after_text(self, at: int) -> int:
        self._quoted += 1
        if self._quoted > 2 * self._values:  # each value is one text, and may have another as its name
            raise ValueError("a comma or colon is missing between two strings")
        ends = [at + 1, *_ends(self._data, at + 1)]
        end = ends[-1]
        if self._data[end : end + 1] != b'"':
            raise ValueError("a string is not closed, or has an unknown escape in it")
        is_plain = end - at <= LONG_BYTES and b"\\" not in self._data[at:end]
        if is_plain or _NAME_FOLLOWS.match(self._data, end + 1):
            self._keep(self._data[at : end + 1])
        else:
            self._lift(ends)
        return end + 1

    def _lift(self, ends: list[int]) -> None:
        pieces, decoder = list[str](), codecs.getincrementaldecoder("utf-8")()
        for begin, end in pairwise(ends):
            _add(pieces, scanstring(f'{decoder.decode(self._data[begin:end], end == ends[-1])}"', 0, True)[0])
        number = f"{self._begin}{len(self.texts)}"
        self.texts[number] = "".join(pieces)
        self._keep(number.encode())

    def _keep(self, piece: bytes) -> None:
        self._kept_bytes += len(piece)
        if self._kept_bytes > MOST_REST_BYTES:
            raise TooMuch(f"besides long strings, a body may have at most {MOST_REST_BYTES:,} bytes")
        self._kept.append(piece)


def _end(pattern: re.Pattern[bytes], data: bytes, at: int) -> int:
    found = pattern.match(data, at, at + PIECE)
    return found.end() if found else at


def _ends(data: bytes, at: int) -> Iterator[int]:
    """Where the pieces of a text end; none ends within an escape."""
    while (end := _end(_INSIDE, data, at)) > at:
        yield end
        at = end


def _add(pieces: list[str], piece: str) -> None:
    """One character may have been written as two escapes, one in each piece."""
    last = pieces[-1] if pieces else ""
    if "\ud800" <= last[-1:] <= "\udbff" and "\udc00" <= piece[:1] <= "\udfff":
        whole = (last[-1] + piece[0]).encode("utf-16", "surrogatepass").decode("utf-16")
        pieces[-1], piece = last[:-1], whole + piece[1:]
    pieces.append(piece)
