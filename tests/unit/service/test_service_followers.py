"""Many who follow one run: what each of them costs the event loop, which is everybody's."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Iterator
from typing import Any

import pytest

from ringfence.service import event_log
from ringfence.service.event_log import EventLog, Feed
from ringfence.service.json_text import json_text

_MANY = 30


async def _heard(log: EventLog, number: int = 0) -> list[bytes]:
    return [piece async for piece in log.follow(number)]


def _numbers(pieces: list[bytes]) -> list[int]:
    lines = b"".join(pieces).split(b"\n")
    return [int(line.removeprefix(b"id: ")) for line in lines if line.startswith(b"id: ")]


async def _turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def _filled(count: int, *, is_over: bool = True) -> EventLog:
    log = EventLog()
    for number in range(1, count + 1):
        log.tell("output", {"number": number}, last=is_over and number == count)
    return log


def test_an_event_becomes_text_once_for_all_who_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []

    def counted(value: object) -> str:
        made.append(value)
        return json_text(value)

    monkeypatch.setattr(event_log, "json_text", counted)
    log = _filled(200, is_over=False)

    async def attack() -> None:
        following = [asyncio.ensure_future(_heard(log)) for _ in range(_MANY)]
        await _turns()
        log.tell("end", None, last=True)
        for pieces in await asyncio.gather(*following):
            assert _numbers(pieces) == [*range(1, 202)]  # the control: everybody hears all

    asyncio.run(attack())
    assert len(made) == 201
    assert not log._texts and not log._text_bytes, "nobody follows any more"


def test_text_for_the_next_follower_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_log, "_SHARED_BYTES", 1000)
    log = _filled(200)
    assert _numbers(asyncio.run(_heard(log))) == [*range(1, 201)]

    async def attack() -> None:
        stream = log.follow(0)
        await anext(stream)
        assert 0 < log._text_bytes == sum(map(len, log._texts.values())) <= 1000
        await stream.aclose()

    asyncio.run(attack())


class _Counted(deque[Any]):
    """Counts what is read of it."""

    reads = 0

    def __getitem__(self, place: Any) -> Any:
        self.reads += 1
        return super().__getitem__(place)

    def __iter__(self) -> Iterator[Any]:
        self.reads += len(self)
        return super().__iter__()


def test_who_has_most_of_it_makes_nobody_read_it_again() -> None:
    log = _filled(4000)
    log._kept = kept = _Counted(log._kept)
    kept.reads = 0
    assert _numbers(asyncio.run(_heard(log, 3990))) == [*range(3991, 4001)]
    assert kept.reads == 10
    assert _numbers(asyncio.run(_heard(log))) == [*range(1, 4001)]  # the control


def test_what_is_gone_is_told_also_to_who_begins_in_the_middle() -> None:
    log = _filled(5000)
    pieces = asyncio.run(_heard(log, 100))
    missed = 5000 - 4096 - 100
    assert pieces[0].startswith(b'id: 904\nevent: dropped\ndata: {"events":%d}\n\n' % missed)
    assert _numbers(pieces) == [904, *range(905, 5001)]


def test_who_follows_is_woken_once_for_all_that_comes_before_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_log, "_PAUSE_S", 1000.0)
    log = EventLog()

    async def attack() -> None:
        wakes: list[object] = []
        loop = asyncio.get_running_loop()
        soon = loop.call_soon_threadsafe

        def counted(callback: Any, *given: Any, context: Any = None) -> asyncio.Handle:
            wakes.append(callback)
            return soon(callback, *given, context=context)

        monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
        following = [asyncio.ensure_future(_heard(log)) for _ in range(_MANY)]
        await _turns()
        log.tell("output", 1)
        await _turns()
        assert len(wakes) == _MANY  # the control: the first event is heard at once
        for number in range(2, 400):
            log.tell("output", number)
            await _turns(1)
        assert len(wakes) <= 2 * _MANY, "a wake-up for each event would be ten thousand"
        log.tell("end", None, last=True)
        for pieces in await asyncio.gather(*following):
            assert len(pieces) == 2 and _numbers(pieces) == [*range(1, 401)], "together, and the end ends the pause"

    asyncio.run(attack())


def test_a_long_record_comes_in_pieces_with_turns_for_others() -> None:
    log = _filled(4000)

    async def attack() -> None:
        turns = 0
        following = asyncio.ensure_future(_heard(log))
        while not following.done():
            await asyncio.sleep(0)
            turns += 1
        pieces = following.result()
        assert len(pieces) >= 4000 // event_log._PIECE_EVENTS and turns >= len(pieces)
        assert max(map(len, pieces)) < 2 * event_log._PIECE_BYTES

    asyncio.run(attack())


def test_who_has_all_attempts_makes_nobody_read_them_again() -> None:
    feed = Feed()
    for number in range(1000):
        feed.tell("one", "attempt", number, 100)

    class Last(deque[Any]):
        def __iter__(self) -> Iterator[Any]:
            raise AssertionError("read from its beginning")

    feed._kept["one"] = Last(feed._kept["one"])
    assert [each[0] for each in feed.since(998, "one")] == [999, 1000]
    assert len(feed.since(0, "one")) == 1000  # the control


class _Watched(set[object]):
    """Followers, and whether the lock was held when one came, when one went, and when all were gone through."""

    def __init__(self, lock: threading.Lock) -> None:
        super().__init__()
        self._lock, self.seen = lock, list[tuple[str, bool]]()

    def add(self, each: object) -> None:
        self.seen.append(("add", self._lock.locked()))
        super().add(each)

    def discard(self, each: object) -> None:
        self.seen.append(("discard", self._lock.locked()))
        super().discard(each)

    def __iter__(self) -> Iterator[object]:
        self.seen.append(("iter", self._lock.locked()))
        return super().__iter__()


def test_who_comes_to_a_run_does_not_disturb_the_thread_that_leads_it() -> None:
    """A set that grows while the run's thread goes through it would make the run fail."""
    log = EventLog()
    log._waiting = watched = _Watched(log._lock)  # type: ignore[assignment]

    async def attack() -> None:
        following = asyncio.ensure_future(_heard(log))
        await _turns()
        await asyncio.to_thread(log.tell, "end", None, last=True)
        assert _numbers(await following) == [1]  # the control: it is heard

    asyncio.run(attack())
    assert watched.seen == [("add", True), ("iter", True), ("discard", True)]
