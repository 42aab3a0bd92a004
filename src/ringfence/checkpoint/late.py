"""What was tried in a box after its last result: nobody was told of it yet, so it blocks every commit.

For a transaction it is kept on disk, since the next result may belong to another process. Hears nothing itself, and
decides nothing about what counts (``model.events.tried``).
"""

from __future__ import annotations

from _collections_abc import Callable, Iterable, Mapping
from _thread import RLock

from ringfence.checkpoint.records.documents import Documents, reading
from ringfence.errors import CheckpointError, LateAttemptError
from ringfence.model.events import tried
from ringfence.model.record import record

LATE_FILE = "late.json"
LATE, SINCE = "late", "late_since"
"""On an attempt: its process was left running by an earlier visit. On a recorder: the checkpoints before these visits,
empty for the beginning."""
_GAPS = ("unnamed", "lost", "late", "unwritten")
"""What a recorder counts of attempts that no record names."""
_MOST_NOTES, _MOST_ROWS = 100, 200
_HINT = (
    "roll back to before them, or run something: its result names them, and then you can decide to commit"
)


@record
class Late:
    """What was heard of one visit to a box after its result, or of an unknown visit."""

    since: str
    """The checkpoint that was the last one when the visit began; empty: there was none."""
    notes: tuple[Mapping[str, object], ...] = ()
    unrecorded: int = 0
    """Attempts that no note names."""
    problems: tuple[str, ...] = ()
    summary: tuple[Mapping[str, object], ...] = ()
    """What the recorder counted of attempts that are not named."""
    repeats: tuple[Mapping[str, object], ...] = ()
    """The same of attempts like one that a note names: they count for a result, and are no reason of their own."""

    def texts(self) -> list[str]:
        """The forbidden attempts among it, in words."""
        unnamed = [f"{self.unrecorded} attempts not named"] if self.unrecorded else []
        return [*unnamed, *filter(None, map(tried, self.notes))]


class LateAttempts:
    """The late attempts of one transaction, or of one box without a transaction."""

    def __init__(self, documents: Documents | None = None, spare: str = "") -> None:
        """``spare``: a file that is removed to make room if the disk is full."""
        self._documents, self._spare = documents, spare
        self._lock = RLock()
        self.collect: Callable[[], None] | None = None
        """Adds what a box that works on it has heard; absent: there is no box."""
        self._known: list[Late] | None = None
        """Absent: not looked up yet."""

    def _all(self) -> list[Late]:
        if self._known is None:
            document = self._documents.read(LATE_FILE) if self._documents else None
            with reading(LATE_FILE):
                self._known = [_from_row(row) for row in document["late"]] if document else []
        return self._known

    def add(self, late: Iterable[Late]) -> None:
        """Keep what is forbidden, or may be; the rest no longer matters."""
        with self._lock:
            more = [each for each in late if each.texts()]
            if more:
                self._keep(_joined([*self._all(), *more]))

    def take(self) -> list[Late]:
        """Take everything, for a result that reports it."""
        with self._lock:
            taken = self._all()
            try:
                if taken:
                    self._keep([])
            except CheckpointError:
                pass  # it stays on the disk, and is told once more
            return taken

    def undo(self, checkpoint_id: str, ids: Callable[[], list[str]]) -> None:
        """Going back to this checkpoint has undone what began at it or later. ``ids``: all that exist, the oldest
        first; nobody knows when one was made that is not among them."""
        with self._lock:
            if self._all():
                known = ids()
                later = known[known.index(checkpoint_id) :]
                self._keep([each for each in self._all() if each.since not in later])

    def refuse(self) -> None:
        """LateAttemptError if there are any."""
        if self.collect is not None:
            self.collect()
        with self._lock:
            found = self._all()
            texts = tuple(dict.fromkeys(text for each in found for text in each.texts()))
        if texts:
            more = f" and {len(texts) - 1} more" if len(texts) > 1 else ""
            raise LateAttemptError(f"not committed, because attempts were made after the last result: {texts[0]}{more}",
                                   attempts=texts,
                                   since=tuple(dict.fromkeys(each.since for each in found)), hint=_HINT)  # fmt: skip

    def _keep(self, late: list[Late]) -> None:
        """If it can't be written, that is an error, and it blocks commits here all the same."""
        self._known = late
        if self._documents is None:
            return
        try:
            if late:
                self._documents.write(LATE_FILE, {"late": [_as_row(each) for each in late]}, self._spare)
            else:
                self._documents.remove(LATE_FILE)
        except OSError as error:
            raise CheckpointError(f"{self._documents.path(LATE_FILE)}: {error.strerror}") from error


def _joined(late: list[Late]) -> list[Late]:
    """One for each checkpoint, in the order in which they came."""
    found: dict[str, list[Late]] = {}
    for each in late:
        found.setdefault(each.since, []).append(each)
    return [_one(since, rows) for since, rows in found.items()]


