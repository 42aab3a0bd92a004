"""Where attempts on forbidden things end up: kept, counted, summarised, in bounded memory.

Owns the record of one attempt and the recorder's own health. Touches no file, no kernel interface and no
clock: records come from ``tripwire`` and ``notify``, and leave through a writer that the caller passes in. It
decides nothing, and nothing it does can raise into the path of a guest that waits for an answer. One thread.
It keeps one page for each result (docs/adr/0131): in a box one recorder has many.

Each aim has a budget of its own (docs/adr/0042): no number of harmless calls keeps an attempt on a hidden path out.
"""

from __future__ import annotations

from _collections_abc import Callable, Mapping
from types import MappingProxyType

from ringfence.kernel.proc import first_files
from ringfence.model.record import record
from ringfence.transport.plain_json import dumps

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.transport.report import NotedFrame

HIDDEN, PROCESS, REFUSED, OUTWARD, NOTED = "hidden", "process", "refused", "outward", "noted"
"""What an attempt aims at: a hidden path, what is pid 1's own, a call that is refused, an address that is not the
sandbox's own, or something else that goes on and is worth knowing."""

Key = tuple[str, str, bool]
"""Operation, resolved path, and whether it writes."""

# The most bytes of each text of the guest's choice, as JSON has them. All of them and the rest fit into one frame.
_PATH_BYTES, _ASKED_BYTES, _ARGV_BYTES, _COMM_BYTES = 1500, 1000, 900, 100
_CUT = "…"
_SUMMARY_BYTES = 32 * 1024


@record
class Budget:
    """How much of one aim is told."""

    names: int
    """The first attempt of each key, for this many keys."""
    full: int
    """Further attempts of known keys, until this many were told in all."""


BUDGETS: Mapping[str, Budget] = MappingProxyType(
    {HIDDEN: Budget(names=500, full=200), PROCESS: Budget(names=100, full=500), REFUSED: Budget(names=200, full=100),
     OUTWARD: Budget(names=500, full=200), NOTED: Budget(names=200, full=100)}
)


def aim_of(*, root: str, errno: int, outward: bool) -> str:
    """Return what an attempt with these properties aims at."""
    if root == first_files.FOLDER:
        return PROCESS
    return HIDDEN if root else REFUSED if errno else OUTWARD if outward else NOTED


@record
class Attempt:
    """An attempt, as it was told. Text that is not UTF-8 is kept with surrogate escapes; ``as_record`` prints it."""

    time_ns: int
    """Monotonic clock."""
    wall_ns: int
    operation: str
    """What was asked of the mechanism that recorded it: ``lookup``, ``open``, ``getattr`` …"""
    path: str
    """Full path in the sandbox as the kernel resolved it (directory, links, dirfd), to the first absent name."""
    errno: int
    """What the caller got; -1: not known, since the call went on after it was recorded."""
    root: str = ""
    """The hidden path that it is at or below; that of pid 1 where it is about that; empty: neither."""
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
    outward: bool = False
    """It names an address, and not one of the sandbox's own."""
    visit: int = 0
    """Of a box: the number of the visit whose process it was; 0: it is no box, or that is not known."""

    @property
    def aim(self) -> str:
        return aim_of(root=self.root, errno=self.errno, outward=self.outward)

    @property
    def key(self) -> Key:
        return (self.operation, self.path, self.writes)

    def as_record(self) -> NotedFrame:
        """Plain values that any encoder takes; nanoseconds as text, since JSON readers round them. As JSON it is
        smaller than PIPE_BUF, whatever the guest chose."""
        told: NotedFrame = {
            "aim": self.aim,
            "time_ns": str(self.time_ns),
            "wall_ns": str(self.wall_ns),
            "pid": self.pid,
            "uid": self.uid,
            "start_ticks": str(self.start_ticks),
            "comm": _fit(self.comm, _COMM_BYTES),
            "argv": _fitting(self.argv, _ARGV_BYTES),
            "operation": self.operation,
            "syscall": self.syscall,
            "writes": self.writes,
            "asked": _fit(self.asked, _ASKED_BYTES),
            "path": _fit(self.path, _PATH_BYTES),
            "errno": self.errno,
        }
        if self.visit:
            told["visit"] = self.visit
        return told


