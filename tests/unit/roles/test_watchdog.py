"""The watchdog looks at what was written as often as the limit can have been passed."""

from __future__ import annotations

import os
from itertools import pairwise
from types import SimpleNamespace

import pytest

from ringfence.roles import watchdog

FREE = dict.fromkeys(("cpu_time", "memory", "pids"), float("inf"))


class Table:
    """A tree of one process that has written so much."""

    TICKS_PER_S = 100

    def __init__(self) -> None:
        self.written, self.asked = 0, 0

    def walk(self, _: int, most: float, lost: list[int]) -> list[object]:
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


class Row:
    """A process; ``written`` is None where the user can't look into it."""

    def __init__(self, pid: int, session: int, written: int | None, zombie: bool = False) -> None:
        self.pid = self.asked = pid
        self.session, self.written, self.zombie = session, written, zombie


class Rows:
    def __init__(self, *rows: Row) -> None:
        self.rows = {row.pid: row for row in rows}

    def written_bytes(self, pid: int) -> int | None:
        return self.rows[pid].written


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Blocks of 4 KiB that are free."""
    left = [1000]
    found = SimpleNamespace(f_frsize=4096)
    monkeypatch.setattr(watchdog.os, "statvfs", lambda _: SimpleNamespace(f_bavail=left[0], **vars(found)))
    return left


def test_who_can_not_be_looked_into_is_charged_with_what_went_from_the_disk(free: list[int]) -> None:
    closed, seen = Row(5, 5, None), Row(6, 5, 100)
    count = watchdog.DiskCount(Rows(closed, seen), ["/", "/"])
    assert count.of([closed, seen], 0, -1) == 100
    free[0] -= 10
    assert count.of([closed, seen], 0, -1) == 100 + 10 * 4096
    free[0] += 20
    assert count.of([closed, seen], 0, -1) == 100 + 10 * 4096, "room that others give back hides nothing"
    free[0] -= 50
    assert count.of([closed, seen], 0, -1) == 100 + 60 * 4096
    assert count.of([seen], 0, -1) == 100


def test_pid_1_and_its_helpers_are_not_charged_but_tell_of_their_dead(free: list[int]) -> None:
    first, reaper, guest = Row(2, 2, None), Row(3, 2, None), Row(4, 4, 7)
    count, tally = watchdog.DiskCount(Rows(first, reaper, guest), ["/"]), os.eventfd(0, os.EFD_NONBLOCK)
    assert count.of([first, reaper, guest], 2, tally) == 7
    free[0] -= 10
    for _ in range(2):
        os.eventfd_write(tally, 1000)
    assert count.of([first, reaper, guest], 2, tally) == 2007
    assert count.of([first, reaper, guest], 2, tally) == 2007
    os.close(tally)


def test_root_who_sees_pid_1_counts_its_dead_once(free: list[int]) -> None:
    first, tally = Row(2, 2, 5000), os.eventfd(5000, os.EFD_NONBLOCK)
    assert watchdog.DiskCount(Rows(first), ["/"]).of([first], 2, tally) == 5000
    os.close(tally)


def test_of_a_zombie_what_was_seen_of_it_counts(free: list[int]) -> None:
    row = Row(5, 5, 300)
    count = watchdog.DiskCount(Rows(row), ["/"])
    assert count.of([row], 0, -1) == 300
    row.written, row.zombie = None, True
    free[0] -= 10
    assert count.of([row], 0, -1) == 300
    assert count.of([], 0, -1) == 0


class Workers:
    """Processes that share memory: those that end while they are added up are counted with what others had."""

    TICKS_PER_S = 100

    def __init__(self, *sums: int, come_and_go: bool = True) -> None:
        self.sums, self.listed, self.come_and_go = [*sums], 0, come_and_go

    def walk(self, _: int, most: float, lost: list[int]) -> list[object]:
        self.listed += self.come_and_go
        return [SimpleNamespace(pid=7, asked=7, rss_bytes=900, threads=1, zombie=False, start=self.listed)]

    def proportional_bytes(self, _: object) -> int:
        return self.sums.pop(0)

    def has_its_parents_memory(self, _: object, tree: set[int]) -> bool:
        return False


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole sum in one turn, however busy the machine is."""
    monkeypatch.setattr(watchdog, "_MEMORY_TURN_NS", 10**12)


@pytest.mark.parametrize(("sums", "found"), [
    ([600, 600, 600, 600], ("memory", 600)), ([600, 700, 650, 640], ("memory", 600)), ([600, 400], None),
    ([900, 800, 700, 499], None), ([500], None),
])  # fmt: skip
def test_memory_is_over_its_limit_only_if_every_sum_says_so(
    sums: list[int], found: tuple[str, float] | None, patient: None
) -> None:
    dog = watchdog.Watchdog(Workers(*sums), FREE | {"memory": 500}, -1)
    dog.processor_time.used_s = lambda tree: 0.0
    assert dog.look() == found


