"""The processor time of a whole tree, also of children that nobody waits for. It counts; it ends nothing."""

from __future__ import annotations

import os
from _collections_abc import Sequence

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class ProcessorTime:
    """Two counts of the dead, each of which misses some; the larger of them is taken.

    A child that its parent waits for is in the parent's count. One whose parent ignores SIGCHLD is in nobody's;
    of it is known what it had used when it was last seen.
    """

    def __init__(self, ticks_per_s: int) -> None:
        self._ticks_per_s = ticks_per_s
        self._last: dict[tuple[int, int], int] = {}
        self._vanished = 0

    def used_s(self, tree: Sequence[Any]) -> float:
        """By all that live in the tree of this process, and all that have ended in it."""
        now = {(row.pid, row.start): row.own_ticks for row in tree}
        self._vanished += sum(used for key, used in self._last.items() if key not in now)
        self._last = now
        collected = sum(row.cpu_ticks for row in tree) / self._ticks_per_s + sum(os.times()[2:4])
        return float(max(collected, (sum(now.values()) + self._vanished) / self._ticks_per_s))
