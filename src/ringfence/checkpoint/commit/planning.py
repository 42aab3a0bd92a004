"""The first half of a commit, which changes nothing: which parts of a layer go into the base.

Conflicts are decided by ``conflicts``.
"""

from __future__ import annotations

from ringfence.checkpoint import entry as entries
from ringfence.checkpoint import merge
from ringfence.checkpoint.apply import new_name
from ringfence.checkpoint.commit import commit_plan
from ringfence.checkpoint.commit.commit_plan import CommitPlan
from ringfence.checkpoint.commit.conflicts import OnConflict, Settling
from ringfence.checkpoint.commit.originals import Originals
from ringfence.checkpoint.entry import Manifest
from ringfence.checkpoint.layer import Planned
from ringfence.checkpoint.modes import grants
from ringfence.checkpoint.scan import Reading, Scan
from ringfence.checkpoint.snapshot import Snapshot
from ringfence.checkpoint.store import Store
from ringfence.model.record import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.checkpoint.layer import Layer


class Planner:
    """Plans the commits of one workspace."""

    def __init__(
        self, base: Scan, layer: Layer, store: Store, originals: Originals, hidden: frozenset[str]
    ) -> None:
        self._base, self._layer, self._store, self._originals = base, layer, store, originals
        self.hidden = hidden

    def plan(
        self, wanted: tuple[str, ...] | None, how: OnConflict, *, mounted: bool, untrusted: tuple[str, ...]
    ) -> Planned:
        """``wanted``: only these, and what is below. ``mounted``: somebody works on the layer. ``untrusted``: the other
        directories that jobs wrote."""
        layer = self._layer.read(Reading(self._store.put, self._store.has))
        written = (self._base.tree.path, *untrusted)
        settling = Settling(self._base, self._store, self._originals, wanted, how, written)
        settled, chosen, found = settling.settle(layer, lambda each: self._plan(each, wanted, how), self._layer.foreign)
        rest = None if mounted else merge.rest(settled.layer, wanted)
        whole = wanted is None and not mounted
        return Planned(chosen=chosen, plan=found, rest=rest, whole=whole, temporary=new_name(), settled=settled)

    def _plan(self, layer: Manifest, wanted: tuple[str, ...] | None, how: OnConflict) -> tuple[Manifest, CommitPlan]:
        chosen = merge.chosen(layer, wanted, self._has_folder)
        found = commit_plan.plan(chosen, self._base, self.hidden, grants(self._layer.base_mode))
        if both := commit_plan.modes_in_conflict(found, chosen, self._layer.base_mode):
            _MODES[how](found, both)
        commit_plan.check_mounts(found, self._base.tree.mounts(), shown=isinstance(self._layer, Snapshot))
        return chosen, found

    def _has_folder(self, path: str) -> bool:
        status = self._base.tree.status(path)
        return status is not None and entries.kind_of(status) == entries.FOLDER


def _take_theirs(found: CommitPlan, paths: list[str]) -> None:
    """Only the mode: what the job made in the directory is no part of the conflict."""
    for path in paths:
        found.target[path] = replace(found.target[path], mode=found.now[path].entry.mode)


def _refuse(_: CommitPlan, paths: list[str]) -> None:
    commit_plan.refuse(paths)


def _take_mine(_: CommitPlan, __: list[str]) -> None:
    """The plan has it already."""


_MODES = {OnConflict.REFUSE: _refuse, OnConflict.MERGE: _refuse, OnConflict.THEIRS: _take_theirs,
          OnConflict.MINE: _take_mine}  # fmt: skip
