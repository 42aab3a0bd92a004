"""What bridge and relay send each other: connections to the kernel's sockets, many over one pair of streams."""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct

HEAD = Struct("!cIHI")
"""Kind, number of the connection, place of the socket among the five, bytes that follow."""
OPEN, DATA, CLOSE, CONNECTION = b"O", b"D", b"C", b"K"
"""``CONNECTION``: what Jupyter asks for, as JSON; the first frame to the bridge, and no other."""
MAX_BYTES = 1 << 16
PORTS = ("shell_port", "iopub_port", "stdin_port", "control_port", "hb_port")
"""Of the five sockets, by place, as Jupyter's connection file calls them."""


class FrameError(Exception):
    """The data is not a valid frame."""


def frame(kind: bytes, number: int, place: int = 0, data: bytes = b"") -> bytes:
    return HEAD.pack(kind, number, place, len(data)) + data


class Frames:
    """Takes a stream apart."""

    def __init__(self) -> None:
        self._held = bytearray()

    def add(self, data: bytes) -> Iterator[tuple[bytes, int, int, bytes]]:
        """Return kind, connection, place and data of each complete frame."""
        self._held += data
        while len(self._held) >= HEAD.size:
            kind, number, place, length = HEAD.unpack_from(self._held)
            if kind not in (OPEN, DATA, CLOSE, CONNECTION) or length > MAX_BYTES:
                raise FrameError(f"{bytes(self._held[: HEAD.size])!r}")
            if len(self._held) < HEAD.size + length:
                return
            payload = bytes(self._held[HEAD.size : HEAD.size + length])
            del self._held[: HEAD.size + length]
            yield kind, number, place, payload
