"""Waits for events of Windows in the way that ``select.poll`` waits for descriptors."""

from __future__ import annotations

import time
from ctypes import c_void_p
from math import ceil

from ringfence.windows.system import WAIT_TIMEOUT, failure, try_call

_FAILED = 0xFFFFFFFF
_LONGEST_MS = 200
"""Ctrl-C is heard between two waits only."""


class Poller:
    """Handles of events; a set event stays ready until its owner has reset it."""

    def __init__(self) -> None:
        self._events: dict[int, int] = {}

    def register(self, event: int, mask: int = 0) -> None:
        self._events[event] = mask

    def unregister(self, event: int) -> None:
        del self._events[event]

    def poll(self, wait_ms: float | None = None) -> list[tuple[int, int]]:
        """Return those that are set, or nothing when the time is over."""
        end = time.monotonic() + (float("inf") if wait_ms is None else wait_ms / 1000)
        while True:
            left_ms = max(0.0, (end - time.monotonic()) * 1000)
            if self._wait(min(left_ms, _LONGEST_MS)):
                return [(event, mask) for event, mask in self._events.items() if _is_set(event)]
            if left_ms <= _LONGEST_MS:
                return []

    def _wait(self, wait_ms: float) -> bool:
        if not self._events:
            time.sleep(wait_ms / 1000)
            return False
        handles = (c_void_p * len(self._events))(*self._events)
        found = try_call("WaitForMultipleObjects", len(handles), handles, 0, ceil(wait_ms))
        if found == _FAILED:
            raise failure("WaitForMultipleObjects")
        return found != WAIT_TIMEOUT


def _is_set(event: int) -> bool:
    return try_call("WaitForSingleObject", event, 0) == 0
