"""Which other file the kernel opens when it executes one: the interpreter after ``#!``, or the loader of an ELF file.

Reads a bounded number of bytes of an open file, whoever made it, and opens nothing. It follows the kernel's reading
and is looser where that does no harm: what it names and the kernel refuses is one attempt too many, never one too few.
"""

from __future__ import annotations

import os
from struct import error as StructError
from struct import unpack_from

from ringfence.model.record import record

MAX_DEPTH = 6
"""Interpreters of interpreters: the kernel gives up before that."""
_HEAD_BYTES = 256
_MAX_TABLE_BYTES = 65536
_MAX_PATH_BYTES = 4096
_PT_INTERP = 3


@record
class _Layout:
    """Where the numbers stand, in a file of 64 or 32 bits."""

    word: str
    table: int
    entry_bytes: int
    counts: int
    """Of two small numbers: the size of an entry and how many there are."""
    offset: int
    size: int


# Which of them counts is decided by the machine that the file is for; both are looked at, so that no file can lie.
_LAYOUTS = (
    _Layout(word="<Q", table=32, entry_bytes=56, counts=54, offset=8, size=32),
    _Layout(word="<I", table=28, entry_bytes=32, counts=42, offset=4, size=16),
)


def is_script(head: bytes) -> bool:
    return head[:2] == b"#!"


def head_of(file: int) -> bytes:
    """As much of it as the kernel looks at first."""
    return os.pread(file, _HEAD_BYTES, 0)


def named_in(file: int, head: bytes) -> list[bytes]:
    """The paths that the kernel would open to execute this file, besides itself."""
    if is_script(head):
        # Only these end a name: other white space is part of it.
        line = head[2:].partition(b"\n")[0].partition(b"\0")[0]
        name = line.replace(b"\t", b" ").lstrip(b" ").partition(b" ")[0]
        return [name] if name else []
    found = (_loader(file, head, layout) for layout in _LAYOUTS if head[:4] == b"\x7fELF")
    return [path for path in found if path]


def _loader(file: int, head: bytes, layout: _Layout) -> bytes:
    try:
        (start,) = unpack_from(layout.word, head, layout.table)
        entry_bytes, count = unpack_from("<HH", head, layout.counts)
        if entry_bytes != layout.entry_bytes or count * entry_bytes > _MAX_TABLE_BYTES:
            return b""
        table = os.pread(file, count * entry_bytes, start)
        for place in range(0, len(table) - entry_bytes + 1, entry_bytes):
            if unpack_from("<I", table, place) == (_PT_INTERP,):
                return _text(file, table, place, layout)
    except (StructError, OverflowError, OSError):
        pass  # no program that the kernel would take
    return b""


def _text(file: int, table: bytes, place: int, layout: _Layout) -> bytes:
    (start,) = unpack_from(layout.word, table, place + layout.offset)
    (size,) = unpack_from(layout.word, table, place + layout.size)
    return os.pread(file, min(size, _MAX_PATH_BYTES), start).partition(b"\0")[0]
