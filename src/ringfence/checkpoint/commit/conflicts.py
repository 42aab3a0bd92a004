"""What becomes of paths that a commit would change and somebody else has changed too.

A path is no conflict if both sides hold the same, or if the base was changed and changed back. For the others the
caller says who wins: nobody, so that nothing is done; theirs, mine, or both, merged line by line. Plans only: the times
of these files are checked once more before the first file is written.
"""

from __future__ import annotations

import time
from _collections_abc import Callable

from ringfence.checkpoint import content
from ringfence.checkpoint.commit import commit_plan, three_way
from ringfence.checkpoint.commit.commit_plan import CommitPlan
from ringfence.checkpoint.commit.giving_up import given_up
from ringfence.checkpoint.commit.originals import MAX_BYTES, Originals
from ringfence.checkpoint.entry import FILE, LINK, Entry, Manifest, Seen
from ringfence.checkpoint.scan import Reading, Scan
from ringfence.checkpoint.store import Store
from ringfence.errors import CheckpointError, UsageError
from ringfence.model.paths import within
from ringfence.model.record import record, replace
from ringfence.model.str_enum import StrEnum

PlanOf = Callable[[Manifest], tuple[Manifest, CommitPlan]]
"""What is to be committed of a layer, and what that makes of the base."""
Mark = tuple[int, ...] | None
"""The fingerprint of what the base had at a path; none: nothing was there."""
_MOST_ROUNDS = 100
_TOO_LARGE = f"more than {MAX_BYTES >> 20} MiB"
_NO_ORIGINAL = "what it was before is not known"
_ONE_SIDE = "one of the two is not a file, or is a hard link"


class OnConflict(StrEnum):
    """Who wins where somebody else changed what a commit would change."""

    REFUSE = "refuse"
    THEIRS = "theirs"
    MINE = "mine"
    MERGE = "merge"


REFUSE = OnConflict.REFUSE


def on_conflict_of(word: str, *, free: bool) -> OnConflict:
    """``free``: nobody works on the layer, and nothing holds the commit to what was looked at before."""
    try:
        found = OnConflict(str(word))
    except ValueError:
        raise UsageError(f"on_conflict must be one of {', '.join(OnConflict)}, not {word!r}") from None
    if found is not OnConflict.REFUSE and not free:
        raise UsageError(f"on_conflict={str(found)!r} changes what is committed, while something works on it or it is "
                         "sealed", hint="close the box first, and commit without sealed=")  # fmt: skip
    return found


@record
class Settled:
    """A layer whose conflicts have been decided, as far as they were found."""

    layer: Manifest
    fine: frozenset[str] = frozenset()
    """Paths where overwriting their change is intended."""
    same: frozenset[str] = frozenset()
    theirs: frozenset[str] = frozenset()
    mine: frozenset[str] = frozenset()
    merged: frozenset[str] = frozenset()

    @property
    def anew(self) -> frozenset[str]:
        """Paths where the layer takes over what the base then has."""
        return self.same | self.theirs | self.merged


