"""How much of the disk a job's own directories take; asked only when that may exceed the limit.

Part of: leader, warden

If a parent ignores SIGCHLD, the kernel adds what its child wrote to no count, so counting writes is not enough. Free
room is cheap to ask for, but everybody uses it: it only says when to add up what the job has, a few milliseconds at a
time, since a job can fill its directories with names. Room that the job keeps us from adding up is charged to it (ADR
0136).
"""

from __future__ import annotations

import time
from _collections_abc import Callable, Iterable, Iterator, Sequence

_TURN_NS = 10_000_000
_TRIES = 6
"""How often processes are asked again because one of them had ended by then. Each is asked as soon as it is found, so
that happens seldom even to programs that start others all the time."""
_CLOCK_STEP_S = 0.1
"""The kernel's clock for files moves in steps, and may lag by that much."""


class GoneRoom:
    """Room that has gone from the disk since the first look, whoever took it. It adds up what went between each two
    looks, so room that others give back hides nothing that a job took at another time."""

    def __init__(self, free_bytes: Callable[[], int]) -> None:
        self._free_bytes = free_bytes
        self._last_free = 0
        self.bytes = 0

    def look(self) -> int:
        free = self._free_bytes()
        self.bytes += max(0, self._last_free - free)
        self._last_free = free
        return self.bytes


class LayerRoom:
    """The directories of one sandbox that nobody but its job writes while it runs."""

    def __init__(self, folders: Sequence[str], free_bytes: Callable[[], int]) -> None:
        self._folders = folders
        self._gone = GoneRoom(free_bytes)
        self._begun_s = time.time() - _CLOCK_STEP_S
        self._gone_before = 0
        """What had gone when the last sum began."""
        self._sum = 0
        """The last sum."""
        self._asked: Callable[[], Iterable[int]] = tuple
        self._adding: Iterator[int] | None = None
        self.given: int | None = None
        """What was in them before, if that was added up; absent: files not changed since then do not count."""

    @property
    def is_adding(self) -> bool:
        return self._adding is not None

    @property
    def most(self) -> float:
        """The most that can be taken; inf: it is being added up."""
        return self._sum + self._gone.bytes - self._gone_before if self._adding is None else float("inf")

    def taken(self, most_bytes: float, asked: Callable[[], Iterable[int]]) -> int:
        """What the job takes, if that may exceed ``most_bytes``; 0 while it can't, or while it is being added up.

        ``asked`` lists a thread of each of its processes; those that have ended leave a doubt."""
        if not self._folders:
            return 0
        self._gone.look()
        self._asked = asked
        return self._add_up(most_bytes) if self.most > most_bytes else 0

    def _add_up(self, most_bytes: float) -> int:
        """The sum when it is complete, or enough; 0 before: the next call goes on."""
        if self._adding is None:
            self._adding, self._gone_before = self._sums(), self._gone.bytes
        until_ns = time.monotonic_ns() + _TURN_NS
        for found in self._adding:
            if found > most_bytes:
                self._adding, self._sum = None, found
                return found
            if time.monotonic_ns() > until_ns:
                return 0
        self._adding = None
        return self._sum

    def _sums(self) -> Iterator[int]:
        """What was found so far, after each piece of work. The final sum is what was found; if that is uncertain, all
        room that has gone."""
        from ringfence.kernel.folder_sum import FolderSum
        from ringfence.kernel.proc.held_files import HeldFiles

        held, folders, given = HeldFiles(), FolderSum(self._since_s()), self.given or 0
        for _ in range(_TRIES):
            held = HeldFiles()
            for _ in held.pieces(self._asked()):
                yield held.bytes - given
            if not held.missed:
                break
        for folder in self._folders:
            for _ in folders.pieces(folder):
                yield held.bytes + folders.bytes - given
        found = max(0, held.bytes + folders.bytes - given)
        is_doubtful = held.has_more or held.missed or folders.is_partial
        self._sum = max(found, self._gone.bytes) if is_doubtful else found

    def _since_s(self) -> float:
        """In a kept layer, what earlier jobs left does not count. A clock that was set back tells nothing."""
        return self._begun_s if self.given is None and time.time() >= self._begun_s else 0.0
