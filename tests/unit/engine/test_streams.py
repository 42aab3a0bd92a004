"""Output cut at a bound that cannot be exceeded, input fed, and no wait for anybody outside."""

from __future__ import annotations

import os
import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.engine.streams import MESSAGE_BYTES, Capture, Streams, marker
from ringfence.errors import SetupError
from ringfence.model.job import Job
from ringfence.model.limits import UNLIMITED_OUTPUT


def cut(data: bytes, limit: int, sizes: list[int]) -> Capture:
    capture, at = Capture("stdout", limit), 0
    for size in sizes:
        if piece := data[at : at + size]:
            capture.add(piece)
        at += size
    if data[at:]:
        capture.add(data[at:])
    return capture


def test_the_marker_says_how_much_is_missing() -> None:
    capture = cut(b"abcdef", 4, [])
    assert capture.result() == b"abcd\n[TRUNCATED] 2 bytes dropped\n" and capture.dropped == 2


def test_what_fits_has_no_marker() -> None:
    assert cut(b"abcd", 4, []).result() == b"abcd"


@pytest.mark.slow
@given(st.binary(max_size=60), st.integers(1, 40), st.lists(st.integers(1, 9), max_size=12))
def test_the_cut_is_the_same_in_whatever_pieces_the_output_came(data, limit, sizes) -> None:
    capture = cut(data, limit, sizes)
    assert capture.result() == cut(data, limit, []).result()
    kept = capture.result().removesuffix(marker(capture.dropped)) if capture.dropped else capture.result()
    assert data.startswith(kept) and len(kept) <= limit and len(kept) + capture.dropped == len(data)
    assert not capture.dropped or len(kept) > limit - 4


@pytest.mark.slow
@given(st.text("aé€\U0001f600", max_size=30), st.integers(1, 40), st.lists(st.integers(1, 5), max_size=12))
def test_a_character_is_never_cut_in_half(text, limit, sizes) -> None:
    result = cut(text.encode(), limit, sizes).result()
    assert text.startswith(result.decode().partition("\n[TRUNCATED]")[0])


@given(st.lists(st.binary(min_size=1, max_size=20), max_size=10), st.integers(1, 50))
def test_a_listener_hears_in_order_what_is_kept(pieces, limit) -> None:
    heard: list[bytes] = []
    capture = Capture("stderr", limit, lambda name, piece: heard.append(piece) if name == "stderr" else None)
    for piece in pieces:
        capture.add(piece)
    said = b"".join(heard)
    assert b"".join(pieces).startswith(said) and len(said) <= limit
    assert said.startswith(capture.result().removesuffix(marker(capture.dropped)))


def test_a_flood_costs_the_limit_and_no_more() -> None:
    capture = Capture("stdout", 1000)
    for _ in range(1000):
        capture.add(b"x" * 65536)
    assert len(capture._kept) == 1000 and capture.dropped == 65536000 - 1000


def test_the_tail_is_where_a_failing_program_says_why() -> None:
    assert cut(b"a" * 5000 + b"why", 10_000, []).tail.endswith(b"awhy")
    assert len(cut(b"a" * 9999, 10_000, []).tail) == 4096


def made(**job: object) -> Streams:
    return Streams(Job(argv=("x",), **job), 1000, None)  # type: ignore[arg-type]


@pytest.fixture
def balanced():
    before = sorted(os.listdir("/dev/fd"))
    yield
    assert sorted(os.listdir("/dev/fd")) == before


def test_without_input_the_job_reads_nothing(balanced) -> None:
    for stdin in (None, b""):
        streams = made(stdin=stdin)
        assert os.read(streams.theirs[0], 10) == b"" and streams.writer == -1 and len(streams.theirs) == 3
        streams.close()


def test_input_is_fed_as_the_job_takes_it(balanced) -> None:
    data = os.urandom(300_000)
    streams, got = made(stdin=data), b""
    more = True
    while more or len(got) < len(data):
        more = more and streams.write()
        got += os.read(streams.theirs[0], 65536)
    assert got == data
    streams.stop_writing()
    assert os.read(streams.theirs[0], 1) == b""
    streams.close()


