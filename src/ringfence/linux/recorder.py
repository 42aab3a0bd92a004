"""Where attempts on forbidden things end up: kept, counted, summarised, in bounded memory.

Owns the record of one attempt and the recorder's own health. Touches no file, no kernel interface and no
clock: records come from ``tripwire`` and ``notify``, and leave through a writer that the caller passes in. It
decides nothing, and nothing it does can raise into the path of a guest that waits for an answer. One thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from ringfence.model.record import record

KEEP_FULL = 1000
KEEP_KEYS = 1000
MAX_TEXT = 600

Key = tuple[str, str]
"""Operation and resolved path."""


@record
class Attempt:
    """One attempt. Text that is not UTF-8 is kept with surrogate escapes; ``as_record`` prints it."""

    time_ns: int
    """Monotonic clock."""
    wall_ns: int
    operation: str
    """What was asked of the mechanism that recorded it: ``lookup``, ``open``, ``getattr`` …"""
    path: str
    """Full path in the sandbox as the kernel resolved it (folder, links, dirfd), to the first absent name."""
    errno: int
    """What the caller got; -1: not known, since the call went on after it was recorded."""
    pid: int = 0
    """As the sandbox knows it; 0 when it could not be told."""
    uid: int = -1
    """In the sandbox's user namespace."""
    start_ticks: int = 0
    """With pid it names a process for good; 0 when it could not be told."""
    comm: str = ""
    argv: tuple[str, ...] = ()
    syscall: str = ""
    """Empty when unknown, as for io_uring or when only counting."""
    asked: str = ""
    """The path as the program wrote it. A claim: another thread of the guest may have changed it since."""
    writes: bool = False

    def as_record(self) -> dict[str, object]:
        """Plain values that any encoder takes; nanoseconds as text, since JSON readers round them."""
        return {
            "time_ns": str(self.time_ns),
            "wall_ns": str(self.wall_ns),
            "pid": self.pid,
            "uid": self.uid,
            "start_ticks": str(self.start_ticks),
            "comm": printable(self.comm),
            "argv": _fitting(self.argv),
            "operation": self.operation,
            "syscall": self.syscall,
            "writes": self.writes,
            "asked": _fit(self.asked),
            "path": _fit(self.path),
            "errno": self.errno,
        }


@record
class Summary:
    """How often one (operation, path) was attempted beyond the records kept in full."""

    operation: str
    path: str
    count: int
    first_ns: int
    last_ns: int


@record
class Health:
    total: int
    kept: int
    summarised: int
    uncategorised: int
    """Counted in ``total`` only: more distinct attempts than the summary has room for."""
    lost: int
    late: int
    unwritten: int
    problems: tuple[str, ...] = ()
    """The first few reasons for anything lost, late or unwritten."""
    caveat: str = ""
    """What the mechanism that watched can't see, even when nothing was lost; empty: nothing."""

    @property
    def complete(self) -> bool:
        """Every attempt is accounted for. Summarising is not losing; anything else is."""
        return not (self.lost or self.late or self.unwritten)

    @property
    def clean(self) -> bool:
        """No attempt, and certain of it."""
        return self.complete and self.total == 0


class Recorder:
    """Takes attempts; ``write`` gets each one that is kept in full, and may fail with OSError."""

    _MAX_PROBLEMS = 8

    def __init__(
        self,
        *,
        write: Callable[[Mapping[str, object]], None] | None = None,
        keep_full: int = KEEP_FULL,
        keep_keys: int = KEEP_KEYS,
    ) -> None:
        self.caveat = ""
        """See ``Health.caveat``; set by what watches."""
        self._write = write
        self._keep_full = keep_full
        self._keep_keys = keep_keys
        self._kept: list[Attempt] = []
        self._counts: dict[Key, list[int]] = {}
        self._total = self._uncategorised = self._lost = self._late = self._unwritten = 0
        self._problems: list[str] = []
        self._closed = False

    @property
    def wants_detail(self) -> bool:
        """Whether the next attempt is kept in full: finding out who asked is work worth doing only then."""
        return len(self._kept) < self._keep_full

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        return tuple(self._kept)

    @property
    def summary(self) -> tuple[Summary, ...]:
        return tuple(
            Summary(operation=operation, path=path, count=count, first_ns=first, last_ns=last)
            for (operation, path), (count, first, last) in self._counts.items()
        )

    @property
    def health(self) -> Health:
        return Health(
            total=self._total,
            kept=len(self._kept),
            summarised=sum(row[0] for row in self._counts.values()),
            uncategorised=self._uncategorised,
            lost=self._lost,
            late=self._late,
            unwritten=self._unwritten,
            problems=tuple(self._problems),
            caveat=self.caveat,
        )

    def record(self, attempt: Attempt) -> None:
        self._total += 1
        if self._closed:
            self._late += 1
            self._note("an attempt arrived after the record was closed")
        elif self.wants_detail:
            self._kept.append(attempt)
            self._put(attempt)
        else:
            self._count(attempt)

    def lose(self, count: int, reason: str) -> None:
        """Attempts that are known to have happened, or may have, of which there is no record."""
        if count > 0:
            self._lost += count
            self._note(reason)

    def close(self) -> Health:
        """What comes after this is late. Closing twice is harmless."""
        self._closed = True
        return self.health

    def _put(self, attempt: Attempt) -> None:
        if self._write is None:
            return
        try:
            self._write(MappingProxyType(attempt.as_record()))
        except (OSError, ValueError) as error:  # ValueError: the file was closed
            self._unwritten += 1
            self._note(f"a record could not be written: {error}")

    def _count(self, attempt: Attempt) -> None:
        key = (attempt.operation, attempt.path)
        row = self._counts.get(key)
        if row is not None:
            row[0] += 1
            row[2] = attempt.time_ns
        elif len(self._counts) < self._keep_keys:
            self._counts[key] = [1, attempt.time_ns, attempt.time_ns]
        else:
            self._uncategorised += 1

    def _note(self, problem: str) -> None:
        if len(self._problems) < self._MAX_PROBLEMS and problem not in self._problems:
            self._problems.append(problem)


def printable(text: str) -> str:
    """Text that encodes as UTF-8: bytes that were not are shown as ``\\xNN``."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _fit(text: str, room: int = MAX_TEXT) -> str:
    """Text of the guest's choice, cut so that a record stays small enough to be written in one piece."""
    return printable(text if len(text) <= room else text[:room] + "…")


def _fitting(words: tuple[str, ...]) -> list[str]:
    fitted: list[str] = []
    room = MAX_TEXT
    for word in words:
        if room <= 0:
            return [*fitted, "…"]
        fitted.append(_fit(word, room))
        room -= len(word) + 1
    return fitted
