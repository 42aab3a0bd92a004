"""A descriptor for as long as a block of code takes."""

from __future__ import annotations

import os


class Opened:
    """Closed at the end of a ``with``; made by hand, since ``contextlib`` takes long to load (ADR 0003)."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __enter__(self) -> int:
        return self._descriptor

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)


def opened(path: str | bytes, flags: int, folder: int | None = None) -> Opened:
    """``folder``: a descriptor of what the path is relative to."""
    return Opened(os.open(path, flags | os.O_CLOEXEC, dir_fd=folder))