def test_a_file_is_handed_over_or_fed_as_it_is_wanted(balanced, tmp_path) -> None:
    data = os.urandom(300_000)
    (tmp_path / "input").write_bytes(data)
    with open(tmp_path / "input", "rb") as file:
        streams = made(stdin=file.fileno())
        assert os.path.samestat(os.fstat(streams.theirs[0]), os.fstat(file.fileno()))
        streams.close()
        streams = Streams(Job(argv=("x",), stdin=file.fileno()), 1000, None, files_apart=True)
        assert stat.S_ISFIFO(os.fstat(streams.theirs[0]).st_mode)
        got = b""
        while streams.write():
            got += os.read(streams.theirs[0], 65536)
        assert got == data
        streams.close()


def test_a_folder_as_input_is_fed_as_nothing(balanced, tmp_path) -> None:
    folder = os.open(tmp_path, os.O_RDONLY)
    streams = Streams(Job(argv=("x",), stdin=folder), 1000, None, files_apart=True)
    assert not streams.write()
    streams.stop_writing()
    assert os.read(streams.theirs[0], 1) == b""
    streams.close()
    os.close(folder)


def test_a_full_pipe_and_a_job_that_does_not_read_do_not_block_the_caller(balanced) -> None:
    streams = made(stdin=b"x" * 2**20)
    for _ in range(20):
        assert streams.write() is True
    assert 0 < streams._pending.nbytes < 2**20  # the pipe is full, the rest waits
    streams.release_theirs()
    assert streams.write() is False
    streams.close()


def test_a_descriptor_is_handed_over_and_stays_the_callers(balanced) -> None:
    reader, writer = os.pipe()
    os.write(writer, b"hello")
    streams = made(stdin=reader)
    assert os.read(streams.theirs[0], 10) == b"hello" and streams.theirs[0] != reader
    streams.close()
    os.fstat(reader)
    os.close(reader)
    os.close(writer)


def test_a_closed_descriptor_is_a_set_up_error_and_leaves_nothing_open(balanced) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    os.close(writer)
    with pytest.raises(SetupError, match="streams"):
        made(stdin=reader)


def test_running_out_of_descriptors_is_a_set_up_error_and_leaves_nothing_open(balanced, monkeypatch) -> None:
    pipe, calls = os.pipe, []

    def scarce() -> tuple[int, int]:
        calls.append(1)
        if len(calls) == 3:
            raise OSError(24, "Too many open files")
        return pipe()

    monkeypatch.setattr(os, "pipe", scarce)
    with pytest.raises(SetupError, match="Too many open files"):
        made(stdin=b"x")


def test_output_is_read_until_the_last_writer_is_gone(balanced) -> None:
    streams = made(channel=True)
    out, err, channel = streams.theirs[1:]
    readers = {capture.name: place for place, capture in streams.readers.items()}
    assert streams.read(readers["stdout"]) is True  # nothing yet, and no wait
    for place, text in ((out, b"out"), (err, b"err"), (channel, b"message")):
        os.write(place, text)
    streams.release_theirs()
    for place in readers.values():
        assert streams.read(place) is True and streams.read(place) is False
        streams.stop_reading(place)
    assert streams.channel is not None and streams.channel.result() == b"message"
    assert (streams.stdout.result(), streams.stderr.result()) == (b"out", b"err")
    streams.close()


def test_what_is_left_in_the_pipes_is_taken_at_the_end(balanced) -> None:
    streams = made()
    os.write(streams.theirs[1], b"late")
    streams.drain()  # the writer is still open: no wait for its end
    assert streams.stdout.result() == b"late"
    streams.close()


