"""``Source``: where a sandbox can be looked at, as whoever runs it tells."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from ringfence.model.record import record


def _nobody() -> tuple[int, ...]:
    return ()


@record
class Source:
    """One sandbox, from outside."""

    leaders: Callable[[], tuple[int, ...]] = _nobody
    """The processes of now all of whose descendants, and they alone, are the sandbox's. Asked on the monitor's
    thread, so it must not wait for anything."""
    groups: Mapping[str, str] = MappingProxyType({})
    """Capability → folder of the sandbox's control group; empty: it has none, and /proc has to do."""
    terminate: Callable[[], None] | None = None
    """Ends everything in it. Absent: nobody here can."""
