"""Which place a sandbox of a warden has: never one that another has, and last one where sockets linger."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest

if sys.platform != "linux":
    pytest.skip("a warden needs Linux", allow_module_level=True)

from ringfence.kernel.mount.namespaces import IDS_PER_PROCESS
from ringfence.roles.warden import places
from ringfence.roles.warden.places import Places


class Counts:
    """Counts of sockets, as descriptors: those that are not empty, and those that were opened."""

    def __init__(self) -> None:
        self.opened: list[int] = []
        self.full: set[int] = set()

    def made(self, *, full: bool) -> int:
        self.opened.append(os.open(os.devnull, os.O_RDONLY))
        self.full |= {self.opened[-1]} if full else set()
        return self.opened[-1]

    def open_ones(self) -> int:
        return sum(os.path.lexists(f"/proc/self/fd/{number}") for number in {*self.opened})


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counts]:
    made = Counts()
    monkeypatch.setattr(places.procfs, "has_sockets", lambda count: count in made.full)
    yield made
    for number in {*made.opened}:
        if os.path.lexists(f"/proc/self/fd/{number}"):
            os.close(number)


def test_the_first_free_place_is_taken_and_given_back(counts: Counts) -> None:
    kept = Places()
    assert [kept.take(ticket) for ticket in (1, 2, 3)] == [0, 1, 2] and kept.of(2) == 1
    assert kept.leave(2, counts.made(full=False)) == (1, True) and counts.open_ones() == 0
    assert kept.leave(3, -1) == (2, False), "nobody knows what is left there"
    assert [kept.take(ticket) for ticket in (4, 5, 6)] == [1, 2, 3]


def test_a_place_where_sockets_linger_is_taken_once_they_are_gone(counts: Counts) -> None:
    kept = Places()
    kept.take(1)
    assert kept.leave(1, counts.made(full=True)) == (0, False)
    assert kept.take(2) == 1
    counts.full.clear()
    assert kept.take(3) == 0 and counts.open_ones() == 0


def test_it_is_taken_before_that_if_there_is_no_other(counts: Counts) -> None:
    kept = Places()
    everything = [kept.take(ticket) for ticket in range(IDS_PER_PROCESS)]
    assert everything == [*range(IDS_PER_PROCESS)] and kept.take(1000) == -1
    kept.leave(7, counts.made(full=True))
    assert kept.take(1001) == 7
    assert kept.leave(1001, counts.made(full=True)) == (7, False) and counts.open_ones() == 1


def test_no_more_than_so_many_are_looked_after(counts: Counts) -> None:
    kept, most = Places(), places._MOST_LINGERING
    for ticket in range(most + 3):
        kept.take(ticket)
    for ticket in range(most + 3):
        kept.leave(ticket, counts.made(full=True))
    assert counts.open_ones() == most
    assert [kept.take(ticket) for ticket in range(4)] == [0, 1, 2, most + 3]
