"""The watchdog looks at what was written as often as the limit can have been passed."""

from __future__ import annotations

import pytest

from ringfence.posix import watchdog

FREE = dict.fromkeys(("cpu_time", "memory", "pids"), float("inf"))


class Table:
    """A tree of one process that has written so much."""

    TICKS_PER_S = 100

    def __init__(self) -> None:
        self.written, self.asked = 0, 0

    def descendants(self, _: int) -> list[object]:
        return []

    def written_bytes(self, pid: int) -> int:
        return 0

    def own_written_bytes(self, _: int) -> int:
        self.asked += 1
        return self.written


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    now = [0]
    monkeypatch.setattr(watchdog.time, "monotonic_ns", lambda: now[0])
    return now


def test_a_near_limit_is_looked_at_every_time(clock: list[int]) -> None:
    table = Table()
    dog = watchdog.Watchdog(table, FREE | {"disk": 4 << 20}, -1)
    for tick in range(4):
        clock[0] = tick * watchdog.TICK_NS
        assert dog.look() is None
    assert table.asked == 4
    table.written = 5 << 20
    clock[0] += watchdog.TICK_NS
    assert dog.look() == ("disk", 5 << 20)


def test_a_far_limit_is_looked_at_before_it_can_have_been_passed(clock: list[int]) -> None:
    table, limit = Table(), 10 << 30
    dog = watchdog.Watchdog(table, FREE | {"disk": limit}, -1)
    until_ns = limit * 10**9 // watchdog.FASTEST_BYTES_PER_S
    for clock[0] in range(0, until_ns, watchdog.TICK_NS):
        assert dog.look() is None
    assert table.asked == 1
    table.written, clock[0] = limit + 1, until_ns
    assert dog.look() == ("disk", limit + 1)
