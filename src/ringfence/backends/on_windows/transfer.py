"""A program: one file into or out of a living box on Windows. It runs as a job of that box and stands alone.

``transfer.py "put file" NAME`` takes standard input, ``transfer.py "get file" NAME MOST_BYTES`` gives standard output.
Its exit code is the errno, or 1; why it fails is on standard error. The process that starts it has checked the name.
"""

from __future__ import annotations

import os
import stat
import sys

_PIECE_BYTES = 1 << 20
_REPARSE_POINT = 0x400
_LARGEST_STATUS, NO_REGULAR_FILE = 120, 95


def put(name: str) -> None:
    """What comes from standard input, as a new file in place of whatever has that name."""
    if os.path.dirname(name):
        os.makedirs(os.path.dirname(name), exist_ok=True)
    new = f"{name}.{os.urandom(4).hex()}"
    file = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o644)
    try:
        with open(file, "wb") as target:
            while piece := os.read(0, _PIECE_BYTES):
                target.write(piece)
        os.replace(new, name)
    except BaseException:
        os.unlink(new)
        raise


def get(name: str, most_bytes: int) -> None:
    """Write a regular file's content to standard output, up to this many bytes."""
    status = os.lstat(name)
    if not stat.S_ISREG(status.st_mode) or getattr(status, "st_file_attributes", 0) & _REPARSE_POINT:
        raise OSError(NO_REGULAR_FILE, "it is not a regular file")
    with open(name, "rb") as file:
        while most_bytes and (piece := file.read(min(most_bytes, _PIECE_BYTES))):
            most_bytes -= len(piece)
            view = memoryview(piece)
            while view:
                view = view[os.write(1, view) :]


def main(kind: str, name: str, *most_bytes: str) -> int:
    try:
        if kind == "put file":
            put(name)
        else:
            get(name, int(most_bytes[0]))
    except OSError as error:
        os.write(2, (error.strerror or str(error)).encode("utf-8", "backslashreplace"))
        return error.errno if error.errno and 0 < error.errno <= _LARGEST_STATUS else 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
