"""Waiting in tests: for a condition, never for a time."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class TooLate(AssertionError):
    """What was waited for did not come: the machine may be busy, so it says nothing about a protection."""


PATIENCE_S = 30.0
"""Long, for the machine may be busy; who waits for what comes waits no longer than that takes."""


def eventually(holds: Callable[[], T], within_s: float = PATIENCE_S, *, told: Callable[[], object] | None = None) -> T:
    """What the condition gives as soon as it holds; ``TooLate`` that names it when it does not come to.

    ``told``: what else the failure should say, asked only then.
    """
    __tracebackhide__ = True
    end = time.monotonic() + within_s
    while not (found := holds()):
        if time.monotonic() > end:
            more = f"; {told()!r}" if told else ""
            raise TooLate(f"{found!r} even after {within_s:g} s: {_shown(holds)}{more}")
        time.sleep(0.01)
    return found


def _shown(holds: Callable[[], object]) -> str:
    try:
        return " ".join(inspect.getsource(holds).split())
    except (OSError, TypeError):
        return repr(holds)
