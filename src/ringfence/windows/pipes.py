"""Pipes with one end that is ours and never blocks: each has an event that says when there is something to do.

Windows has no ``poll`` for its unnamed pipes, so ours are named, with a name that nobody can guess, and take one client
only. An end for a job is an ordinary handle.
"""

from __future__ import annotations

import os
from _thread import allocate_lock
from ctypes import byref, c_uint32, create_string_buffer

from ringfence.windows.structures import Overlapped
from ringfence.windows.system import (
    BROKEN_PIPE,
    IO_INCOMPLETE,
    IO_PENDING,
    NO_DATA,
    OPERATION_ABORTED,
    PIPE_NOT_CONNECTED,
    call,
    close,
    failure,
    last_error,
    try_call,
)

_INBOUND, _OUTBOUND, _FIRST, _OVERLAPPED = 0x1, 0x2, 0x80000, 0x40000000
_NO_REMOTE = 0x8
_READ, _WRITE, _OPEN_EXISTING = 0x80000000, 0x40000000, 3
_READ_ATTRIBUTES = 0x80
PIECE_BYTES = 64 * 1024
_ENDED = (BROKEN_PIPE, OPERATION_ABORTED, NO_DATA, PIPE_NOT_CONNECTED)


def open_null() -> int:
    """A handle of the null device, for reading."""
    return call("CreateFileW", "NUL", _READ, 3, None, _OPEN_EXISTING, 0, None)


def _pair(ours_is: int, theirs_may: int) -> tuple[int, int]:
    name = rf"\\.\pipe\ringfence-{os.getpid()}-{os.urandom(16).hex()}"
    ours = call("CreateNamedPipeW", name, ours_is | _FIRST | _OVERLAPPED, _NO_REMOTE, 1, PIECE_BYTES, PIECE_BYTES, 0,
                None)  # fmt: skip
    try:
        theirs = call("CreateFileW", name, theirs_may, 0, None, _OPEN_EXISTING, 0, None)
    except OSError:
        close(ours)
        raise
    return ours, theirs


class _End:
    """Our end: at most one operation is under way."""

    def __init__(self, handle: int) -> None:
        self._handle = handle
        self._lock = allocate_lock()
        self._state = Overlapped()
        self._buffer = create_string_buffer(PIECE_BYTES)
        self.event = call("CreateEventW", None, 1, 1, None)
        self._state.event = self.event
        self._under_way = self._ended = False

    def _begin(self, name: str, count: int) -> None:
        """Ended: nobody is at the other end any more."""
        try_call("ResetEvent", self.event)
        done = try_call(name, self._handle, self._buffer, count, None, byref(self._state))
        error = 0 if done else last_error()
        self._under_way = error in (0, IO_PENDING)
        if not self._under_way:
            if error not in _ENDED:
                raise failure(name, error)
            self._ended = True
            try_call("SetEvent", self.event)

    def _finished(self, wait: bool = False) -> int | None:
        """How many bytes were moved; None: it is still under way; 0: the pipe has ended."""
        moved = c_uint32()
        if try_call("GetOverlappedResult", self._handle, byref(self._state), byref(moved), wait):
            self._under_way = False
            return moved.value
        error = last_error()
        if error == IO_INCOMPLETE:
            return None
        self._under_way = False
        if error not in _ENDED:
            raise failure("GetOverlappedResult", error)
        self._ended = True
        return 0

    def close(self) -> None:
        """Cancel what is under way: else Windows would write into our buffer later."""
        handle, self._handle = self._handle, 0
        if not handle:
            return
        if self._under_way:
            try_call("CancelIoEx", handle, None)
            self._handle = handle
            self._finished(wait=True)
            self._handle = 0
        close(handle, self.event)


class Reader(_End):
    """What a job writes."""

    def __init__(self) -> None:
        handle, self.theirs = _pair(_INBOUND, _WRITE | _READ_ATTRIBUTES)
        super().__init__(handle)
        self._begin("ReadFile", PIECE_BYTES)

    def take(self) -> bytes | None:
        """What has arrived; None: nothing, empty: this was the end."""
        if self._ended:
            return b""
        count = self._finished()
        if count is None:
            return None
        piece = self._buffer.raw[:count]
        if self._ended:
            return b""
        self._begin("ReadFile", PIECE_BYTES)
        return piece or None  # a write of zero bytes means nothing


class Writer(_End):
    """What a job reads."""

    def __init__(self) -> None:
        handle, self.theirs = _pair(_OUTBOUND, _READ)
        super().__init__(handle)

    def give(self, data: bytes | memoryview) -> int:
        """How many bytes were taken, 0: not now. BrokenPipeError when nobody reads."""
        if self._under_way and self._finished() is None:
            return 0
        if not self._ended:
            piece = bytes(data[:PIECE_BYTES])
            self._buffer.raw = piece.ljust(PIECE_BYTES, b"\0")
            self._begin("WriteFile", len(piece))
        if self._ended:
            raise BrokenPipeError(32, "nobody reads the pipe")
        return min(len(data), PIECE_BYTES)

    def is_idle(self) -> bool:
        """Whether all that was given has been taken."""
        return self._ended or not self._under_way or self._finished() is not None
