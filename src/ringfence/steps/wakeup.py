"""A descriptor that tells of ended children, for loops that wait for other things too."""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # loads nothing, see ADR 0003
import os


def wake_on_child() -> int:
    """Return a descriptor that becomes readable when a child ends."""
    reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK) if hasattr(os, "pipe2") else os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return reader
