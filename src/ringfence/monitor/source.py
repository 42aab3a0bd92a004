"""``Source``: where a sandbox can be looked at, as its keeper tells; and who in this process keeps sandboxes."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from types import MappingProxyType

from ringfence.model.record import record


def _nobody() -> tuple[int, ...]:
    return ()


@record
class Source:
    """Names what can be read of one sandbox from outside."""

    leaders: Callable[[], tuple[int, ...]] = _nobody
    """The current root processes: all their descendants, and nothing else, are the sandbox's. Asked on the monitor's
    thread, so it must not wait for anything."""
    groups: Mapping[str, str] = MappingProxyType({})
    """Capability → directory of the sandbox's control group; empty: it has none, and /proc must do."""
    network: Callable[[], int] | None = None
    """Bytes that it sent and received through the gateway so far. Absent: it has no gateway, and its own network
    devices are counted."""
    measure: Callable[[], tuple[float, int, int, int]] | None = None
    """Seconds of processor time, bytes of memory, bytes written, processes, as measured by what runs it. Absent: they
    are read from the processes."""
    terminate: Callable[[], None] | None = None
    """Ends everything in it. Absent: nobody here can."""


_keepers: list[weakref.WeakMethod[Callable[[str], Source | None]]] = []


def offer(find: Callable[[str], Source | None]) -> None:
    """From now on monitors may ask this method of a keeper of sandboxes, as long as it lives; None: not its own."""
    _keepers[:] = [each for each in _keepers if each() is not None] + [weakref.WeakMethod(find)]


def offered(sandbox_id: str) -> Source | None:
    """What one of the keepers says of a sandbox."""
    asked = (keeper() for keeper in list(_keepers))
    found = (find(sandbox_id) for find in asked if find is not None)
    return next((source for source in found if source is not None), None)
