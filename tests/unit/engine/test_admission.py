"""The line in front of the places of a pool: order, bound, withdrawal, the end."""

from __future__ import annotations

import threading

import pytest

from ringfence.engine.admission import AdmissionQueue, Slot
from ringfence.errors import UnavailableError, UsageError


def test_who_comes_first_is_served_first() -> None:
    line = AdmissionQueue(1, None)
    turns = [line.join() for _ in range(5)]
    for place, slot in enumerate(turns):
        assert [_has_come(other) for other in turns] == [True] * (place + 1) + [False] * (4 - place)
        line.leave(slot)
    assert not line._waiting


def test_no_more_than_the_places_there_are_have_their_turn() -> None:
    line = AdmissionQueue(2, None)
    turns = [line.join() for _ in range(5)]
    assert [_has_come(slot) for slot in turns] == [True, True, False, False, False]
    line.leave(turns[0])
    assert [_has_come(slot) for slot in turns[1:]] == [True, True, False, False]


def test_a_line_that_is_too_long_is_refused_and_says_how_long_it_is() -> None:
    line = AdmissionQueue(1, 2)
    turns = [line.join() for _ in range(3)]
    with pytest.raises(UnavailableError, match="1 jobs run and 2 wait") as caught:
        line.join()
    assert "queue_limit" in caught.value.hint
    line.leave(turns[0])
    assert not _has_come(line.join())


def test_leaving_twice_frees_one_place_only() -> None:
    line = AdmissionQueue(1, None)
    first, second, third = (line.join() for _ in range(3))
    line.leave(first)
    line.leave(first)
    assert _has_come(second) and not _has_come(third)


def test_who_withdraws_is_passed_over_and_told_why() -> None:
    line = AdmissionQueue(1, None)
    first, second, third = (line.join() for _ in range(3))
    assert line.withdraw(second, "changed its mind")
    assert not second.wait() and second.refused == "changed its mind"
    line.leave(first)
    assert third.wait()


def test_whose_turn_has_come_can_not_withdraw_and_keeps_its_place() -> None:
    line = AdmissionQueue(1, None)
    first, second = line.join(), line.join()
    assert not line.withdraw(first, "too late")
    assert first.wait() and not _has_come(second)


def test_closing_sends_away_who_waits_and_whoever_comes_later() -> None:
    line = AdmissionQueue(1, None)
    first, second = line.join(), line.join()
    line.close()
    assert first.wait() and not second.wait() and "closed" in second.refused
    with pytest.raises(UsageError, match="closed"):
        line.join()


def test_a_hundred_threads_never_hold_more_than_the_places() -> None:
    line, held, most, lock = AdmissionQueue(3, None), [0], [0], threading.Lock()

    def work() -> None:
        slot = line.join()
        assert slot.wait()
        with lock:
            held[0] += 1
            most[0] = max(most[0], held[0])
        with lock:
            held[0] -= 1
        line.leave(slot)

    threads = [threading.Thread(target=work) for _ in range(100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert 1 <= most[0] <= 3 and not line._served and not line._waiting


def _has_come(slot: Slot) -> bool:
    return slot._event.is_set()
