"""A guest that has its leader work without end gets no more of it than its share, and a pause is never long."""

from __future__ import annotations

import pytest

from ringfence.roles import pace

MS = 1_000_000


class Clock:
    """A processor that nobody else uses: what is worked takes as long on the wall."""

    def __init__(self) -> None:
        self.wall_ns = self.spent_ns = 0
        self.pauses: list[int] = []

    def monotonic_ns(self) -> int:
        return self.wall_ns

    def thread_time_ns(self) -> int:
        return self.spent_ns

    def work(self, held: pace.Pace) -> None:
        pause_ns = held.work(self.turn)
        if pause_ns:
            self.pauses.append(pause_ns)
            self.wall_ns += pause_ns

    def turn(self) -> None:
        self.wall_ns += 5 * MS
        self.spent_ns += 5 * MS


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(pace, "time", made)
    return made


@pytest.mark.parametrize("share", (0.05, 0.2, 0.9))
def test_a_flood_is_answered_at_its_share_and_no_pause_is_long(clock: Clock, share: float) -> None:
    held = pace.Pace(share)
    while clock.wall_ns < 20_000 * MS:
        clock.work(held)
    assert held.spent_ns == clock.spent_ns <= share * clock.wall_ns + 260 * MS
    assert held.spent_ns >= share * clock.wall_ns - 10 * MS, "and not held back by more than that"
    assert max(clock.pauses) <= 20 * MS + 1


def test_without_a_share_nobody_waits_and_all_is_counted(clock: Clock) -> None:
    free = pace.Pace(0.0)
    for _ in range(1000):
        clock.work(free)
    assert clock.pauses == [] and free.spent_ns == clock.wall_ns == 5000 * MS


def test_who_asks_seldom_never_waits(clock: Clock) -> None:
    held = pace.Pace(0.1)
    for _ in range(200):
        clock.work(held)
        clock.wall_ns += 100 * MS
    assert clock.pauses == [] and held.spent_ns == 1000 * MS
