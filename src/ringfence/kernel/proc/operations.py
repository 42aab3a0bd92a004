"""Calls of the read and the write family that a tree of processes makes: as many as the kernel counts, never more.

It keeps two counts, each of which misses some, and takes the larger. One is that of the living processes and of those
that were waited for. The other is what was last seen of each process, even of one whose end nobody was told of.
"""

from __future__ import annotations

from _collections_abc import Callable, Sequence

from ringfence.kernel.proc.tally import Counted, Tally

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.kernel.proc.procfs import Process


class OperationsCount:
    """Counts the tree below one process of ours. ``of``: what a process has counted, by one of its threads."""

    def __init__(self, of: Callable[[int], int | None]) -> None:
        self._of = of
        self._tally = Tally()
        self._job: tuple[int, int] | None = None
        self._waited_for = 0
        self.most = 0
        """The most that was counted."""

    def look(self, rows: Sequence[Process], waited_for: int) -> int:
        """``rows``: parents before their children, so that a count that passes from a child to its parent meanwhile is
        not counted twice. ``waited_for``: the count of those that the process above all of them has waited for."""
        if self._is_untold(rows, waited_for):
            return self.most
        now, whole = {0: Counted(0, 0, waited_for)}, True
        for row in rows:
            amount, known = self._of(row.asked), self._tally.known(row.pid, row.start)
            amount = known if amount is None else amount
            whole = whole and amount >= known  # else it has ended meanwhile: its parent may or may not have its count
            now[row.pid] = Counted(row.start, row.parent if row.parent in now else 0, amount)
        if whole:
            self._tally.update(now)
        living = sum(counted.amount for counted in now.values())
        self.most = max(self.most, self._tally.total, living)
        return self.most

    def _is_untold(self, rows: Sequence[Process], waited_for: int) -> bool:
        """Whether the job has been collected by a process that has not reported it yet: what was seen of the job would
        be added to what is reported in a moment."""
        if self._job is None and rows:
            first = min(rows, key=lambda row: (row.start, row.pid))
            self._job = first.pid, first.start
        if self._job is None or any((row.pid, row.start) == self._job for row in rows):
            self._waited_for = waited_for
            return False
        return waited_for <= self._waited_for