def _one(since: str, rows: list[Late]) -> Late:
    notes = [note for each in rows for note in each.notes if tried(note)]
    unnamed = sum(each.unrecorded for each in rows) + max(0, len(notes) - _MOST_NOTES)
    problems = tuple(dict.fromkeys(text for each in rows for text in each.problems))
    summary = tuple(row for each in rows for row in each.summary)[:_MOST_NOTES]
    return Late(since=since, notes=tuple(notes[:_MOST_NOTES]), unrecorded=unnamed, problems=problems, summary=summary)


def _as_row(late: Late) -> dict[str, object]:
    return {**vars(late), "notes": list(map(dict, late.notes)), "summary": list(map(dict, late.summary))}


def _from_row(row: Mapping[str, object]) -> Late:
    notes, problems, summary = row["notes"], row["problems"], row["summary"]
    if not all(isinstance(each, list) for each in (notes, problems, summary)):
        raise ValueError("a list is missing")
    return Late(since=str(row["since"]), notes=tuple(notes), unrecorded=int(row["unrecorded"]),  # type: ignore[arg-type,call-overload]
                problems=tuple(map(str, problems)), summary=tuple(summary))  # type: ignore[arg-type,call-overload]  # fmt: skip


def gaps_in(pages: Iterable[Mapping[str, object]]) -> tuple[int, tuple[str, ...], tuple[Mapping[str, object], ...]]:
    """How many attempts a recorder says nobody can name, why, and what was counted of them."""
    count, problems, rows = 0, [], []
    for page in pages:
        known = sum(_number(page.get(name)) for name in _GAPS)
        count += known or int(page.get("complete", True) is not True)
        problems += _texts(page.get("problems"))
        rows += [row for row in _listed(page.get("summary")) if isinstance(row, Mapping) and not row.get("named")]
    return count, tuple(dict.fromkeys(problems)), tuple(rows[:_MOST_ROWS])


def repeats_in(pages: Iterable[Mapping[str, object]]) -> tuple[Mapping[str, object], ...]:
    """What a recorder counted of attempts like one that a note names."""
    rows = (row for page in pages for row in _listed(page.get("summary")))
    return tuple(row for row in rows if isinstance(row, Mapping) and row.get("named"))[:_MOST_ROWS]


def with_late(
    recorder: Mapping[str, object], notes: Iterable[Mapping[str, object]], late: Iterable[Late]
) -> Mapping[str, object]:
    """What a recorder says of one visit, with notes on it from elsewhere, and with late attempts."""
    late = [each for each in late if each.notes or each.unrecorded or each.repeats]
    told_late = (note for each in late for note in each.notes)
    beside = [*notes, *(note for note in told_late if "decision" not in note)]  # the gateway's are no recorder's
    since = list(dict.fromkeys(each.since for each in late if each.texts()))
    if not recorder or not (beside or late):
        return {"complete": False, SINCE: since} if since else recorder
    unrecorded = sum(each.unrecorded for each in late)
    repeats = [row for each in late for row in each.repeats]
    repeated = _sums({}, *({str(row.get("aim", "")): row.get("count")} for row in repeats))
    more = len(beside) + unrecorded + sum(repeated.values())
    told = dict(recorder) | {
        "total": _number(recorder.get("total")) + more,
        "kept": _number(recorder.get("kept")) + len(beside),
        "summarised": _number(recorder.get("summarised")) + sum(repeated.values()),
        "lost": _number(recorder.get("lost")) + unrecorded,
        "complete": recorder.get("complete") is True and not unrecorded,
        "problems": [*_texts(recorder.get("problems")), *(text for each in late for text in each.problems)],
        "summary": [*_listed(recorder.get("summary")), *(dict(row) for each in late for row in each.summary),
                    *map(dict, repeats)],
        "totals": _sums({}, recorder.get("totals"), repeated, *({str(note.get("aim", "")): 1} for note in beside)),
    }
    return told | {SINCE: since} if since else told


def late_since(recorder: Mapping[str, object]) -> tuple[str, ...]:
    """The checkpoints before the visits whose processes have tried something since their results; empty: none has."""
    return tuple(map(str, _listed(recorder.get(SINCE))))


def _sums(counts: Mapping[str, int], *others: object) -> dict[str, int]:
    found = dict(counts)
    for other in others:
        for name, value in other.items() if isinstance(other, Mapping) else ():
            found[str(name)] = found.get(str(name), 0) + _number(value)
    return found


def _number(value: object) -> int:
    return value if type(value) is int and value > 0 else 0


def _listed(value: object) -> list[object]:
    return list(value) if isinstance(value, list | tuple) else []


def _texts(value: object) -> list[str]:
    return [str(each) for each in _listed(value)]