@record
class Summary:
    """Attempts beyond the records kept in full: of one key, or of all keys that there was no room for."""

    aim: str
    operation: str
    """Empty: of every kind."""
    path: str
    """Of keys without room: the hidden path that they are at or below."""
    count: int
    named: bool
    """The first of them was told."""
    first_ns: int
    last_ns: int


@record
class Health:
    total: int
    kept: int
    summarised: int
    uncategorised: int
    """Counted by hidden path or by call only: more distinct attempts than there is room for."""
    unnamed: int
    """Those of them that were about hidden paths or refused; the rest went on and is no offence."""
    lost: int
    late: int
    unwritten: int
    problems: tuple[str, ...] = ()
    """The first few reasons for anything lost, late or unwritten."""
    caveat: str = ""
    """What the mechanism that watched can't see, even when nothing was lost; empty: nothing."""

    @property
    def complete(self) -> bool:
        """The record says what every attempt on something forbidden was. A summary is not a loss."""
        return not (self.lost or self.late or self.unwritten or self.unnamed)

    @property
    def clean(self) -> bool:
        """No attempt, and certain of it."""
        return self.complete and self.total == 0


class _Row:
    """A count with its first and last time."""

    __slots__ = ("count", "first_ns", "last_ns")

    def __init__(self) -> None:
        self.count = self.first_ns = self.last_ns = 0

    def add(self, time_ns: int) -> None:
        self.first_ns = self.first_ns if self.count else time_ns
        self.last_ns = time_ns
        self.count += 1


