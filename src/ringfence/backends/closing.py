"""What a box holds, as one list, and the order in which it gives that back."""

from __future__ import annotations

from _collections_abc import Callable


class Closing:
    """Gives back in the reverse order, once each. A caller interrupted by Ctrl-C can close once more: only what was
    being given back is then asked a second time, and must cope with that."""

    def __init__(self) -> None:
        self._held: list[Callable[[], str | None]] = []

    def add(self, give_back: Callable[[], str | None], *, last: bool = False) -> None:
        """``give_back`` may say what it had to leave. ``last``: it comes after all others, even those added later."""
        self._held.insert(0 if last else len(self._held), give_back)

    def close(self) -> str:
        """What had to be left, in words; empty: nothing."""
        left = []
        while self._held:
            left.append(self._held[-1]() or "")
            self._held.pop()
        return "; ".join(filter(None, left))