def test_somebody_outside_who_never_stops_writing_cannot_hold_the_caller(balanced, monkeypatch) -> None:
    reads: list[int] = []

    def always_more(descriptor: int) -> bytes:
        reads.append(descriptor)
        assert len(reads) < 10_000, "still reading"
        return b"more"

    streams = made()
    monkeypatch.setattr(streams, "_taken", always_more)
    streams.drain()
    assert len(reads) > 2 * (2**20 // 4096)  # what a pipe or terminal may hold at its largest
    streams.close()


def test_all_three_streams_are_one_terminal(balanced) -> None:
    keyboard, typist = os.pipe()
    streams = made(terminal=True, stdin=keyboard)
    assert all(os.isatty(place) for place in streams.theirs)
    os.write(typist, b"hi\n")
    assert streams.relay_keyboard() is True and os.read(streams.theirs[0], 10) == b"hi\n"
    os.write(streams.theirs[1], b"out")
    streams.drain()
    assert b"out" in streams.stdout.result()
    os.close(typist)
    assert streams.relay_keyboard() is False
    streams.close()
    os.close(keyboard)


def test_a_caller_that_closes_its_descriptor_gives_the_job_nothing_that_has_the_number_then(balanced) -> None:
    keyboard, typist = os.pipe()
    streams = made(terminal=True, stdin=keyboard)
    secret, teller = os.pipe()
    os.dup2(secret, keyboard)
    os.write(teller, b"a secret\n")
    os.write(typist, b"hi\n")
    assert streams.relay_keyboard() is True and os.read(streams.theirs[0], 10) == b"hi\n"
    streams.close()
    assert os.read(keyboard, 10) == b"a secret\n"
    for descriptor in (keyboard, typist, secret, teller):
        os.close(descriptor)


def test_typing_after_the_job_has_let_go_of_its_terminal_ends_the_relay(balanced) -> None:
    keyboard, typist = os.pipe()
    streams = made(terminal=True, stdin=keyboard, channel=True)
    streams.release_theirs()
    place = streams.terminal
    assert streams.read(place) is False
    streams.stop_reading(place)
    os.write(typist, b"x")
    assert streams.terminal == -1 and streams.relay_keyboard() is False
    streams.close()
    os.close(typist)
    os.close(keyboard)


def test_a_job_that_does_not_read_its_terminal_keeps_the_keyboard(balanced) -> None:
    import tty

    keyboard, typist = os.pipe()
    streams = made(terminal=True, stdin=keyboard)
    tty.setraw(streams.theirs[0])
    for _ in range(80):
        os.write(typist, b"x" * 1024)
        assert streams.relay_keyboard() is True
    with pytest.raises(BlockingIOError):
        os.write(streams.terminal, b"x" * 1024)  # the control: it really is full
    streams.close()
    os.close(typist)
    os.close(keyboard)


def test_a_callers_terminal_that_is_gone_ends_the_relay_not_the_run(balanced) -> None:
    keyboard, typist = os.pipe()
    streams = made(terminal=True, stdin=keyboard)
    os.close(typist)
    os.close(keyboard)
    assert streams.relay_keyboard() is False
    streams.close()


def test_of_output_without_a_bound_that_somebody_is_told_only_the_end_is_kept() -> None:
    told = []
    capture = Capture("stdout", UNLIMITED_OUTPUT, lambda _, piece: told.append(len(piece)))
    for _ in range(1000):
        capture.add(b"x" * 65536)
    capture.add(b"the end")
    assert sum(told) == 1000 * 65536 + 7 and not capture.dropped
    assert capture.result().endswith(b"x" * 4096 + b"the end") and len(capture.result()) < 2**20


def test_a_channel_that_is_written_without_end_is_a_flood() -> None:
    opened = Streams(Job(argv=("true",), channel=True), 1000, None)
    try:
        assert opened.channel is not None and not opened.is_flooded()
        opened.channel.add(bytes(MESSAGE_BYTES))
        assert opened.message() is not None and not opened.is_flooded()
        opened.channel.add(b"x")
        assert opened.message() is None and not opened.is_flooded()  # too long, and it may still end by itself
        opened.channel.add(bytes(MESSAGE_BYTES))
        assert opened.is_flooded()
    finally:
        opened.close()
