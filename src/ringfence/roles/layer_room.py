"""What a job's own folders take of the disk, asked only when it may be more than the job may take.

Part of: leader

The kernel adds what a child wrote to nobody's count when its parent ignores SIGCHLD, so counting writes is not enough.
Free room is cheap to ask for, but it is everybody's: it only says when to add up what the job has, a few milliseconds
at a time, since a job can fill its folders with names. What the job keeps from being added up is its own (ADR 0136).
"""

from __future__ import annotations

import time
from _collections_abc import Callable, Iterator, Sequence

_TURN_NS = 10_000_000
_CLOCK_STEP_S = 0.1
"""The kernel's clock for files goes in steps, and may be as much behind."""


class LayerRoom:
    """The folders of one sandbox that nobody but its job writes while it runs."""

    def __init__(self, folders: Sequence[str], free_bytes: Callable[[], int]) -> None:
        self._folders = folders
        self._free_bytes = free_bytes
        self._begun_s = time.time() - _CLOCK_STEP_S
        self._most_free = self._last_free = 0
        self._went = 0
        """Room that went since it was last added up, whoever took it; what others give back meanwhile hides nothing."""
        self._sum = 0
        """What it came to the last time."""
        self._adding: Iterator[int] | None = None
        self.given: int | None = None
        """What lay in them before, where that was added up; absent: what was not changed since does not count."""

    @property
    def most(self) -> float:
        """No more than this can be taken; inf: it is being added up."""
        return self._sum + self._went if self._adding is None else float("inf")

    def taken(self, most_bytes: float, asked: Sequence[int]) -> int:
        """What the job takes, if that may be more than ``most_bytes``; 0 as long as it can't be, or is being added up.

        ``asked``: a thread of each of its processes."""
        if not self._folders:
            return 0
        free = self._free_bytes()
        self._went += max(0, self._last_free - free)
        self._last_free, self._most_free = free, max(self._most_free, free)
        return self._add_up(most_bytes, asked) if self.most > most_bytes else 0

    def _add_up(self, most_bytes: float, asked: Sequence[int]) -> int:
        """The sum when it is complete, or enough; 0 before: the next call goes on."""
        if self._adding is None:
            self._adding, self._went = self._sums(asked), 0
        until_ns = time.monotonic_ns() + _TURN_NS
        for found in self._adding:
            if found > most_bytes:
                self._adding, self._sum = None, found
                return found
            if time.monotonic_ns() > until_ns:
                return 0
        self._adding = None
        return self._sum

    def _sums(self, asked: Sequence[int]) -> Iterator[int]:
        """What was found so far, after each piece of work. The sum is all of it, or all room that has gone where that
        is not to be known."""
        from ringfence.kernel.folder_sum import FolderSum
        from ringfence.kernel.proc.held_files import HeldFiles

        held, folders, given = HeldFiles(), FolderSum(self._since_s()), self.given or 0
        for _ in held.pieces(asked):
            yield held.bytes - given
        for folder in self._folders:
            for _ in folders.pieces(folder):
                yield held.bytes + folders.bytes - given
        found = max(0, held.bytes + folders.bytes - given)
        is_doubtful = held.has_more or folders.is_partial
        self._sum = max(found, self._most_free - self._last_free) if is_doubtful else found

    def _since_s(self) -> float:
        """Of a kept layer, what earlier jobs left is not this one's. A clock that was set back tells nothing."""
        return self._begun_s if self.given is None and time.time() >= self._begun_s else 0.0
