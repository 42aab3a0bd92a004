"""Who is in a living box: nobody comes in once it closes, and who closes it ends those who are in and waits for them.

Threads meet here and nowhere else. Says nothing about what visits are, nor how the box itself is ended (``box``).
"""

from __future__ import annotations

import threading

from ringfence.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.backends.contract import Visit

_SIGKILL = 9
# Longer than a leader tries to end its tree; then it is killed, and that takes no time.
_END_WAIT_S, _KILL_WAIT_S = 15.0, 5.0


class Stay:
    """From before a visit begins until nothing of it is left; several may follow each other in one stay."""

    def __init__(self, presence: Presence) -> None:
        self._presence = presence
        self.visit: Visit | None = None
        self.thread = threading.get_ident()
        """Who is in there, and can't wait for itself."""

    def attach(self, visit: Visit, _: object = None) -> None:
        """The visit has begun; too late if the box closes."""
        with self._presence.changed:
            self.visit = visit
            too_late = self._presence.closing
        if too_late:
            visit.signal(_SIGKILL)

    def leave(self) -> None:
        with self._presence.changed:
            self._presence.stays.discard(self)
            self._presence.changed.notify_all()

    def __enter__(self) -> Stay:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()


class Presence:
    """Of one box."""

    def __init__(self) -> None:
        # May be entered again by its own thread: a signal handler can come in between.
        self.changed = threading.Condition(threading.RLock())
        self.stays: set[Stay] = set()
        self.closing = False
        self._closed = threading.Event()
        self._closer = 0

    def enter(self) -> Stay:
        with self.changed:
            if self.closing:
                raise UsageError("the box is closed")
            stay = Stay(self)
            self.stays.add(stay)
            return stay

    def begin_closing(self) -> bool:
        """Nobody comes in any more; False: somebody else does this or has done it, which has been waited for."""
        with self.changed:
            first, self.closing = not self.closing, True
            if first:
                self._closer = threading.get_ident()
        if not first and self._closer != threading.get_ident() and not self.is_within():
            self._closed.wait()
        return first

    def is_within(self) -> bool:
        """Whether this thread is itself in the box: what is told of a visit is told by the thread that runs it."""
        with self.changed:
            return any(stay.thread == threading.get_ident() for stay in self.stays)

    def end_all(self) -> None:
        for visit in self._visits():
            visit.signal(_SIGKILL)

    def take_over(self) -> None:
        """This thread does the rest of the closing."""
        self._closer = threading.get_ident()

    def await_all(self) -> None:
        """Until all have left. One that does not end is killed the hard way; nobody is waited for longer than that."""
        if not self._is_empty_within(_END_WAIT_S):
            for visit in self._visits():
                visit.abandon()
            self._is_empty_within(_KILL_WAIT_S)

    def closed(self) -> None:
        self._closed.set()

    def _is_empty_within(self, wait_s: float) -> bool:
        with self.changed:
            return self.changed.wait_for(lambda: not self.stays, wait_s)

    def _visits(self) -> list[Visit]:
        with self.changed:
            return [stay.visit for stay in self.stays if stay.visit is not None]
