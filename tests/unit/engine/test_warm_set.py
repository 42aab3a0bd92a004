"""Sandboxes that stand by: as many as wanted, fewer when idle, replaced when they are gone, all removed at the end."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
from tests.patience import eventually

from ringfence.engine import warm_set
from ringfence.engine.occupancy import Occupancy
from ringfence.engine.warm_set import WarmSet
from ringfence.errors import SetupError, UsageError


class Box:
    """One that does nothing but stand."""

    def __init__(self) -> None:
        self.alive = True
        self.closed = 0
        self.problem: Exception | None = None
        self.left = ""

    def is_ready(self) -> bool:
        return self.alive

    def let_go(self) -> None:
        self.alive = False

    def close(self) -> str:
        self.closed += 1
        if self.problem is not None:
            raise self.problem
        return self.left


class Maker:
    """Makes boxes and remembers them; fails when it is told to."""

    def __init__(self) -> None:
        self.made: list[Box] = []
        self.problem: Exception | None = None

    def __call__(self) -> Box:
        if self.problem is not None:
            raise self.problem
        self.made.append(Box())
        return self.made[-1]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_set, "_TICK_S", 0.01)


@pytest.fixture
def maker() -> Maker:
    return Maker()


@pytest.fixture
def three(maker: Maker) -> Iterator[WarmSet]:
    stand = WarmSet(maker, 3, 60.0)  # type: ignore[arg-type]
    eventually(lambda: len(stand) == 3)
    yield stand
    stand.close()


def test_as_many_stand_as_wanted_and_what_is_taken_is_made_anew(three: WarmSet, maker: Maker) -> None:
    assert three.take() is maker.made[0]
    eventually(lambda: len(three) == 3)
    assert len(maker.made) == 4


def test_the_one_that_stands_longest_is_handed_out_first(three: WarmSet, maker: Maker) -> None:
    first_three = list(maker.made)
    assert [three.take() for _ in range(3)] == first_three


def test_one_that_does_not_stand_any_more_is_not_handed_out_and_is_removed(three: WarmSet, maker: Maker) -> None:
    gone, good = maker.made[:2]
    gone.alive = False
    assert three.take() is good
    eventually(lambda: gone.closed == 1)


def test_who_comes_when_none_stands_gets_a_new_one(maker: Maker) -> None:
    stand = WarmSet(maker, 0, 60.0)  # type: ignore[arg-type]
    box = stand.take()
    stand.give_back(box)
    eventually(lambda: maker.made[0].closed == 1)
    stand.close()
    assert len(maker.made) == 1


def test_after_a_while_without_jobs_one_is_kept_and_the_next_job_brings_them_back(maker: Maker) -> None:
    stand = WarmSet(maker, 3, 0.1)  # type: ignore[arg-type]
    eventually(lambda: len(stand) == 1 and len(maker.made) >= 3)
    eventually(lambda: sum(box.closed for box in maker.made) == len(maker.made) - 1)
    stand._idle_s = 60.0
    stand.take()
    eventually(lambda: len(stand) == 3)
    stand.close()


def test_what_can_not_be_made_in_the_background_is_told_to_who_comes(maker: Maker) -> None:
    maker.problem = SetupError("mount", "no room")
    stand = WarmSet(maker, 2, 60.0)  # type: ignore[arg-type]
    with pytest.raises(SetupError, match="no room"):
        stand.take()
    maker.problem = None
    eventually(lambda: len(stand) == 2)
    stand.close()


@pytest.mark.parametrize("problem", [OSError(24, "Too many open files"), RuntimeError("a mistake of ours")])
def test_no_error_ends_the_thread_that_makes_and_removes(maker: Maker, problem: Exception) -> None:
    maker.problem = problem
    stand = WarmSet(maker, 2, 60.0)  # type: ignore[arg-type]
    time.sleep(0.05)
    maker.problem = None
    eventually(lambda: len(stand) == 2)
    stand.take().problem = problem  # type: ignore[attr-defined]
    stand.give_back(maker.made[0])  # type: ignore[arg-type]
    eventually(lambda: stand.left == str(problem) and len(stand) == 2)
    stand.close()


def test_closing_removes_all_that_stand_and_all_that_come_back_later(three: WarmSet, maker: Maker) -> None:
    taken = three.take()
    three.close()
    three.give_back(taken)
    assert [box.closed for box in maker.made] == [1] * len(maker.made)
    with pytest.raises(UsageError, match="closed"):
        three.take()


def test_what_could_not_be_removed_is_remembered(three: WarmSet) -> None:
    box = three.take()
    box.left = "a directory"  # type: ignore[attr-defined]
    three.give_back(box)
    eventually(lambda: three.left == "a directory")


def test_fifty_threads_never_get_the_same_one(three: WarmSet) -> None:
    got: list[object] = []
    threads = [threading.Thread(target=lambda: got.append(three.take())) for _ in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len({id(box) for box in got}) == 50


def test_while_enough_stand_the_next_is_made_when_one_has_come_back(
    maker: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who takes one is not to share the processors with the making of another."""
    monkeypatch.setattr(warm_set, "_TICK_S", 3600.0)
    stand = WarmSet(maker, 4, 60.0)  # type: ignore[arg-type]
    eventually(lambda: len(stand) == 4)
    first, second = stand.take(), stand.take()
    time.sleep(0.05)
    assert len(maker.made) == 4
    stand.give_back(first)
    eventually(lambda: len(stand) == 4)
    third, fourth, fifth = stand.take(), stand.take(), stand.take()
    eventually(lambda: len(stand) >= 3)  # control: fewer than half stand, so nobody is waited for
    for box in (second, third, fourth, fifth):
        stand.give_back(box)
    stand.close()


@pytest.mark.parametrize("warm", [0, 1])
def test_one_that_was_made_already_counts_and_is_removed_where_none_is_wanted(maker: Maker, warm: int) -> None:
    first = Box()
    stand = WarmSet(maker, warm, 60.0, first)  # type: ignore[arg-type]
    eventually(lambda: first.closed == 1 - warm)
    assert len(stand) == warm
    stand.close()
    assert first.closed == 1 and not maker.made


def _interrupted(condition: threading.Condition) -> None:
    """As a signal's handler that raises once the lock is taken, and before there is anybody to give it back."""
    condition._lock.__enter__()  # type: ignore[attr-defined]
    raise KeyboardInterrupt


def test_a_signal_that_raises_leaves_no_lock_taken(maker: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else nobody makes another sandbox, and the end of the pool is waited for without end."""
    stand, occupancy = WarmSet(maker, 0, 60.0), Occupancy("pool")  # type: ignore[arg-type]
    monkeypatch.setattr(threading.Condition, "__enter__", _interrupted)
    stand.give_back(stand.take())
    occupancy.enter().leave()
    assert stand.close() == "" and occupancy.begin_closing() and occupancy.visits() == []
