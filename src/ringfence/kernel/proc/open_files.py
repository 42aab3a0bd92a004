"""Files of /proc and of control groups that are read many times a second: kept open, as far as there is room.

A kept file never becomes that of a later process with the same number: the kernel ties the open file to the process,
and reads nothing once that is gone.
"""

from __future__ import annotations

import os
import threading

_MOST = 8192
_WHOLE = 2048
"""A read that returns less has returned everything: the kernel hands out such files by the page."""


class DescriptorBudget:
    """How many descriptors may be kept; what finds no room is opened anew for every reading."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: set[int] = set()
        self._lock = threading.Lock()

    def open(self, path: str, *, seldom: bool = False) -> int:
        """A descriptor that is kept; -1: there is no room. Files that are read seldom leave half of it to the rest."""
        with self._lock:
            if len(self._kept) >= (self._most // 2 if seldom else self._most):
                return -1
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            self._kept.add(descriptor)
            return descriptor

    def close(self, descriptor: int) -> None:
        with self._lock:
            self._kept.discard(descriptor)
            os.close(descriptor)

    def leave(self) -> None:
        """Close all, in a forked copy, where the lock may be held by a thread that is not there."""
        while self._kept:
            os.close(self._kept.pop())


def half_of_the_limit() -> DescriptorBudget:
    """The share of descriptors that we may keep; the rest is the caller's."""
    try:
        import resource
    except ImportError:
        return DescriptorBudget(0)
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return DescriptorBudget(_MOST if soft < 0 else min(soft // 2, _MOST))


class PinnedFile:
    """One such file; nothing is read once it is gone, or where it may not be read."""

    __slots__ = ("_descriptor", "_path", "_room", "_seldom")

    def __init__(self, path: str, room: DescriptorBudget, *, seldom: bool = False) -> None:
        self._path = path
        self._room = room
        self._seldom = seldom
        self._descriptor = -1

    def read(self) -> bytes:
        try:
            if self._descriptor < 0:
                self._descriptor = self._room.open(self._path, seldom=self._seldom)
            return _content(self._descriptor) if self._descriptor >= 0 else self._read_once()
        except OSError:
            return b""

    def still_reads(self, text: bytes) -> bool:
        """Whether a short file has not changed; the quick way for one that is kept."""
        try:
            return os.pread(self._descriptor, _WHOLE, 0) == text if self._descriptor >= 0 else self.read() == text
        except OSError:
            return False

    def _read_once(self) -> bytes:
        descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return _content(descriptor)
        finally:
            os.close(descriptor)

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            self._room.close(descriptor)


def _content(descriptor: int) -> bytes:
    text = os.pread(descriptor, 65536, 0)
    if len(text) < _WHOLE:
        return text
    while piece := os.pread(descriptor, 65536, len(text)):
        text += piece
    return text
