"""Counts of processes that come and go are added up once each."""

from __future__ import annotations

import os
from random import Random

import pytest

from ringfence.kernel.proc.tally import Counted, Tally

pytestmark = pytest.mark.unmeasured

SHELL, CHILD, GRANDCHILD = 10, 11, 12


def _tally(*moments: dict[int, tuple[int, int, int]]) -> int:
    tally = Tally()
    for moment in moments:
        tally.update({pid: Counted(*figures) for pid, figures in moment.items()})
    return tally.total


def test_what_a_process_counts_is_counted_once() -> None:
    assert _tally({SHELL: (1, 0, 5)}, {SHELL: (1, 0, 5)}, {SHELL: (1, 0, 8)}) == 8


def test_a_child_that_was_waited_for_does_not_count_twice() -> None:
    assert _tally({SHELL: (1, 0, 5), CHILD: (2, SHELL, 100)}, {SHELL: (1, 0, 105)}) == 105


def test_what_a_child_did_after_it_was_last_seen_comes_with_its_parent() -> None:
    assert _tally({SHELL: (1, 0, 5), CHILD: (2, SHELL, 100)}, {SHELL: (1, 0, 135)}) == 135


def test_a_child_that_nobody_waits_for_stays_counted() -> None:
    assert _tally({SHELL: (1, 0, 5), CHILD: (2, SHELL, 100)}, {SHELL: (1, 0, 5)}) == 105


def test_one_child_after_the_other_that_nobody_waits_for_hides_nothing() -> None:
    """Taken off the sum instead of off the parent, each dead child would hide what the next one does."""
    moments = [{SHELL: (1, 0, 0), 100 + n: (n, SHELL, 50)} for n in range(20)]
    assert _tally(*moments) == 20 * 50


def test_a_grandchild_comes_to_the_nearest_ancestor_that_lives() -> None:
    alive = {SHELL: (1, 0, 1), CHILD: (2, SHELL, 10), GRANDCHILD: (3, CHILD, 100)}
    assert _tally(alive, {SHELL: (1, 0, 111)}) == 111


def test_a_number_that_was_given_to_another_process_is_another_process() -> None:
    assert _tally({SHELL: (1, 0, 0), CHILD: (2, SHELL, 100)}, {SHELL: (1, 0, 0), CHILD: (9, SHELL, 30)}) == 130


def test_the_counts_of_a_tree_that_is_gone_stay() -> None:
    assert _tally({SHELL: (1, 0, 7)}, {}, {}) == 7


def test_parents_in_a_circle_end_the_search() -> None:
    """A new process may have got a dead one's number between two readings of one look."""
    assert _tally({SHELL: (1, CHILD, 5), CHILD: (2, SHELL, 6)}, {}) == 11


class _World:
    """Processes as the kernel has them: each counts, forks and ends, and who waits for a child gets its count.

    The first lives for ever and adopts whoever loses his parent, as the pid 1 of a sandbox does.
    """

    def __init__(self, random: Random, *, heedless: float) -> None:
        self.random = random
        self.heedless = heedless
        """How often a child is waited for by nobody: the kernel then forgets what it counted."""
        self.truth = 0
        self.alive = {1: Counted(0, 0, 0)}
        self.zombies: set[int] = set()
        self.clock = 0

    def step(self) -> None:
        self.clock += 1
        acts = (self._count, self._count, self._fork, self._end, self._wait)
        self.random.choice(acts)()

    def _one(self) -> int:
        return self.random.choice([pid for pid in self.alive if pid not in self.zombies])

    def _count(self) -> None:
        pid, amount = self._one(), self.random.randrange(1, 100)
        self.alive[pid] = _with(self.alive[pid], amount)
        self.truth += amount

    def _fork(self) -> None:
        free = next(number for number in range(2, 99) if number not in self.alive)  # as soon as possible: reused
        self.alive[free] = Counted(self.clock, self._one(), 0)

    def _end(self) -> None:
        pid = self._one()
        if pid == 1:
            return
        self.zombies.add(pid)
        for child, counted in self.alive.items():
            if counted.parent == pid:
                self.alive[child] = Counted(counted.start, 1, counted.amount)
        if self.random.random() < self.heedless:
            self._collect(pid, wait=False)

    def _wait(self) -> None:
        if self.zombies:
            self._collect(self.random.choice(sorted(self.zombies)), wait=True)

    def _collect(self, pid: int, *, wait: bool) -> None:
        ended = self.alive.pop(pid)
        self.zombies.discard(pid)
        if wait:
            parent = self.alive[ended.parent]
            self.alive[ended.parent] = _with(parent, ended.amount)


def _with(counted: Counted, more: int) -> Counted:
    return Counted(counted.start, counted.parent, counted.amount + more)


SEQUENCES = 20_000 if os.environ.get("RINGFENCE_LONG") else 300


def test_where_children_are_waited_for_the_tally_is_the_truth_whenever_one_looks() -> None:
    for seed in range(SEQUENCES):
        world, tally = _World(Random(seed), heedless=0.0), Tally()
        for _ in range(60):
            world.step()
            if world.random.random() < 0.3:
                tally.update(dict(world.alive))
                assert tally.total == world.truth, seed


def test_where_some_are_not_the_tally_is_never_more_than_the_truth_and_never_falls() -> None:
    missed = seen = 0
    for seed in range(SEQUENCES):
        world, tally = _World(Random(seed), heedless=0.5), Tally()
        for _ in range(60):
            world.step()
            if world.random.random() < 0.6:
                before = tally.total
                tally.update(dict(world.alive))
                assert before <= tally.total <= world.truth, seed
        missed, seen = missed + world.truth - tally.total, seen + tally.total
    assert 0 < missed < seen / 4
