"""The ring of a stream that never ends: bounded, with exact positions, whoever reads when."""

from __future__ import annotations

import random
import threading

import pytest

from ringfence.backends.newest import Newest
from ringfence.errors import UsageError


def _with(limit: int, *pieces: bytes) -> Newest:
    newest = Newest(limit)
    for piece in pieces:
        newest.add(piece)
    return newest


def test_what_fits_is_kept_as_it_came() -> None:
    newest = _with(5, b"ab", b"cde")
    assert newest.all() == b"abcde"
    heard = newest.read(2, 0)
    assert (heard.data, heard.position, heard.dropped, heard.ended) == (b"cde", 5, 0, False)


def test_beyond_the_limit_the_newest_stay_behind_a_text_that_counts_the_others() -> None:
    newest = _with(5, b"abcd", b"efgh", b"i")
    assert newest.all() == b"[TRUNCATED] 4 bytes dropped\nefghi"
    heard = newest.read(1, 0)
    assert (heard.data, heard.position, heard.dropped) == (b"efghi", 9, 3)


def test_a_character_that_was_cut_is_counted_as_dropped() -> None:
    newest = _with(5, "aé€".encode(), b"xy")  # the last five bytes begin with the three of the euro sign
    assert newest.all() == b"[TRUNCATED] 3 bytes dropped\n" + "€xy".encode()
    newest.add(b"z")
    assert newest.all() == b"[TRUNCATED] 6 bytes dropped\nxyz"
    assert _with(3, b"\x80" * 9).all() == b"[TRUNCATED] 6 bytes dropped\n" + b"\x80" * 3  # no text at all


def test_whoever_reads_on_gets_every_byte_once() -> None:
    chance, newest, whole, got, at = random.Random(7), Newest(1000), b"", b"", 0
    for _ in range(500):
        piece = chance.randbytes(chance.randrange(400))
        whole += piece
        newest.add(piece)
        if chance.random() < 0.7:
            heard = newest.read(at, 0)
            assert heard.position - at == heard.dropped + len(heard.data)
            got += b"?" * heard.dropped + heard.data
            at = heard.position
    got += newest.read(at, 0).data
    assert len(got) == len(whole) and all(a == b or a == ord("?") for a, b in zip(got, whole, strict=True))


def test_a_reader_waits_for_more_and_for_the_end() -> None:
    newest = Newest(10)
    threading.Timer(0.05, newest.add, (b"more",)).start()
    assert newest.read(0, None).data == b"more"
    threading.Timer(0.05, newest.end).start()
    heard = newest.read(4, None)
    assert heard.ended and heard.data == b"" and heard.position == 4
    assert newest.read(0, 0).data == b"more"  # also after the end


def test_a_position_that_has_not_come_gives_nothing_and_stays() -> None:
    heard = _with(10, b"ab").read(7, 0)
    assert (heard.data, heard.position, heard.dropped) == (b"", 7, 0)


@pytest.mark.parametrize("since", [-1, 1.0, None, True, "0"])
def test_what_is_no_position_is_refused(since: object) -> None:
    with pytest.raises(UsageError, match="position"):
        Newest(5).read(since, 0)  # type: ignore[arg-type]


@pytest.mark.parametrize("timeout_s", [float("nan"), "1"])
def test_what_is_no_time_is_refused(timeout_s: object) -> None:
    with pytest.raises(UsageError, match="number of seconds"):
        Newest(5).read(0, timeout_s)  # type: ignore[arg-type]
    assert _with(5, b"a").read(0, 1e30).data == b"a"
