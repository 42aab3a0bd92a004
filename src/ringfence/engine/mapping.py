"""A function over many items with a bound on how many run at a time, in order, with a progress bar on a terminal."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TextIO

_BAR_CHARS = 30
_BAR_EVERY_S = 0.1


def map_in_order(one: Callable[[object], Any], items: Sequence[object], at_once: int, *, progress: bool) -> list[Any]:
    """The values in the order of the items; the first failure, in that order, is raised once nothing runs any more."""
    work = _Work(one, items, Bar(len(items), sys.stderr) if progress else None)
    threads = [threading.Thread(target=work.go, daemon=True) for _ in range(min(at_once, len(items)))]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    except BaseException:  # Ctrl-C: those that run end by themselves, no more are begun
        work.stopped = True
        raise
    finally:
        if work.bar is not None:
            work.bar.close()
    for problem in work.problems:
        if problem is not None:
            raise problem
    return work.values


class _Work:
    def __init__(self, one: Callable[[object], Any], items: Sequence[object], bar: Bar | None) -> None:
        self.one = one
        self.items = items
        self.bar = bar
        self.values: list[Any] = [None] * len(items)
        self.problems: list[BaseException | None] = [None] * len(items)
        self.stopped = False
        self._next = iter(range(len(items)))
        self._lock = threading.Lock()

    def go(self) -> None:
        while not self.stopped:
            with self._lock:
                place = next(self._next, None)
            if place is None:
                return
            try:
                self.values[place] = self.one(self.items[place])
            except BaseException as error:
                self.problems[place] = error
                self.stopped = True
            if self.bar is not None:
                self.bar.step()


class Bar:
    """How far it is and how long it will take; only on a terminal, and removed at the end."""

    def __init__(self, total: int, stream: TextIO | None) -> None:
        self.total = total
        self.done = 0
        self._stream = stream if _is_terminal(stream) else None
        self._begun = time.monotonic()
        self._shown = 0.0
        self._lock = threading.Lock()

    def step(self) -> None:
        with self._lock:
            self.done += 1
            now = time.monotonic()
            if now >= self._shown + _BAR_EVERY_S:
                self._shown = now
                self._show("\r" + self.text(now))

    def text(self, now: float) -> str:
        filled = _BAR_CHARS * self.done // max(self.total, 1)
        per_s = self.done / max(now - self._begun, 1e-9)
        left_s = (self.total - self.done) / max(per_s, 1e-9)
        bar = "█" * filled + "░" * (_BAR_CHARS - filled)
        return f"{bar} {self.done}/{self.total} · {per_s:.0f}/s · {left_s:.0f} s left "

    def close(self) -> None:
        if self._shown:
            self._show("\r\x1b[K")

    def _show(self, text: str) -> None:
        """A terminal that is gone, or can't show this, must not stop the work."""
        try:
            if self._stream is not None:
                self._stream.write(text)
                self._stream.flush()
        except Exception:
            self._stream = None


def _is_terminal(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except ValueError:
        return False  # closed
