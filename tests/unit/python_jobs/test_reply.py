"""The message of a Python job: whatever the guest writes becomes one kind of reply, never an exception."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringfence.python_jobs import reply
from ringfence.python_jobs.reply import ReplyKind, pack_raised, pack_value, read_reply

GOOD = pack_value({"a": (1, b"x")}, 1000)


def _framed(kind: bytes, payload: bytes, *, magic: bytes = b"RFR", version: int = 1) -> bytes:
    return struct.pack("!3sBcI", magic, version, kind, len(payload)) + payload


def test_a_value_arrives() -> None:
    read = read_reply(GOOD)
    assert (read.kind, read.value, read.problem) == (ReplyKind.VALUE, {"a": (1, b"x")}, "")


def test_none_is_a_value_and_not_nothing() -> None:
    assert read_reply(pack_value(None, 100)).kind is ReplyKind.VALUE
    assert read_reply(b"").kind is ReplyKind.NOTHING


def test_an_exception_arrives_as_texts() -> None:
    raised = read_reply(pack_raised("json.decoder.JSONDecodeError", "no\nvalue", "Traceback…\n")).raised
    assert raised is not None
    texts = (raised.type_name, raised.message, raised.traceback)
    assert texts == ("json.decoder.JSONDecodeError", "no\nvalue", "Traceback…\n")


def test_why_there_is_no_value_is_told() -> None:
    unsendable = read_reply(pack_value([object()], 1000))
    assert unsendable.kind is ReplyKind.UNSENDABLE and "value[0]: a object can't be sent" in unsendable.problem
    large = read_reply(pack_value("x" * 1000, 100), max_bytes=100)
    assert large.kind is ReplyKind.TOO_LARGE and "1002 bytes, 100 are allowed" in large.problem


HOSTILE = (
    (b"hello", ReplyKind.GARBLED), (b"R", ReplyKind.HALF), (GOOD[:7], ReplyKind.HALF), (GOOD[:-1], ReplyKind.HALF),
    (GOOD + b"\0", ReplyKind.TRAILING), (GOOD + GOOD, ReplyKind.TRAILING), (None, ReplyKind.OVERFLOW),
    (b"x" * (reply.channel_bytes(1000) + 1), ReplyKind.OVERFLOW), (_framed(b"V", b"[1"), ReplyKind.GARBLED),
    (_framed(b"V", b""), ReplyKind.GARBLED), (_framed(b"V", b"1", version=2), ReplyKind.GARBLED),
    (_framed(b"V", b"1", magic=b"RFX"), ReplyKind.GARBLED), (_framed(b"?", b"1"), ReplyKind.GARBLED),
    (_framed(b"E", b'["a","b"]'), ReplyKind.GARBLED), (_framed(b"E", b'["a","b",3]'), ReplyKind.GARBLED),
    (_framed(b"L", b"[]"), ReplyKind.GARBLED), (_framed(b"V", b'"' + b"x" * 2000 + b'"'), ReplyKind.GARBLED),
    (struct.pack("!3sBcI", b"RFR", 1, b"V", 2**32 - 1) + b"1", ReplyKind.HALF),
    (_framed(b"B", b""), ReplyKind.GARBLED), (_framed(b"B", b"\0\0\0"), ReplyKind.GARBLED),
    (_framed(b"B", b"\0\0\0\1" + b"1"), ReplyKind.GARBLED), (_framed(b"B", b"\0\0\0\0" + b"x"), ReplyKind.GARBLED),
    (_framed(b"B", b"\xff\xff\xff\xff" + b"1x"), ReplyKind.GARBLED),
    (_framed(b"B", b"\0\0\0\x11" + b'{"$beside":[0,9]}' + b"x"), ReplyKind.GARBLED),
    (_framed(b"B", b"\0\0\0\1" + b"1" + b"x" * 5096), ReplyKind.GARBLED),
)  # fmt: skip


@pytest.mark.parametrize(("data", "kind"), HOSTILE, ids=range(len(HOSTILE)))
def test_what_a_hostile_guest_writes_has_a_kind_of_its_own_and_a_reason(data: bytes | None, kind: ReplyKind) -> None:
    read = read_reply(data, max_bytes=1000)
    assert (read.kind, read.value, read.raised) == (kind, None, None)
    assert read.problem.isprintable() and read.problem


@given(st.one_of(st.binary(max_size=50), st.tuples(st.sampled_from(b"VBELN?"), st.binary(max_size=50)).map(
    lambda parts: _framed(bytes([parts[0]]), parts[1]))))  # fmt: skip
@settings(max_examples=200, deadline=None)
def test_any_bytes_become_a_reply(data: bytes) -> None:
    assert read_reply(data).kind in ReplyKind


def test_a_guests_text_can_not_write_to_the_terminal_of_whoever_reads_it() -> None:
    raised = read_reply(pack_raised("E\n\x1b]0;x\x07", "\x1b[2J\ud800\tok\n", "\x9b31m\u202e")).raised
    assert raised is not None
    assert raised.type_name == r"E\n\x1b]0;x\x07"
    assert raised.message == "\\x1b[2J\\ud800\tok\n"
    assert raised.traceback == r"\x9b31m\u202e"


def test_long_texts_keep_their_start_and_their_end_and_fit_whatever_the_value_may_take() -> None:
    long = "A" + "\0" * 200_000 + "Z"
    packed = pack_raised(long, long, long)
    assert len(packed) <= reply.channel_bytes(10)
    raised = read_reply(packed, max_bytes=10).raised
    assert raised is not None
    assert raised.message.startswith("A\\x00") and raised.message.endswith("\\x00Z")
    assert "characters left out" in raised.message


def test_bytes_arrive_up_to_the_largest_value_as_they_are() -> None:
    largest = b"\xff" * 20_000
    packed = pack_value(largest, len(largest))
    assert len(packed) < len(largest) + 100 and len(packed) <= reply.channel_bytes(len(largest))
    assert read_reply(packed, max_bytes=len(largest)).value == largest
    assert read_reply(pack_value(largest + b"x", len(largest)), max_bytes=len(largest)).kind is ReplyKind.TOO_LARGE
    assert read_reply(packed, max_bytes=10_000).kind is ReplyKind.GARBLED
