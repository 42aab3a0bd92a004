"""What a leader says is cut and read safely, however it arrives and whoever wrote it."""

from __future__ import annotations

import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.transport import wire

REPORT = dict.fromkeys(wire.REPORT_FIELDS, 7)
MESSAGES = (
    (wire.STARTED, wire.started_frame(4711)),
    (wire.FAILED, wire.failed_frame("exec", 2, "No such file: x")),
    (wire.ENDED, wire.ended_frame(REPORT)),
)
DECODERS = (wire.decode_started, wire.decode_failed, wire.decode_ended)


def test_what_is_said_is_understood() -> None:
    (_, started), (_, failed), (_, ended) = wire.Frames().feed(b"".join(data for _, data in MESSAGES))
    assert wire.decode_started(started) == 4711
    assert wire.decode_failed(failed) == ("exec", 2, "No such file: x")
    assert wire.decode_ended(ended) == REPORT


@given(st.lists(st.sampled_from(MESSAGES), max_size=5), st.lists(st.integers(0, 40)))
def test_frames_are_the_same_in_whatever_pieces_they_arrive(messages, cuts) -> None:
    stream = b"".join(data for _, data in messages)
    frames, got, at = wire.Frames(), [], 0
    for size in cuts:
        got += frames.feed(stream[at : at + size])
        at += size
    got += frames.feed(stream[at:])
    assert [kind for kind, _ in got] == [kind for kind, _ in messages]
    assert [wire.frame(kind, body) for kind, body in got] == [data for _, data in messages]


@given(st.lists(st.binary(max_size=64), max_size=8))
def test_garbage_is_refused_or_held_within_bounds(pieces: list[bytes]) -> None:
    frames = wire.Frames()
    try:
        for piece in pieces:
            for kind, _ in frames.feed(piece):
                assert kind in (wire.STARTED, wire.FAILED, wire.ENDED)
    except wire.Garbled:
        return
    assert len(frames._held) <= sum(map(len, pieces))


@pytest.mark.parametrize("head", (b"X\0\0\0\1", b"E\xff\xff\xff\xff", b"E\x00\x01\x00\x01", b"\0" * 5))
def test_a_frame_of_no_kind_or_of_any_size_is_refused_before_its_body_comes(head: bytes) -> None:
    with pytest.raises(wire.Garbled):
        wire.Frames().feed(head)


def test_nothing_is_dropped_for_a_caller_that_reads_slowly_and_nobody_waits_for_it() -> None:
    reader, writer = os.pipe()
    outbox, frames, told = wire.Outbox(writer), wire.Frames(), []
    for number in range(500):
        outbox.put(wire.frame(wire.NOTED, b"%04d" % number + b"x" * 4000))
    while len(told) < 490:
        told += [body[:4] for _, body in frames.feed(os.read(reader, 65536))]
        outbox.flush()
    while wire.is_readable(reader):
        told += [body[:4] for _, body in frames.feed(os.read(reader, 65536))]
        outbox.flush()
    outbox.end(wire.ended_frame(REPORT))
    told += [kind for kind, _ in frames.feed(os.read(reader, 65536))]
    assert told == [*(b"%04d" % number for number in range(500)), wire.ENDED]
    with pytest.raises(ValueError):
        outbox.put(bytes(5000))
    os.close(reader)
    outbox.put(b"nobody listens")
    outbox.end(b"any more")
    os.close(writer)


@given(st.binary(max_size=200))
@pytest.mark.parametrize("decode", DECODERS)
def test_any_body_is_understood_or_garbled(decode, body: bytes) -> None:
    try:
        assert decode(body)
    except wire.Garbled:
        pass


@pytest.mark.parametrize("number", ("²", "٣", "-1", "", "9" * 5000, "9" * 11, "0x1"))
def test_an_error_number_that_is_none_is_garbled(number: str) -> None:
    with pytest.raises(wire.Garbled):
        wire.decode_failed(f"exec\0{number}\0text".encode())


