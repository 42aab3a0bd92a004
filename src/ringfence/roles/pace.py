"""Limits the work that a guest causes its leader to a share of a processor, and counts it.

Part of: leader, leader of a visit, warden

Each call that a filter or a tripwire tells of is work outside of the guest's control group. The guest waits for the
answer, so a later answer holds it back. Nothing waits here: what is not answered now is still there later.
"""

from __future__ import annotations

import time
from _collections_abc import Callable

_BURST_NS = 250_000_000
"""A guest's first processor time: a program that starts asks for much at once."""
_LONGEST_PAUSE_NS = 20_000_000


class Pace:
    """Limits and counts the work for one guest. ``share``: of one processor, 0: no limit."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._credit_ns: float = _BURST_NS
        self._last_ns = time.monotonic_ns()
        self.spent_ns = 0
        """Processor time for this guest so far."""

    def work(self, answer: Callable[[], None]) -> int:
        """Answer now and return 0; or return for how many ns nothing should be answered."""
        self._earn()
        if self._share and self._credit_ns < 0:
            return 1 + min(int(-self._credit_ns / self._share), _LONGEST_PAUSE_NS)
        before = time.thread_time_ns()
        answer()
        spent = time.thread_time_ns() - before
        self.spent_ns += spent
        self._credit_ns -= spent
        return 0

    def _earn(self) -> None:
        now = time.monotonic_ns()
        self._credit_ns = min(_BURST_NS, self._credit_ns + (now - self._last_ns) * self._share)
        self._last_ns = now
