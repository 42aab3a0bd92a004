"""What standby sandboxes of one backend have in common, worked out once and not once for each of them.

A draft says what of the host they show, so it is only as good as the look at the host behind it: it is given out for
``GOOD_FOR_S``, to boxes of the very same policy, preload and enforcement, and while nothing is mounted or unmounted.
That is less than a sandbox that stands by is behind the host anyway (ADR 0016). It starts nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from ringfence.backends.forkers import FromMould
from ringfence.linux import host
from ringfence.linux.rootfs import Wish
from ringfence.model.record import record

GOOD_FOR_S = 1.0


@record
class Draft:
    """A sandbox but for its control group."""

    wish: Wish
    request: dict[str, object]
    forker: FromMould


class Drafts:
    """Keeps the latest."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kept: tuple[object, float, Draft] | None = None

    def find(self, of: object, make: Callable[[], Draft]) -> Draft:
        """A draft of this; made anew where the kept one is of something else, or the host may have changed."""
        # Read before the draft is made: what changes meanwhile is then seen as a change the next time.
        key, now, kept = (of, host.mount_table()), self._clock(), self._kept
        if kept is not None and kept[0] == key and now < kept[1] + GOOD_FOR_S:
            return kept[2]
        draft = make()
        self._kept = (key, now, draft)
        return draft
