"""Sandboxes that stand by for a pool: made in the background, handed out, made anew, and let go when nobody comes.

One thread makes and closes; a caller that needs a sandbox when none stands by makes one itself. Says nothing about what
runs in them (``pool``) or who may (``line``).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from ringfence.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.backends.contract import StandbyBox

_TICK_S = 1.0


class WarmSet:
    """``warm`` sandboxes; fewer after ``idle_s`` without a job."""

    def __init__(
        self, make: Callable[[], StandbyBox], warm: int, idle_s: float, first: StandbyBox | None = None
    ) -> None:
        """``first``: one that was made already."""
        self._make = make
        self._warm = warm
        self._idle_s = idle_s
        made = () if first is None else (first,)
        self._boxes: deque[StandbyBox] = deque(made if warm else ())
        self._used: deque[StandbyBox] = deque(() if warm else made)
        # Taken by itself: a condition is entered in Python, where a signal's exception would leave it taken for good.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._closed = False
        self._last_used = time.monotonic()
        self.left = ""
        """What could not be removed of sandboxes that are gone."""
        self._thread = threading.Thread(target=self._work, name="ringfence-pool", daemon=True)
        self._thread.start()

    def take(self) -> StandbyBox:
        """A sandbox that stands by, or else a new one."""
        with self._lock:
            if self._closed:
                raise UsageError("the pool is closed", hint="make a new one")
            self._last_used = time.monotonic()
            box = self._next()
            # A small job is done sooner than a sandbox is made, and would have to share the processors with that: while
            # enough stand, the next one is made when it has come back, or at the next tick.
            if 2 * len(self._boxes) < self._warm:
                self._changed.notify()
        return box or self._make()

    def _next(self) -> StandbyBox | None:
        while self._boxes:
            box = self._boxes.popleft()
            if box.is_ready():
                return box
            self._used.append(box)
        return None

    def give_back(self, box: StandbyBox) -> None:
        """Take back a sandbox whose job has ended; its rest is removed in the background, while there is a thread."""
        with self._lock:
            if not self._closed:
                self._used.append(box)
                self._changed.notify()
                return
        self._remove(box)

    def __len__(self) -> int:
        return len(self._boxes)

    def let_go(self) -> None:
        """Have all of them end at the next look, without waiting and without a lock: no more jobs will come."""
        self._closed = True

    def close(self) -> str:
        """End all, and return what could not be removed."""
        with self._lock:
            self._closed = True
            self._changed.notify()
        self._thread.join()
        return self.left

    def _work(self) -> None:
        while not self._closed:
            self._close_used()
            try:
                busy = self._adjust()
            except Exception:
                busy = False  # the next caller makes one itself, and hears why that fails
            if not busy and not self._used:
                with self._lock:
                    if not self._closed:
                        self._changed.wait(_TICK_S)
        for box in self._boxes:
            box.let_go()  # all at once: ending takes longer than asking
        self._used.extend(self._boxes)
        self._boxes.clear()
        self._close_used()

    def _adjust(self) -> bool:
        """One step towards the wanted number; False if there is nothing to do."""
        idle = time.monotonic() - self._last_used > self._idle_s
        wanted = min(1, self._warm) if idle else self._warm
        if len(self._boxes) < wanted:
            box = self._make()
            with self._lock:
                self._boxes.append(box)
            return True
        with self._lock:
            if len(self._boxes) > wanted:
                self._used.append(self._boxes.popleft())
                return True
        return False

    def _close_used(self) -> None:
        while self._used:
            self._remove(self._used.popleft())

    def _remove(self, box: StandbyBox) -> None:
        try:
            self.left = box.close() or self.left
        except Exception as error:  # one that can't be removed must not hold up the others
            self.left = str(error)