class _Ledger:
    """What is known of one aim."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self.total = self.kept = 0
        self.known: dict[Key, _Row] = {}
        """Repeats of attempts that were told."""
        self.beyond: dict[tuple[str, str], _Row] = {}
        """(operation, hidden path), one of them empty: as few as there are calls and hidden paths."""

    def wants(self, key: Key) -> bool:
        if key in self.known:
            return self.kept < self._budget.full
        return len(self.known) < self._budget.names

    def take(self, attempt: Attempt) -> bool:
        """Whether it is to be told; else it is counted."""
        self.total += 1
        wanted = self.wants(attempt.key)
        if wanted:
            self.kept += 1
            self.known.setdefault(attempt.key, _Row())
            return True
        row = self.known.get(attempt.key)
        if row is None:
            place = ("", attempt.root) if attempt.root else (attempt.operation, "")
            row = self.beyond.setdefault(place, _Row())
        row.add(attempt.time_ns)
        return False

    @property
    def summarised(self) -> int:
        return sum(row.count for row in self.known.values())

    @property
    def uncategorised(self) -> int:
        return sum(row.count for row in self.beyond.values())

    def rows(self, aim: str) -> list[Summary]:
        beyond = [_summary(aim, operation, path, row, named=False) for (operation, path), row in self.beyond.items()]
        known = [_summary(aim, key[0], key[1], row, named=True) for key, row in self.known.items() if row.count]
        return beyond + known


def _summary(aim: str, operation: str, path: str, row: _Row, *, named: bool) -> Summary:
    return Summary(aim=aim, operation=operation, path=path, count=row.count, named=named,
                   first_ns=row.first_ns, last_ns=row.last_ns)  # fmt: skip


class Recorder:
    """Takes attempts; ``write`` gets each one that is kept in full, and may fail with OSError."""

    _MAX_PROBLEMS = 8

    def __init__(
        self,
        *,
        write: Callable[[NotedFrame], None] | None = None,
        budgets: Mapping[str, Budget] = BUDGETS,
    ) -> None:
        self.caveat = ""
        """See ``Health.caveat``; set by what watches."""
        self._write = write
        self._budgets = budgets
        self._closed = False
        self.turn_page()

    def turn_page(self) -> None:
        """Begin anew: what was recorded belongs to another result, and takes no room from what comes."""
        self._kept: list[Attempt] = []
        self._ledgers = {aim: _Ledger(self._budgets[aim]) for aim in BUDGETS}
        self._lost = self._late = self._unwritten = 0
        self._problems: list[str] = []

    def wants(self, aim: str, key: Key) -> bool:
        """Whether such an attempt is kept in full: finding out who asked is work worth doing only then."""
        return self._ledgers[aim].wants(key)

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        return tuple(self._kept)

    @property
    def summary(self) -> tuple[Summary, ...]:
        """What was not told in full: attempts without a name first, and of those hidden paths first. There are no more
        of these rows than hidden paths and calls, so no guest can have them cut off."""
        rows = (row for aim, ledger in self._ledgers.items() for row in ledger.rows(aim))
        return tuple(sorted(rows, key=lambda row: row.named))

    @property
    def is_blank(self) -> bool:
        """Whether nothing was recorded, lost or late, and nothing is known that could have been missed."""
        counted = self._lost or self._late or self._unwritten or any(led.total for led in self._ledgers.values())
        return not (counted or self._problems or self.caveat)

    def totals(self) -> dict[str, int]:
        """How many attempts there were of each aim."""
        return {aim: ledger.total for aim, ledger in self._ledgers.items() if ledger.total}

    @property
    def health(self) -> Health:
        ledgers = self._ledgers.values()
        return Health(
            total=sum(ledger.total for ledger in ledgers) + self._late,
            kept=len(self._kept),
            summarised=sum(ledger.summarised for ledger in ledgers),
            uncategorised=sum(ledger.uncategorised for ledger in ledgers),
            unnamed=sum(self._ledgers[aim].uncategorised for aim in (HIDDEN, REFUSED)),
            lost=self._lost,
            late=self._late,
            unwritten=self._unwritten,
            problems=tuple(self._problems),
            caveat=self.caveat,
        )

    def record(self, attempt: Attempt) -> None:
        if self._closed:
            self._late += 1
            self._note("an attempt arrived after the record was closed")
        elif self._ledgers[attempt.aim].take(attempt):
            self._kept.append(attempt)
            self._put(attempt)

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
            self._write(attempt.as_record())
        except (OSError, ValueError) as error:  # ValueError: the file was closed
            self._unwritten += 1
            self._note(f"a record could not be written: {error}")

    def _note(self, problem: str) -> None:
        if len(self._problems) < self._MAX_PROBLEMS and problem not in self._problems:
            self._problems.append(problem)


def as_rows(summary: tuple[Summary, ...]) -> list[dict[str, object]]:
    """As plain values, as many as fit into the last frame."""
    rows: list[dict[str, object]] = []
    room = _SUMMARY_BYTES
    for each in summary:
        row = {"aim": each.aim, "operation": each.operation, "path": _fit(each.path, _ASKED_BYTES),
               "count": each.count, "named": each.named}  # fmt: skip
        room -= _cost(row)
        if room < 0:
            break
        rows.append(row)
    return rows


def printable(text: str) -> str:
    """Text that encodes as UTF-8: bytes that were not are shown as ``\\xNN``."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _cost(value: object) -> int:
    """Bytes as JSON: a character may take one or twelve."""
    return len(dumps(value))


def _fit(text: str, room: int) -> str:
    """Text of the guest's choice, cut so that its JSON takes no more than this."""
    shown = printable(text[:room])
    if len(text) <= room and _cost(shown) <= room:
        return shown
    room -= _cost(_CUT)
    while (cost := _cost(shown)) > room:
        shown = shown[: len(shown) * max(room, 0) // cost]
        if not shown:
            break
    return shown + _CUT


def _fitting(words: tuple[str, ...], room: int) -> list[str]:
    fitted: list[str] = []
    mark = _cost(_CUT) + 2  # each word comes with a comma and a blank
    room -= mark
    for word in words:
        if room <= mark:
            return [*fitted, _CUT]
        fitted.append(_fit(word, room - 2))
        room -= _cost(fitted[-1]) + 2
    return fitted
