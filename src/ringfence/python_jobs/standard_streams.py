"""``sys.stdin``, ``stdout`` and ``stderr`` made anew on descriptors 0, 1 and 2, as a starting interpreter makes them.

A forked interpreter still has the streams of its parent, with the parent's idea of what is a terminal. The encoding is
UTF-8 whatever the locale says, as in Python's UTF-8 mode. ``interpreter_exit`` flushes at the end.
"""

from __future__ import annotations

import io
import os
import sys

# (descriptor, name, mode, errors): how bytes that are not UTF-8 are handled, in and out.
_STREAMS = (
    (0, "stdin", "r", "surrogateescape"),
    (1, "stdout", "w", "surrogateescape"),
    (2, "stderr", "w", "backslashreplace"),
)
_NOTHING = (0, 0)
_made: dict[int, tuple[tuple[int, int], io.TextIOWrapper | None]] = {}
"""Descriptor → its kind when the stream was made, and the stream."""


def prepare() -> None:
    """Once, in the process that will be forked: streams as most jobs have them, input from nothing, output to pipes.

    A stream remembers of its descriptor only what is the same for all of a kind: whether it can seek, and where it is.
    If one of the three is closed, none is prepared: jobs make their own.
    """
    if any(_kind(descriptor) == _NOTHING for descriptor in (0, 1, 2)):
        return
    kept = [os.dup(descriptor) for descriptor in (0, 1, 2)]
    null = os.open(os.devnull, os.O_RDONLY)
    reader, writer = os.pipe()
    try:
        for (descriptor, *how), source in zip(_STREAMS, (null, writer, writer), strict=True):
            os.dup2(source, descriptor)
            stream = _opened(descriptor, *how)
            _made[descriptor] = (_kind(descriptor), stream)
            _have(how[0], stream)
    finally:
        for descriptor, before in enumerate(kept):
            os.dup2(before, descriptor)
        for descriptor in (null, reader, writer, *kept):
            os.close(descriptor)


def renew() -> None:
    for descriptor, name, mode, errors in _STREAMS:
        kind, stream = _made.get(descriptor, (_NOTHING, None))
        _have(name, stream if stream and kind == _kind(descriptor) else _opened(descriptor, name, mode, errors))


def _have(name: str, stream: io.TextIOWrapper | None) -> None:
    if getattr(sys, name, None) is not stream or stream is None:
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _kind(descriptor: int) -> tuple[int, int]:
    """All pipes are alike, and so are all descriptors of one device; no two of anything else are."""
    try:
        found = os.fstat(descriptor)
    except OSError:
        return _NOTHING
    return found.st_mode & 0o170000, found.st_rdev


def _opened(descriptor: int, name: str, mode: str, errors: str) -> io.TextIOWrapper | None:
    try:
        os.fstat(descriptor)
        raw = io.FileIO(descriptor, mode, closefd=False)
    except OSError:
        return None  # closed: such a program starts without the stream
    raw.name = f"<{name}>"
    buffered = io.BufferedReader(raw) if mode == "r" else io.BufferedWriter(raw)
    # stderr is always line-buffered, the others only on a terminal.
    by_line = descriptor == 2 or raw.isatty()
    stream = io.TextIOWrapper(buffered, "utf-8", errors, "\n", by_line)
    stream.mode = mode  # type: ignore[misc]
    return stream
