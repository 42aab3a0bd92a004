"""The frames of an attached container, in whatever pieces they come."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.container.frames import STDERR, STDOUT, Frames
from ringfence.errors import SetupError


def frame(stream: int, data: bytes) -> bytes:
    return bytes([stream, 0, 0, 0]) + len(data).to_bytes(4, "big") + data


def told(pieces: list[bytes]) -> dict[int, bytes]:
    frames, found = Frames(), {STDOUT: b"", STDERR: b""}
    for piece in pieces:
        for stream, data in frames.feed(piece):
            found[stream] += data
    return found


@given(st.lists(st.tuples(st.sampled_from((0, 1, 2)), st.binary(max_size=40)), max_size=20), st.integers(1, 50))
def test_no_cut_changes_what_is_told(rows: list[tuple[int, bytes]], size: int) -> None:
    whole = b"".join(frame(*row) for row in rows)
    pieces = [whole[place : place + size] for place in range(0, len(whole), size)]
    assert told(pieces) == {stream: b"".join(data for each, data in rows if each == stream) for stream in (1, 2)}


def test_a_frame_of_four_gib_is_handed_on_as_it_comes() -> None:
    frames = Frames()
    assert list(frames.feed(b"\1\0\0\0\xff\xff\xff\xff")) == []
    assert [bytes(data) for _, data in frames.feed(b"x" * 10)] == [b"x" * 10]


@pytest.mark.parametrize("header", [b"\3\0\0\0\0\0\0\1", b"\1\0\0\1\0\0\0\1", b"HTTP/1.1"])
def test_what_is_no_frame_is_an_error(header: bytes) -> None:
    with pytest.raises(SetupError, match="not a frame header"):
        list(Frames().feed(header))
