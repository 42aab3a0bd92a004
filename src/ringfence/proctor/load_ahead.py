"""Loads what a run needs after its agent, while the agent runs: until then its caller has nothing to do but wait."""

from __future__ import annotations

from collections.abc import Iterable
from threading import Thread


def load_ahead(names: Iterable[str]) -> None:
    """In a thread. What can't be loaded is told by whoever imports it."""
    Thread(target=_load, args=(tuple(names),), name="ringfence-load", daemon=True).start()


def _load(names: tuple[str, ...]) -> None:
    for name in names:
        try:
            __import__(name)
        except Exception:
            return