def test_one_sum_is_enough_where_no_process_came_or_ended_meanwhile(patient: None) -> None:
    table = Workers(600, 400, come_and_go=False)
    dog = watchdog.Watchdog(table, FREE | {"memory": 500}, -1)
    dog.processor_time.used_s = lambda tree: 0.0
    assert dog.look() == ("memory", 600) and table.sums == [400]


class Large(Workers):
    """Nine processes whose memory takes long to add up; ``clock`` goes on meanwhile."""

    def __init__(self, clock: list[int]) -> None:
        super().__init__()
        self.clock, self.rss_bytes = clock, 900

    def walk(self, _: int, most: float, lost: list[int]) -> list[object]:
        return [SimpleNamespace(pid=pid, asked=pid, rss_bytes=self.rss_bytes, threads=1, zombie=False, start=1)
                for pid in range(1, 10)]  # fmt: skip

    def proportional_bytes(self, _: object) -> int:
        self.clock[0] += watchdog._MEMORY_TURN_NS // 2
        return 100


def test_memory_that_takes_long_to_add_up_is_added_up_in_turns(clock: list[int]) -> None:
    """One tree must not keep the leader of many from their deadlines."""
    dog = watchdog.Watchdog(Large(clock), FREE | {"memory": 500}, -1)
    dog.processor_time.used_s = lambda tree: 0.0
    looks = [(clock[0], dog.look()) for _ in range(4)]
    assert [found for _, found in looks] == [None, None, None, ("memory", 900)]
    assert max(after - before for (before, _), (after, _) in pairwise(looks)) < 2 * watchdog._MEMORY_TURN_NS


def test_a_process_that_maps_the_same_pages_a_thousand_times_is_not_walked(patient: None) -> None:
    """The kernel can't be interrupted in that, and other jobs have deadlines."""
    table = Workers(100, come_and_go=False)
    table.unshared_bytes = lambda row: row.rss_bytes  # type: ignore[attr-defined]
    for rss, found in ((watchdog._WALKED_BYTES, None), (watchdog._WALKED_BYTES + 1, watchdog._WALKED_BYTES + 1)):
        row = SimpleNamespace(pid=7, asked=7, rss_bytes=rss, threads=1, zombie=False, start=1)
        dog = watchdog.Watchdog(table, FREE | {"memory": 500}, -1)
        dog.processor_time.used_s = lambda tree: 0.0
        dog.rows = lambda root, row=row: [row]  # type: ignore[method-assign, misc]
        assert dog.look() == (found and ("memory", found))


def test_a_sum_is_given_up_when_the_resident_memory_is_low_again(clock: list[int]) -> None:
    table = Large(clock)
    dog = watchdog.Watchdog(table, FREE | {"memory": 500}, -1)
    dog.processor_time.used_s = lambda tree: 0.0
    assert dog.look() is None and dog.tick_ns < watchdog.TICK_NS
    table.rss_bytes = 1
    assert dog.look() is None and dog.tick_ns == watchdog.TICK_NS


class Hoppers:
    """Processes that end before they are read."""

    TICKS_PER_S = 100

    def walk(self, _: int, most: float, lost: list[int]) -> list[object]:
        lost.append(1 << 22)
        return []

    def own_written_bytes(self, _: int) -> int:
        return 0


def test_processes_that_end_before_they_are_read_are_asked_what_they_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    dog = watchdog.Watchdog(Hoppers(), FREE | {"disk": 0}, -1)
    asked: list[list[int]] = []
    monkeypatch.setattr(dog._layers, "taken", lambda most, whom: asked.append([*whom()]) or 0)
    dog.look()
    dog.look()
    assert asked == [[1 << 22], [1 << 22]]


def test_it_looks_sooner_while_a_sum_is_under_way() -> None:
    dog = watchdog.Watchdog(Table(), FREE, -1)
    assert dog.tick_ns == watchdog.TICK_NS
    dog._layers._adding = iter(())
    assert dog.tick_ns < watchdog.TICK_NS


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


def test_root_looks_at_a_far_limit_before_it_can_have_been_passed(
    clock: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog.os, "geteuid", lambda: 0)
    table, limit = Table(), 10 << 30
    dog = watchdog.Watchdog(table, FREE | {"disk": limit}, -1)
    until_ns = limit * 10**9 // watchdog.FASTEST_BYTES_PER_S
    for clock[0] in range(0, until_ns, watchdog.TICK_NS):
        assert dog.look() is None
    assert table.asked == 1
    table.written, clock[0] = limit + 1, until_ns
    assert dog.look() == ("disk", limit + 1)
