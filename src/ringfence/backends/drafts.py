"""What standby sandboxes of one backend have in common, worked out once and not once for each of them.

A draft says what of the host they show, so it is only as good as the look at the host behind it: it is given out for
``GOOD_FOR_S``, to boxes of the very same policy, preload and enforcement, and while nothing is mounted or unmounted.
A sandbox that stands by lags behind the host by more than that anyway (ADR 0016). It starts nothing.
"""

from __future__ import annotations

import time
from _collections_abc import Callable
from _thread import RLock

from ringfence.backends.leader_sources import ZygoteSource
from ringfence.model.record import record
from ringfence.sandbox import host
from ringfence.sandbox.spec import Spec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeVar

    _T = TypeVar("_T")

GOOD_FOR_S = 5.0


@record
class Draft:
    """A sandbox but for its control group; the source has the request."""

    spec: Spec
    shown: tuple[str, ...]
    """What it shows of the host."""
    source: ZygoteSource


class Looks:
    """Keeps the latest of what was found out, for ``GOOD_FOR_S``."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kept: tuple[object, float, object] | None = None
        # May be entered again by its own thread: a signal handler can come in between.
        self._making = RLock()

    def find(self, of: object, make: Callable[[], _T]) -> _T:
        """What is kept for this; made anew if that is for something else, or too old."""
        kept = self._kept_for(of) or self._made(of, make)
        return kept[2]  # type: ignore[return-value]  # what ``make`` made

    def _kept_for(self, key: object) -> tuple[object, float, object] | None:
        kept = self._kept
        return kept if kept is not None and kept[0] == key and self._clock() < kept[1] + GOOD_FOR_S else None

    def _made(self, key: object, make: Callable[[], object]) -> tuple[object, float, object]:
        """One of the threads that come at the same time makes it; the others wait."""
        with self._making:
            kept = self._kept_for(key)
            if kept is None:
                self._kept = kept = (key, self._clock(), make())
            return kept


class Drafts(Looks):
    """Keeps the latest draft, as long as nothing is mounted or unmounted either."""

    def find(self, of: object, make: Callable[[], _T]) -> _T:
        # Read before the draft is made: a change during that time is then noticed the next time.
        return super().find((of, host.mount_table()), make)
