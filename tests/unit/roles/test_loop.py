"""The loop of those who lead: what is due is done in order, and nobody who is heard moves the deadline of another."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from ringfence.roles import loop as loops
from ringfence.roles.loop import Descriptors, Loop

MS = 1_000_000


@pytest.fixture
def pipes() -> Iterator[list[tuple[int, int]]]:
    made = [os.pipe() for _ in range(3)]
    yield made
    for descriptor in [each for pair in made for each in pair]:
        os.close(descriptor)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    now = [time.monotonic_ns()]
    monkeypatch.setattr(loops, "time", SimpleNamespace(monotonic_ns=lambda: now[0]))
    return now


def test_what_is_due_is_done_in_the_order_of_its_times(clock: list[int]) -> None:
    loop, done = Loop(), []
    for place in (3, 1, 2, 9):
        loop.at(clock[0] - 5 * MS + place * MS, lambda place=place: done.append(place))  # type: ignore[misc]
    loop.turn()
    assert done == [1, 2, 3]
    clock[0] += 9 * MS
    loop.turn()
    assert done == [1, 2, 3, 9]


def test_what_was_cancelled_is_not_done(clock: list[int]) -> None:
    loop, done = Loop(), []
    loop.at(clock[0], lambda: done.append("no")).cancel()
    loop.at(clock[0], lambda: done.append("yes"))
    loop.turn()
    assert done == ["yes"]


def test_deadlines_come_before_looks_and_between_them(clock: list[int]) -> None:
    loop, done = Loop(), []

    def slow_look() -> None:
        done.append("look")
        clock[0] += 30 * MS

    loop.look_at(clock[0] - 2 * MS, slow_look)
    loop.look_at(clock[0] - MS, slow_look)
    loop.at(clock[0], lambda: done.append("due"))
    loop.at(clock[0] + 20 * MS, lambda: done.append("due meanwhile"))
    loop.turn()
    assert done == ["due", "look", "due meanwhile", "look"]


def test_who_is_heard_for_long_does_not_move_the_deadline_of_another(
    pipes: list[tuple[int, int]], clock: list[int]
) -> None:
    loop, done = Loop(), []

    def hear(descriptor: int) -> None:
        done.append("heard")
        clock[0] += 20 * MS

    for reader, writer in pipes:
        os.write(writer, b"x")
        loop.add(reader, hear)
    loop.at(clock[0] + 10 * MS, lambda: done.append("due"))
    loop.turn()
    assert done == ["heard", "due", "heard", "heard"]


def test_what_is_dropped_by_another_is_not_heard(pipes: list[tuple[int, int]]) -> None:
    loop, heard = Loop(), []
    mine = Descriptors(loop, lambda descriptor: (heard.append(descriptor), mine.clear()))  # type: ignore[func-returns-value]
    for reader, writer in pipes:
        os.write(writer, b"x")
        mine.register(reader)
    loop.turn()
    assert len(heard) == 1
    assert loop.ready(0) == []
    mine.unregister(pipes[0][0])


@pytest.mark.parametrize("many", [False, True])
def test_who_gets_the_number_of_one_that_was_dropped_is_not_heard_in_its_place(
    pipes: list[tuple[int, int]], many: bool
) -> None:
    """It has nothing to read, and whoever waits for it keeps all others waiting."""
    loop, heard = Loop(many=many), []

    def exchange(descriptor: int) -> None:
        for reader, _ in pipes[:2]:
            loop.drop(reader)
            os.dup2(pipes[2][0], reader)
            loop.add(reader, heard.append)

    for reader, writer in pipes[:2]:
        os.write(writer, b"x")
        loop.add(reader, exchange)
    loop.turn()
    assert heard == []
    os.write(pipes[2][1], b"x")
    loop.turn()
    assert sorted(heard) == sorted(reader for reader, _ in pipes[:2]), "control: the new ones are heard by themselves"


def test_who_is_paused_is_heard_again_when_the_pause_is_over(pipes: list[tuple[int, int]], clock: list[int]) -> None:
    loop, heard = Loop(), []
    mine = Descriptors(loop, heard.append)
    for reader, writer in pipes[:2]:
        os.write(writer, b"x")
        mine.register(reader)
        mine.pause(reader, 20 * MS)
    assert loop.ready(0) == []
    mine.unregister(pipes[1][0])
    clock[0] += 20 * MS
    loop.turn()
    loop.turn()
    assert heard == [pipes[0][0]]


def test_what_was_cancelled_is_not_kept_until_its_time() -> None:
    loop = Loop()
    for _ in range(5000):
        loop.at(time.monotonic_ns() + 10**15, lambda: None).cancel()
    assert len(loop._deadlines) < 1000


@pytest.mark.parametrize("many", [False, True], ids=["poll", "epoll"])
def test_a_deadline_in_thirty_years_keeps_nobody_from_being_heard(many: bool, pipes: list[tuple[int, int]]) -> None:
    """The deadline of a box is that far away, and the last timer of what one of its visits has left."""
    loop, heard = Loop(many=many), list[int]()
    (reader, writer), *_ = pipes
    loop.at(time.monotonic_ns() + 10**18, lambda: None)
    loop.add(reader, lambda descriptor: heard.append(descriptor))
    os.write(writer, b"x")
    loop.turn()
    assert heard == [reader]
