"""Who is in a box or a pool: nobody comes in once it closes; closing ends the visits that are in, and waits for them.

Threads meet here and nowhere else. Says nothing about what visits are, nor what is left to remove (``box``, ``pool``).
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from ringfence.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.backends.contract import Visit

_SIGKILL = 9
# Longer than a leader tries to end its tree; then it is killed, and that takes no time.
_END_WAIT_S, _KILL_WAIT_S = 15.0, 5.0


def wait_for(event: threading.Event, within_s: float | None) -> bool:
    """Whether it is set within this time; None, or more than a clock can measure: wait without a limit."""
    if within_s is not None and (not isinstance(within_s, int | float) or within_s != within_s):
        raise UsageError(f"{within_s!r} must be a number of seconds")
    return event.wait(None if within_s is None else min(within_s, threading.TIMEOUT_MAX))


class Occupant:
    """A stay, from before a visit begins until nothing of it is left; several visits may follow in one stay."""

    def __init__(self, occupancy: Occupancy, *, internal: bool) -> None:
        self._occupancy = occupancy
        self.internal = internal
        self.visit: Visit | None = None
        self.thread = threading.get_ident()
        """The thread that is in there, which can't wait for itself."""

    def attach(self, visit: Visit, _: object = None) -> None:
        """The visit has begun; too late if the box closes."""
        with self._occupancy.lock:
            self.visit = visit
            too_late = self._occupancy.closing
        if too_late:
            visit.signal(_SIGKILL)

    def leave(self) -> None:
        with self._occupancy.lock:
            self._occupancy.occupants.discard(self)
            self._occupancy.changed.notify_all()

    def __enter__(self) -> Occupant:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()


class Occupancy:
    """The stays in one box or pool."""

    def __init__(self, of: str) -> None:
        self._of = of
        # May be entered again by its own thread: a signal handler can come in between. Taken by itself: a condition is
        # entered in Python, where an exception of that handler would leave it taken for good.
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.occupants: set[Occupant] = set()
        self.closing = False
        self._closed = threading.Event()
        self._closer = 0

    def enter(self, *, internal: bool = False) -> Occupant:
        """``internal``: not a visit but work of ours, such as a commit; it is waited for as long as it takes."""
        with self.lock:
            if self.closing:
                raise UsageError(f"the {self._of} is closed", hint="make a new one")
            occupant = Occupant(self, internal=internal)
            self.occupants.add(occupant)
            return occupant

    def close(self, end: Callable[[], None], remove: Callable[[], str]) -> str:
        """Once: ``end`` what is no visit, end the visits, wait for all, ``remove`` what is left, whatever goes wrong
        before. Says what could not be removed. From within it returns at once and is done when that visit has ended."""
        if not self.begin_closing():
            return ""
        if self.is_within():
            threading.Thread(target=self._finish, args=(end, remove), name="ringfence-close").start()
            return ""
        return self._finish(end, remove)

    def _finish(self, end: Callable[[], None], remove: Callable[[], str]) -> str:
        self._closer = threading.get_ident()
        try:
            try:
                self.end_all()
                end()
                self.await_all()
            finally:
                left = remove()
        finally:
            self._closed.set()
        return left

    def begin_closing(self) -> bool:
        """Nobody comes in any more; False: another thread does this or has done it, and we have waited for that."""
        with self.lock:
            first, self.closing = not self.closing, True
            if first:
                self._closer = threading.get_ident()
        if not first and self._closer != threading.get_ident() and not self.is_within():
            self._closed.wait()
        return first

    def is_within(self) -> bool:
        """Whether this thread is itself in the box: callbacks of a visit run in the thread that leads it."""
        with self.lock:
            return any(occupant.thread == threading.get_ident() for occupant in self.occupants)

    def end_all(self) -> None:
        for visit in self.visits():
            visit.signal(_SIGKILL)

    def await_all(self) -> None:
        """Wait until all have left. A visit that does not end is killed the hard way, and then not waited for."""
        if not self._is_empty_within(_END_WAIT_S):
            for visit in self.visits():
                visit.abandon()
            self._is_empty_within(_KILL_WAIT_S)
        with self.lock:
            self.changed.wait_for(lambda: not any(occupant.internal for occupant in self.occupants))

    def _is_empty_within(self, wait_s: float) -> bool:
        with self.lock:
            return self.changed.wait_for(lambda: not self.occupants, wait_s)

    def visits(self) -> list[Visit]:
        """The visits that have begun."""
        with self.lock:
            return [occupant.visit for occupant in self.occupants if occupant.visit is not None]
