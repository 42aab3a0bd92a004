"""``sys.stdin``, ``stdout`` and ``stderr`` made anew on descriptors 0, 1 and 2, as a starting interpreter makes them.

A forked interpreter still has the streams of its parent, with the parent's idea of what is a terminal. The
encoding is UTF-8 whatever the locale says, as in Python's UTF-8 mode. Flushing at the end is the exit's.
"""

from __future__ import annotations

import io
import os
import sys

# (descriptor, name, mode, errors): what a byte that is no UTF-8 becomes, in and out.
_STREAMS = (
    (0, "stdin", "r", "surrogateescape"),
    (1, "stdout", "w", "surrogateescape"),
    (2, "stderr", "w", "backslashreplace"),
)


def renew() -> None:
    for descriptor, name, mode, errors in _STREAMS:
        stream = _opened(descriptor, name, mode, errors)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _opened(descriptor: int, name: str, mode: str, errors: str) -> io.TextIOWrapper | None:
    try:
        os.fstat(descriptor)
        raw = io.FileIO(descriptor, mode, closefd=False)
    except OSError:
        return None  # closed: such a program starts without the stream
    raw.name = f"<{name}>"
    buffered = io.BufferedReader(raw) if mode == "r" else io.BufferedWriter(raw)
    # stderr is never kept back for longer than a line, the others only on a terminal.
    by_line = descriptor == 2 or raw.isatty()
    stream = io.TextIOWrapper(buffered, "utf-8", errors, "\n", by_line)
    stream.mode = mode  # type: ignore[misc]
    return stream
