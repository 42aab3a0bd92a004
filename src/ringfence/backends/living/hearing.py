"""What is heard of a living box beside the results of its visits: what they left running goes on trying.

The leader of a visit stays with what the visit left, and records on; tripwires are the supervisor's. Both are asked
when a visit ends and before a commit. What belongs to no running visit is told with the next result, or makes the
commit be refused (docs/adr/0131). Starts and ends nothing.
"""

from __future__ import annotations

import time
from _collections_abc import Iterable
from _thread import RLock
from itertools import count

from ringfence.backends.leader_client import LeaderClient
from ringfence.checkpoint.late import LATE, Late, LateAttempts, gaps_in, repeats_in
from ringfence.errors import CheckpointError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.backends.groups import GroupVisit
    from ringfence.backends.living.visit import VisitToBox
    from ringfence.backends.process_images import RestoredTree
    from ringfence.transport.report import Note

_PATIENCE_S = 30.0
_MOST_KNOWN = 1000
_UNSAID = "who records what an earlier visit left running did not say what that was"
_VISIT = "visit"


class BoxHearing:
    """What is heard of one box. Several of its visits may end at once."""

    def __init__(self, late: LateAttempts, *, wired: bool) -> None:
        """``late``: keeps what no result has told. ``wired``: the supervisor has tripwires to report."""
        self.late = late
        self._wired = wired
        self._lock = RLock()
        self._asking = RLock()
        """Held while one thread asks, which may take long; ``_lock`` is never held that long."""
        self._supervisor: GroupVisit | None = None
        self._numbers = count(1)
        self._running: dict[int, VisitToBox | None] = {}
        """Running visits by number; None: the visit is just being made."""
        self._is_closing = False
        self._known: dict[int, str | None] = {}
        """Number of a visit → the checkpoint before it, for present visits and the most recent ones. None: it is a
        transfer of ours, and what it asks for is the caller's doing."""
        self._left: list[VisitToBox] = []
        """Visits that have ended, whose leaders may still have something to say."""
        self._restored: list[tuple[RestoredTree, str]] = []
        """Processes that were restored here, and the checkpoint that they are of."""
        self._told: list[Note] = []
        """Told by the supervisor, and not taken yet by the visit that it is about."""
        self._beside: list[Note] = []
        """Told by the gateway, about no visit."""

    def begin(self, supervisor: GroupVisit) -> None:
        """From now on, and until ``finish``, no commit happens before everything is heard."""
        supervisor.is_a_result = False
        self._supervisor = supervisor
        self.late.collect = self.collect

    # ---- visits come and go

    def enter(self, since: str | None) -> int:
        """Begin a visit; return its number. ``since``: the checkpoint before it, None for a transfer of ours."""
        with self._lock:
            number = next(self._numbers)
            self._running[number] = None
            self._known[number] = since
            if len(self._known) > _MOST_KNOWN:
                self._forget_oldest()
            return number

    def _forget_oldest(self) -> None:
        """Forget the oldest visit of which nothing is left; forget nothing if all have left something."""
        there = self._there()
        gone = next((number for number in self._known if number not in there), None)
        if gone is not None:
            del self._known[gone]

    def _there(self) -> set[int]:
        """Visits that run, or have left something running."""
        return {*(visit.number for visit in self._left), *self._running}

    def begun(self, visit: VisitToBox) -> None:
        with self._lock:
            self._running[visit.number] = visit

    def leave(self, number: int) -> None:
        with self._lock:
            self._running.pop(number, None)

    def begin_closing(self) -> None:
        """We end visits from now on: perhaps nobody looks at their results."""
        self._is_closing = True

    def stay(self, visit: VisitToBox) -> None:
        """Ask its leader too from now on."""
        with self._lock:
            if visit not in self._left:
                self._left.append(visit)
        self._drop_silent()

    def _drop_silent(self) -> None:
        """Drop visits whose leader has left and had nothing to say."""
        with self._asking:
            for visit in list(self._left):
                if visit.is_gone_silently():
                    self._forget(visit)

    def hear(self, tree: RestoredTree, since: str) -> None:
        """Listen to processes that were restored in this box too."""
        self._restored.append((tree, since))

    def _forget(self, visit: VisitToBox) -> None:
        with self._lock:
            self._left = [each for each in self._left if each is not visit]
        visit.hang_up()

    # ---- what is heard

    def take(self, number: int, *, beside: bool) -> list[Note]:
        """What the supervisor told of this visit; ``beside``: and what the gateway told since it was last taken, unless
        a later visit runs. The gateway knows no visits, and what began last is most likely what it tells of: a program
        in the background would otherwise take it from a short one."""
        self._sort()
        with self._lock:
            beside = beside and number >= self._newest()
            own = [note for note in self._told if note.get(_VISIT) == number]
            self._told = [note for note in self._told if note.get(_VISIT) != number]
            others, self._beside = (self._beside, []) if beside else ([], self._beside)
        return [*map(_plain, own), *others]

    def _newest(self) -> int:
        """The number of the last visit that runs and has a result to come; 0: there is none."""
        running = (visit for visit in self._running.values() if visit is not None and visit.since is not None)
        return max((visit.number for visit in running), default=0)

    def _sort(self) -> None:
        supervisor = self._supervisor
        for note in supervisor.take_notes() if supervisor is not None else ():
            with self._lock:
                (self._told if "aim" in note else self._beside).append(note)

    def settle(self, visit: VisitToBox) -> list[Late]:
        """At the end of a visit: attempts that its result reports although others made them."""
        with self._asking:
            self.leave(visit.number)
            late = [*self.late.take(), *self._collect((visit.number,))]
            if self._is_closing:
                self.late.add([*late, *self._so_far(visit)])
            return late

    def collect(self) -> None:
        """Before a commit: keep what no result has told; it makes the commit be refused."""
        with self._asking:
            found = [*self._collect(()), *self._refused()]
            for visit in list(self._running.values()):
                found += [] if visit is None or visit.since is None else self._so_far(visit)
            self.late.add(found)

    def put_back(self, late: list[Late]) -> None:
        """It was taken for a result that never came."""
        self.late.add(late)

    def _so_far(self, visit: VisitToBox) -> list[Late]:
        """What a visit has tried itself since the last call. Its result reports it too."""
        said = visit.is_told or visit.catch_up(_PATIENCE_S)
        with self._lock:
            wired = [_plain(note) for note in self._told if note.get(_VISIT) == visit.number]
        notes, pages = visit.take_copies()
        since = visit.since or ""
        return [_late(since, [*notes, *wired]), self._gap(pages, said=said, since=since)]

    def finish(self) -> str:
        """The box has ended; take everything that is left to say. Return what could not be kept, in words."""
        give_up = time.monotonic() + _PATIENCE_S
        with self._asking:
            for visit in list(self._left):
                _await_end(visit, give_up)
            if self._supervisor is not None:
                self._supervisor.end_network()
            try:
                self.late.add([*self._collect(()), *self._refused()])
            except CheckpointError as error:
                return f"what was tried after the last result could not be written down: {error}"
            finally:
                self.late.collect = None
        return ""

    def _collect(self, own: tuple[int, ...]) -> list[Late]:
        found = [] if not self._wired else self._of_supervisor(own)
        for visit in list(self._left):
            found += self._of_leader(visit)
        for tree, since in list(self._restored):
            found += self._of_restored(tree, since)
        return [each for each in found if each.notes or each.unrecorded or each.repeats]

    def _of_supervisor(self, own: tuple[int, ...]) -> list[Late]:
        """A process that touched a tripwire is known by the reaper above it. If it is unknown, it may belong to any
        visit that is still there: the oldest is assumed."""
        supervisor = self._supervisor
        if supervisor is None:
            return []
        said = supervisor.is_told or supervisor.ask(_PATIENCE_S) or supervisor.is_told
        self._sort()
        with self._lock:
            here = {*self._running, *own}
            late = [note for note in self._told if note.get(_VISIT, 0) not in here]
            self._told = [note for note in self._told if note.get(_VISIT, 0) in here]
        found = [self._late_of(note, own) for note in late if self._known.get(_number(note), "") is not None]
        gap = self._gap(supervisor.take_pages(), said=said, since=self._oldest(own))
        return [*found, gap]

    def _late_of(self, note: Note, own: tuple[int, ...]) -> Late:
        since = self._known.get(_number(note))
        return _late(self._oldest(own) if since is None else since, [note])

    def _refused(self) -> list[Late]:
        """What the gateway refused and no result has told. A visit that runs tells it too: it stays there for that."""
        said = self._supervisor is None or self._supervisor.hear_network(_PATIENCE_S)
        self._sort()
        newest, since = self._newest(), self._oldest(()) or next(filter(None, reversed(self._known.values())), "")
        with self._lock:
            found = [note for note in self._beside if by_gateway(note)]
            if not newest:
                self._beside = [note for note in self._beside if note not in found]
        gap = self._gap((), said=said, since=since)
        return [each for each in (_late(since, found), gap) if each.notes or each.unrecorded]

    def _of_leader(self, visit: VisitToBox) -> list[Late]:
        said = visit.ask(_PATIENCE_S)
        notes, pages = visit.take_own_notes(), visit.take_pages()
        if visit.has_left or visit.is_over or not said:
            self._forget(visit)
        if visit.since is None:
            return []
        gap = self._gap(pages, said=said, since=visit.since)
        return [_late(visit.since, notes), gap]

    def _of_restored(self, tree: RestoredTree, since: str) -> list[Late]:
        notes, pages, said = tree.take_late(_PATIENCE_S)
        if not said:  # and it will not say anything again
            self._restored = [each for each in self._restored if each[0] is not tree]
        return [_late(since, notes), self._gap(pages, said=said, since=since)]

    def _gap(self, pages: Iterable[Note], *, said: bool, since: str) -> Late:
        """The attempts that no note names."""
        pages = list(pages)
        unrecorded, problems, summary = gaps_in(pages)
        if not said:
            unrecorded, problems = unrecorded + 1, (*problems, _UNSAID)
        return Late(since=since, unrecorded=unrecorded, problems=problems, summary=summary, repeats=repeats_in(pages))

    def _oldest(self, own: tuple[int, ...]) -> str:
        """The checkpoint before the first of the visits that are there."""
        with self._lock:
            there = {*self._there(), *own}
            return next((since for number, since in self._known.items() if since is not None and number in there), "")


def _await_end(visit: LeaderClient, give_up: float) -> None:
    """Wait for a leader; the leaders of a box that has ended notice that by themselves."""
    while not visit.has_left and not visit.is_over and time.monotonic() < give_up:
        visit.await_word(give_up - time.monotonic())


def by_gateway(note: Note) -> bool:
    """Whether it tells of a connection that the gateway refused, or that it may have refused and did not name."""
    return note.get("decision") == "refused" or bool(note.get("missed"))


def _number(note: Note) -> int:
    number = note.get(_VISIT)
    return number if type(number) is int else 0


def _plain(note: Note) -> Note:
    return {name: value for name, value in note.items() if name != _VISIT}


def _late(since: str, notes: Iterable[Note]) -> Late:
    return Late(since=since, notes=tuple(_plain(note) | {LATE: True} for note in notes))
