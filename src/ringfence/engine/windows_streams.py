"""The job's streams on Windows: over pipes whose readiness is an event, with handles in place of descriptors."""

from __future__ import annotations

import os
import sys

from ringfence.engine.streams import Capture, Streams
from ringfence.errors import UnavailableError
from ringfence.windows.pipes import Reader, Writer, open_null
from ringfence.windows.system import close


class WindowsStreams(Streams):
    """``theirs`` are handles; each of ours has an event that tells when it is ready."""

    def _open(self) -> None:
        self._ends: dict[int, Reader] = {}
        self._feed: Writer | None = None
        super()._open()

    def _open_input(self, stdin: bytes | int | None) -> int:
        if stdin is None or stdin == b"":
            return open_null()
        if isinstance(stdin, int):
            return _handle_of(stdin)
        self._feed = Writer()
        self.writer = self._feed.event
        self._pending = memoryview(stdin)
        return self._feed.theirs

    def _open_output(self, capture: Capture) -> int:
        end = Reader()
        self._ends[end.event] = end
        self.readers[end.event] = capture
        return end.theirs

    def _open_terminal(self) -> None:
        raise UnavailableError("a job has no terminal of its own on Windows", missing=("a terminal",),
                               hint="redirect its input or output")  # fmt: skip

    def release_theirs(self) -> None:
        while self._theirs:
            close(self._theirs.pop())

    def _taken(self, descriptor: int) -> bytes | None:
        piece = self._ends[descriptor].take()
        if piece:
            self.readers[descriptor].add(piece)
        return piece

    def write(self) -> bool:
        assert self._feed is not None
        if not self._pending:
            return not self._feed.is_idle()
        try:
            self._pending = self._pending[self._feed.give(self._pending) :]
        except BrokenPipeError:
            return False
        return True  # until the last piece has been read: closing the pipe would drop it

    def stop_reading(self, descriptor: int) -> None:
        del self.readers[descriptor]
        self._ends.pop(descriptor).close()

    def stop_writing(self) -> None:
        self.writer = -1
        feed, self._feed = self._feed, None
        if feed is not None:
            feed.close()


def _handle_of(descriptor: int) -> int:
    """A handle of our own: the owner of the descriptor closes the other."""
    if sys.platform != "win32":
        raise UnavailableError("handles are Windows' own", missing=("Windows",))
    import msvcrt

    copy = os.dup(descriptor)
    try:
        from ringfence.windows.start import duplicated

        return duplicated(msvcrt.get_osfhandle(copy))
    finally:
        os.close(copy)
