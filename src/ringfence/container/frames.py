"""The two output streams of a container as an engine sends them over one connection: frames with a header of 8 bytes.

Nothing is collected: the header of a frame may promise 4 GiB, and what has come is handed on at once.
"""

from __future__ import annotations

from collections.abc import Iterator

from ringfence.errors import SetupError

STDOUT, STDERR = 1, 2
HEADER_BYTES = 8
_STREAMS = (0, STDOUT, STDERR)
"""0 is the input, which some engines repeat."""


class Frames:
    """Decodes one connection, in whatever pieces it comes."""

    def __init__(self) -> None:
        self._header = b""
        self._stream = self._left = 0

    def feed(self, data: bytes) -> Iterator[tuple[int, memoryview]]:
        """Yield (stream, piece) for everything that has arrived; SetupError if it is not a frame."""
        view = memoryview(data)
        while view:
            if not self._left:
                missing = HEADER_BYTES - len(self._header)
                self._header += bytes(view[:missing])
                view = view[missing:]
                if len(self._header) == HEADER_BYTES:
                    self._open_frame()
                continue
            piece, view = view[: self._left], view[self._left :]
            self._left -= len(piece)
            if self._stream:
                yield self._stream, piece

    def _open_frame(self) -> None:
        header, self._header = self._header, b""
        if header[0] not in _STREAMS or header[1:4] != b"\0\0\0":
            raise SetupError("read the container's output", f"{header.hex()} is not a frame header")
        self._stream, self._left = header[0], int.from_bytes(header[4:], "big")