class Settling:
    """Decides the conflicts of one commit into one base."""

    def __init__(
        self, base: Scan, store: Store, originals: Originals, wanted: tuple[str, ...] | None, how: OnConflict,
        untrusted: tuple[str, ...],
    ) -> None:  # fmt: skip
        """``untrusted``: directories that jobs wrote, from which no program is taken."""
        self._untrusted = untrusted
        self._base, self._store, self._originals, self._wanted, self._how = base, store, originals, wanted, how

    def settle(
        self, layer: Manifest, plan_of: PlanOf, foreign: commit_plan.Foreign
    ) -> tuple[Settled, Manifest, CommitPlan]:
        """Repeat until no conflict is left: one may have hidden another."""
        settled, judged = Settled(layer=layer), dict[str, Mark]()
        for _ in range(_MOST_ROUNDS):
            chosen, plan = plan_of(settled.layer)
            # Each round looks at the base anew, and what came after the judgement was judged by nobody.
            commit_plan.refuse([path for path in settled.fine if _has_moved(path, plan, judged[path])])
            found = [path for path in commit_plan.conflicts(plan, chosen, foreign) if path not in settled.fine]
            if not found:
                return settled, chosen, plan
            judged |= {path: _mark(path, plan) for path in found}
            settled = self._next(settled, chosen, plan, found)
        problem = f"new conflicts appear again and again: {commit_plan.named(found)}"
        raise CheckpointError(problem, hint="commit these paths one by one")

    def _next(self, settled: Settled, chosen: Manifest, plan: CommitPlan, found: list[str]) -> Settled:
        back = {path for path in found if self._is_back(path, plan.now.get(path))}
        same = {path for path in found if path not in back and self._is_same(path, plan, chosen)}
        layer = self._without(settled, same)
        settled = replace(settled, fine=settled.fine | back, same=settled.same | same, layer=layer)
        real = [path for path in found if path not in back | same]
        return _DECISIONS[self._how](self, settled, plan, real) if real else settled

    def _refuse(self, settled: Settled, _: CommitPlan, real: list[str]) -> Settled:
        commit_plan.refuse(real)
        return settled

    def _take_theirs(self, settled: Settled, _: CommitPlan, real: list[str]) -> Settled:
        return replace(settled, layer=self._without(settled, real), theirs=settled.theirs | set(real))

    def _take_mine(self, settled: Settled, _: CommitPlan, real: list[str]) -> Settled:
        return replace(settled, fine=settled.fine | set(real), mine=settled.mine | set(real))

    def _merge(self, settled: Settled, plan: CommitPlan, real: list[str]) -> Settled:
        """All of them, or none: half a merge is something that nobody wrote."""
        made = {path: self._merged(path, settled.layer.get(path), plan.now.get(path)) for path in real}
        reasons = {path: why for path, why in made.items() if isinstance(why, str)}
        if reasons:
            commit_plan.refuse(list(reasons), f"not merged ({'; '.join(sorted(set(reasons.values())))})")
        entries = {path: entry for path, entry in made.items() if isinstance(entry, Entry)}
        return replace(settled, layer={**settled.layer, **entries}, fine=settled.fine | set(real),
                       merged=settled.merged | set(real))  # fmt: skip

    # ---- giving up

    def _without(self, settled: Settled, paths: list[str] | set[str]) -> Manifest:
        layer = settled.layer
        for path in paths:
            for top in self._concerned(path):
                layer = given_up(layer, top, self._names)
        return layer

    def _concerned(self, path: str) -> list[str]:
        """The path; if it lies above the paths to be committed, only those: the caller did not name the others."""
        if self._wanted is None or any(within(path, top) for top in self._wanted):
            return [path]
        return [top for top in self._wanted if within(top, path)]

    def _names(self, folder: str) -> list[str]:
        try:
            return self._base.tree.names(folder)
        except (FileNotFoundError, NotADirectoryError):
            return []

    # ---- what is no conflict

    def _is_back(self, path: str, seen: Seen | None) -> bool:
        """Others changed it, and changed it back: nothing of theirs is lost."""
        original = self._originals.known.get(path)
        if seen is None or original is None or _aspect(seen.entry) != _aspect(original):
            return False
        return self._digest(path) == original.digest

    def _is_same(self, path: str, plan: CommitPlan, chosen: Manifest) -> bool:
        seen, wanted = plan.now.get(path), plan.target.get(path)
        if seen is None or wanted is None or path not in chosen or _aspect(seen.entry) != _aspect(wanted):
            return False
        if wanted.kind == LINK:
            return True
        return wanted.kind == FILE and not wanted.twin and self._digest(path) == wanted.digest

    # ---- contents

    def _digest(self, path: str) -> str:
        """The digest of what the base has there now; empty if we may not read it."""
        try:
            seen = self._base.one(path, Reading(content.digest))
        except PermissionError:
            return ""
        return seen.entry.digest if seen is not None else ""

    def _merged(self, path: str, entry: Entry | None, seen: Seen | None) -> Entry | str:
        """An entry with both changes, and its content in the store; or why there can't be one."""
        original = self._originals.known.get(path)
        if original is None:
            return _NO_ORIGINAL
        if entry is None or seen is None or {entry.kind, seen.entry.kind} != {FILE} or entry.twin:
            return _ONE_SIDE
        if max(entry.size, seen.entry.size) > MAX_BYTES:
            return _TOO_LARGE
        mine, before = (self._store.text(each.digest, MAX_BYTES) for each in (entry, original))
        text = three_way.merged(mine, before, _read(self._base.open(path)), without=self._untrusted)
        return text if isinstance(text, str) else self._entry(text, entry, original, seen.entry)

    def _entry(self, text: bytes, mine: Entry, original: Entry, theirs: Entry) -> Entry:
        """Mode and attributes come from the side that changed them; mine if both did."""
        mode = theirs.mode if mine.mode == original.mode else mine.mode
        attributes = theirs.attributes if mine.attributes == original.attributes else mine.attributes
        return replace(mine, digest=self._store.put_text(text), size=len(text), mtime_ns=time.time_ns(), mode=mode,
                       attributes=attributes, copied=False)  # fmt: skip


_DECISIONS = {
    OnConflict.REFUSE: Settling._refuse,
    OnConflict.THEIRS: Settling._take_theirs,
    OnConflict.MINE: Settling._take_mine,
    OnConflict.MERGE: Settling._merge,
}


def _mark(path: str, plan: CommitPlan) -> Mark:
    seen = plan.now.get(path)
    return seen.fingerprint if seen is not None else None


def _has_moved(path: str, plan: CommitPlan, before: Mark) -> bool:
    """Whether somebody has changed it since, if this commit still concerns it."""
    return (path in plan.now or path in plan.target) and _mark(path, plan) != before


def _aspect(entry: Entry) -> tuple[object, ...]:
    """All but the content and its time."""
    return entry.kind, entry.mode, entry.size, entry.target, entry.attributes


def _read(descriptor: int) -> bytes:
    with open(descriptor, "rb") as file:
        return file.read(MAX_BYTES + 1)