@pytest.mark.parametrize("field", wire.REPORT_FIELDS)
@pytest.mark.parametrize("number", (-2, -(2**63)))
def test_a_negative_measure_is_garbled(field: str, number: int) -> None:
    (_, body), = wire.Frames().feed(wire.ended_frame(REPORT | {field: number}))
    with pytest.raises(wire.Garbled):
        wire.decode_ended(body)


@pytest.mark.parametrize("body", (
    b'{"a": NaN}', b'{"a": -Infinity}', b'{"a": 1e999}', b'{"a": ' + b"9" * 400 + b"}", b"[]", b"7", b"{",
    b'{"a": ' + b"[" * 9 + b"]" * 9 + b"}", b'{"a": ' + b"[" * 30_000,
), ids=lambda body: ascii(body)[:20])  # fmt: skip
def test_an_object_that_could_not_be_told_on_is_garbled(body: bytes) -> None:
    with pytest.raises(wire.Garbled):
        wire.decode_json(body)
    whole = wire.decode_json(b'{"a": [{"b": [-1.5, 12345678901234567890]}], "a": [{"b": ["x"]}]}')
    assert json.loads(json.dumps(whole)) == {"a": [{"b": ["x"]}]}


@pytest.mark.parametrize(("value", "seconds"), [
    ("1500000000", 1.5), ("0", 0.0), ("²", None), ("-1", None), ("", None), ("9" * 400, None), (5, None), (None, None),
])  # fmt: skip
def test_a_time_that_is_none_is_not_taken_for_one(value: object, seconds: float | None) -> None:
    assert wire.wall_s(value) == seconds


@pytest.mark.parametrize("status", (0x10000, 2**31, 2**62))
def test_a_wait_status_that_no_kernel_gives_is_garbled(status: int) -> None:
    (_, body), = wire.Frames().feed(wire.ended_frame(REPORT | {"wait_status": status}))
    with pytest.raises(wire.Garbled):
        wire.decode_ended(body)


@pytest.mark.parametrize("pid", (-1, 0, 1, 2**31))
def test_a_leader_that_cannot_be_is_garbled(pid: int) -> None:
    (_, body), = wire.Frames().feed(wire.started_frame(pid))
    with pytest.raises(wire.Garbled):
        wire.decode_started(body)


def test_a_long_failure_is_cut_and_still_understood() -> None:
    (_, body), = wire.Frames().feed(wire.failed_frame("exec", 2, "é" * 100_000 + "\ud800"))
    step, number, text = wire.decode_failed(body)
    assert (step, number) == ("exec", 2) and len(body) <= 4096 and text.startswith("éé")


def test_a_request_is_read_back_and_a_caller_that_is_gone_is_noticed() -> None:
    request = {"plan": [("exec", ["x", "\udcff"], {"A": "b"})], "limits": {"memory": float("inf")}, "scratch": ""}
    reader, writer = os.pipe()
    wire.write_all(writer, wire.encode_request(request))
    assert wire.read_visit(reader) == request
    wire.write_all(writer, wire.encode_request(request)[:-1])
    os.close(writer)
    with pytest.raises(EOFError):
        wire.read_visit(reader)
    os.close(reader)


def test_a_long_frame_goes_in_pieces_and_nobody_waits_for_who_reads_it() -> None:
    reader, writer = os.pipe()
    outbox, frames, told = wire.Outbox(writer), wire.Frames(), []
    bodies = [bytes([number]) * 60_000 for number in range(5)]
    for body in bodies:
        outbox.put_long(wire.frame(wire.HEALTH, body))
    assert not outbox.is_empty
    while len(told) < len(bodies):
        told += frames.feed(os.read(reader, 65536))
        outbox.flush()
    assert [body for _, body in told] == bodies and outbox.is_empty
    for descriptor in (reader, writer):
        os.close(descriptor)
