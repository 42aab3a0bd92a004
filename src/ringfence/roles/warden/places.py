"""Which place each sandbox of a warden has: its id on the host, and its network at each maker.

Part of: warden

Sockets that were sent over each other outlive their processes: the kernel takes them apart one by one, for seconds if
there are many. Until then others in the same network see them, and they count for the same id.
"""

from __future__ import annotations

import os

from ringfence.kernel.mount import namespaces
from ringfence.kernel.proc import procfs

_ALL = range(namespaces.IDS_PER_PROCESS)
_MOST_LINGERING = 16
"""Each has a descriptor."""


class Places:
    """Knows the places of all sandboxes that live, and of those whose sockets linger."""

    def __init__(self) -> None:
        self._taken: dict[int, int] = {}
        """Ticket → place."""
        self._lingering: dict[int, int] = {}
        """Place → the count of what is left of its sockets; the oldest first."""

    def of(self, ticket: int) -> int:
        return self._taken[ticket]

    def take(self, ticket: int) -> int:
        """Return the first that is free, one where sockets linger only if there is no other; -1: there is none."""
        for place in [each for each, count in self._lingering.items() if not procfs.has_sockets(count)]:
            self._close(place)
        taken = {*self._taken.values()}
        first = next((each for each in _ALL if each not in taken and each not in self._lingering), -1)
        place = first if first >= 0 else min(self._lingering.keys() - taken, default=-1)
        if place >= 0:
            self._taken[ticket] = place
        return place

    def leave(self, ticket: int, count: int) -> tuple[int, bool]:
        """Return the place, and whether no socket is left in its network. ``count``: of these, closed here; -1: nobody
        knows."""
        place = self._taken.pop(ticket)
        if count < 0:
            return place, False
        if not procfs.has_sockets(count):
            os.close(count)
            return place, True
        if place in self._lingering:
            self._close(place)
        elif len(self._lingering) == _MOST_LINGERING:
            self._close(next(iter(self._lingering)))
        self._lingering[place] = count
        return place, False

    def _close(self, place: int) -> None:
        os.close(self._lingering.pop(place))
