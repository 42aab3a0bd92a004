"""Counts of a changing set of processes, added up so that nothing of the ended ones is lost and nothing counts twice.

Pure: it is told who lives and what each has counted. A process' count takes in that of every child it has waited for;
that of a child nobody waits for is gone with it, and known only from when it was last seen.
"""

from __future__ import annotations

from _collections_abc import Mapping


class Counted(tuple[int, int, int]):
    """One living process: when it started, its parent, and the amount, of itself and of the children that it has waited
    for. By hand: a leader loads this, and a named tuple would have it load much more."""

    __slots__ = ()

    def __new__(cls, start: int, parent: int, amount: int) -> Counted:
        return super().__new__(cls, (start, parent, amount))

    @property
    def start(self) -> int:
        return self[0]

    @property
    def parent(self) -> int:
        return self[1]

    @property
    def amount(self) -> int:
        return self[2]


class Tally:
    """Adds up one kind of count over a tree, ended processes included."""

    def __init__(self) -> None:
        self.total = 0
        self._last: dict[int, Counted] = {}

    def update(self, now: dict[int, Counted]) -> None:
        """``now``: pid → what it has counted, of all that live."""
        if now == self._last:
            return
        grown = {pid: max(0, counted.amount - self.known(pid, counted.start)) for pid, counted in now.items()}
        for pid, ended in self._last.items():
            if not _is_same(now.get(pid), ended):
                _take_off(ended.amount, self._heir(ended, now), grown, now)
        self.total += sum(grown.values())
        self._last = now

    def known(self, pid: int, start: int) -> int:
        """What this process had counted when it was last seen."""
        last = self._last.get(pid)
        return last.amount if last is not None and last.start == start else 0

    def _heir(self, ended: Counted, now: Mapping[int, Counted]) -> int:
        """Who may have waited for it: the nearest ancestor that lives; 0: none that is looked at."""
        seen = set()
        parent = ended.parent
        while parent not in seen and parent in self._last and not _is_same(now.get(parent), self._last[parent]):
            seen.add(parent)
            parent = self._last[parent].parent
        return parent


def _take_off(amount: int, heir: int, grown: dict[int, int], now: Mapping[int, Counted]) -> None:
    """The process that waited for it took over its count. That was counted while it lived, so it is no growth.

    Which process that was is not certain: one further up may have adopted it. A process that does not wait for its
    children takes over nothing: then there is nothing to subtract.
    """
    for _ in range(len(now)):
        if not amount or heir not in grown:
            return
        taken = min(amount, grown[heir])
        grown[heir] -= taken
        amount -= taken
        heir = now[heir].parent


def _is_same(now: Counted | None, before: Counted) -> bool:
    return now is not None and now.start == before.start
