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
from ringfence.checkpoint.modes import callers_umask
from ringfence.checkpoint.scan import Reading, Scan
from ringfence.checkpoint.snapshot import Snapshot
from ringfence.checkpoint.store import Store

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
        settled, chosen, found = settling.settle(layer, lambda each: self._plan(each, wanted), self._layer.foreign)
        rest = None if mounted else merge.rest(settled.layer, wanted)
        whole = wanted is None and not mounted
        return Planned(chosen=chosen, plan=found, rest=rest, whole=whole, temporary=new_name(), settled=settled)

    def _plan(self, layer: Manifest, wanted: tuple[str, ...] | None) -> tuple[Manifest, CommitPlan]:
        chosen = merge.chosen(layer, wanted, self._has_folder)
        found = commit_plan.plan(chosen, self._base, self.hidden, callers_umask())
        commit_plan.check_mounts(found, self._base.tree.mounts(), shown=isinstance(self._layer, Snapshot))
        return chosen, found

    def _has_folder(self, path: str) -> bool:
        status = self._base.tree.status(path)
        return status is not None and entries.kind_of(status) == entries.FOLDER
