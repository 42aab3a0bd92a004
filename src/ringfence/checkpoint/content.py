"""The bytes of files: digests and copies that keep holes, and clones where the file system can.

A digest depends on content alone: holes and written zeros are the same. It is taken in larger pieces than are written,
so that a copy takes no more of the disk than what was copied. Descriptors only; ``tree`` opens them safely.
"""

from __future__ import annotations

import errno
import os
import sys
from _collections_abc import Iterator

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_PIECE_BYTES = 1 << 16
"""The grid of digests: with another one, every content that is kept would have another name."""
_BLOCK_BYTES = 1 << 12
"""The grid of what is written: what one byte takes on most file systems."""
_ZEROS = bytes(_PIECE_BYTES)
_ZERO_BLOCK = bytes(_BLOCK_BYTES)
_FICLONE = 0x40049409
_GETFLAGS, _IMMUTABLE = 0x80086601, 0x10 | 0x20
_WAIT_BEFORE, _WRITE = 1, 2
_sync_file_range: Any = None


def digest(reader: int) -> str:
    return _through(reader, None)


def copy(reader: int, writer: int) -> str:
    """Copy a whole file into an empty one; return the digest of what was copied."""
    return _through(reader, writer)


def clone(reader: int, writer: int) -> bool:
    """Let two files share their bytes; False where the file system cannot."""
    try:
        import fcntl

        fcntl.ioctl(writer, _FICLONE, reader)
    except (ImportError, OSError):
        return False
    return True


def fill(reader: int, writer: int) -> None:
    """The cheapest copy that this file system has."""
    if not clone(reader, writer):
        copy(reader, writer)


def fill_known(reader: int, writer: int, name: str) -> bool:
    """The same for a content whose digest is known; return whether it matches. The digest is taken of the bytes that
    were written, so nothing else can slip in."""
    return (digest(writer) if clone(reader, writer) else copy(reader, writer)) == name


def pour(reader: int, writer: int) -> None:
    """Copy a whole file into an empty one and keep its holes. Nobody asks what it holds, so nothing is hashed."""
    size = os.fstat(reader).st_size
    if size > _PIECE_BYTES and clone(reader, writer):
        return
    for place, piece in _pieces(reader, size):
        _put(writer, place, piece)
    os.ftruncate(writer, size)


def is_immutable(descriptor: int) -> bool:
    """Whether nobody, root included, can replace it (``chattr +i``, ``+a``); False if the file system has neither."""
    try:
        import fcntl

        flags = fcntl.ioctl(descriptor, _GETFLAGS, bytes(8))
    except (ImportError, OSError):
        return False
    return bool(int.from_bytes(flags[:4], sys.byteorder) & _IMMUTABLE)


def begin_write_back(reader: int) -> None:
    """Start writing back the dirty pages of a file, so that the next write through a mapping changes its time: a
    program can write to a page that is already dirty without a trace. A page that is just being written is waited for:
    it may have become dirty again, and would be left out."""
    global _sync_file_range
    if sys.platform != "linux":
        return
    if _sync_file_range is None:
        import ctypes

        _sync_file_range = ctypes.CDLL(None).sync_file_range
        _sync_file_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    _sync_file_range(reader, 0, 0, _WAIT_BEFORE | _WRITE)  # a file system without this call has nothing to write back


def _through(reader: int, writer: int | None) -> str:
    import hashlib

    size = os.fstat(reader).st_size
    state = hashlib.sha256(b"%d\n" % size)
    for place, piece in _pieces(reader, size):
        state.update(b"%d %d\n" % (place, len(piece)))
        state.update(piece)
        if writer is not None:
            _put(writer, place, piece)
    if writer is not None:
        os.ftruncate(writer, size)
    return state.hexdigest()


def _pieces(reader: int, size: int) -> Iterator[tuple[int, bytes]]:
    """(place, bytes) on a fixed grid, without the pieces that are all zero."""
    place = 0
    while (place := _next_data(reader, place, size)) < size:
        os.lseek(reader, place, os.SEEK_SET)
        piece = _read(reader, min(_PIECE_BYTES, size - place))
        if not piece:
            return
        if piece != _ZEROS[: len(piece)]:
            yield place, piece
        place += _PIECE_BYTES


def _put(writer: int, place: int, piece: bytes) -> None:
    """Write a piece into an empty file, without the blocks that are all zero: a program that writes one byte to each
    piece must not make copies that take sixteen times what its own file took."""
    for begin, end in _runs(piece):
        os.lseek(writer, place + begin, os.SEEK_SET)
        write(writer, piece[begin:end])


def _runs(piece: bytes) -> Iterator[tuple[int, int]]:
    """Where neighbouring blocks that hold something begin and end."""
    begin = -1
    for place in range(0, len(piece), _BLOCK_BYTES):
        block = piece[place : place + _BLOCK_BYTES]
        if block == _ZERO_BLOCK[: len(block)]:
            if begin >= 0:
                yield begin, place
            begin = -1
        elif begin < 0:
            begin = place
    if begin >= 0:
        yield begin, len(piece)


def _next_data(reader: int, place: int, size: int) -> int:
    """The next point of the grid, at or after ``place``, that may hold something."""
    if not hasattr(os, "SEEK_DATA") or place >= size:
        return place
    try:
        found = os.lseek(reader, place, os.SEEK_DATA)
    except OSError as error:
        return size if error.errno == errno.ENXIO else place
    return max(place, found - found % _PIECE_BYTES)


def _read(reader: int, count: int) -> bytes:
    pieces = []
    while count > 0 and (piece := os.read(reader, count)):
        pieces.append(piece)
        count -= len(piece)
    return b"".join(pieces)


def write(writer: int, piece: bytes) -> None:
    view = memoryview(piece)
    while view:
        view = view[os.write(writer, view) :]
