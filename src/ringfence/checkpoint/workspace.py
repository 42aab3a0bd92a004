"""``Workspace``: look at what changed, set checkpoints, go back to one, carry over to the base.

Every change of more than one file is written into a journal first and carried to its end at the next start
if it was broken off, so that a workspace is found in the old state or in the new one. Power loss is covered
as far as the file system orders renames; nothing is forced to the disk. Runs no program but git,
to merge, and locks nothing.
"""

from __future__ import annotations

import sys
import time
from _collections_abc import Iterable, Iterator, Mapping

from ringfence.checkpoint import entry as entries
from ringfence.checkpoint import merge
from ringfence.checkpoint.apply import Writer, new_name
from ringfence.checkpoint.commit import commit_plan
from ringfence.checkpoint.commit.conflicts import REFUSE, OnConflict
from ringfence.checkpoint.commit.originals import Originals
from ringfence.checkpoint.commit.planning import Planner
from ringfence.checkpoint.conversion import converted, guarded
from ringfence.checkpoint.diff import differences, look, texts
from ringfence.checkpoint.entry import Entry, Manifest
from ringfence.checkpoint.layer import Committed, Planned, Rollback
from ringfence.checkpoint.overlay import OverlayLayer
from ringfence.checkpoint.records import workspace_journal as journal
from ringfence.checkpoint.records.workspace_journal import Carrying, GoingBack, Staging
from ringfence.checkpoint.scan import UNREAD, Reading, Scan
from ringfence.checkpoint.snapshot import Snapshot
from ringfence.checkpoint.store import JOURNAL, STATE, Checkpoint, Place, Store, new_checkpoint_id
from ringfence.checkpoint.tree import Tree
from ringfence.errors import CheckpointError, ConflictError
from ringfence.model.outcome import Changes
from ringfence.model.record import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ringfence.checkpoint.layer import Layer


class Workspace:
    """A base, a layer over it, and the history of the layer."""

    def __init__(self, base: Tree, store: Store, layer: Layer, *, hidden: frozenset[str] = frozenset()) -> None:
        self.base = base
        self.store = store
        self.layer = layer
        self.hidden = hidden
        """Paths below the base that the job could not see: nothing that the job did may reach them."""
        self._scan = Scan(base, without=hidden, ours=False, mounted=isinstance(layer, Snapshot))
        self._keep = Reading(store.put, store.has)
        self._base_writer: Writer | None = None
        self._current: str | None = None  # from the state, which each visit to a box asks for; None: to be looked up
        self._below = differences.Below(self._scan, layer.scan, layer.base_mode)
        self._sealed: look.Look | None = None
        self._originals = Originals(store, self._scan, layer)
        self._planner = Planner(self._scan, layer, store, self._originals, hidden)
        if store.holds(JOURNAL):
            self.recover()

    def also_hide(self, paths: Iterable[str]) -> None:
        """From now on nothing that a job did reaches these either: absolute paths; those below the base count."""
        more = _inside(self.base, tuple(paths))
        self.hidden = self._planner.hidden = self.hidden | more
        self._scan.leave_out(more)
        self.layer.leave_out(more)
        self._sealed = self._sealed and self._sealed.without(more)

    @converted
    def changes(self, *, noting: bool = False) -> Changes:
        """What differs from the base. ``noting``: the layer will last, so the base's side is kept for a merge."""
        seen = self._look()
        if noting:
            self._originals.note(seen.layer)
        return seen.changes(self._below)

    def _look(self) -> look.Look:
        return self._sealed or look.live(self.layer)

    def diff(self, path: str | None = None, *, title: str = "") -> str:
        """What changed in one file, or in all, as text; ``title`` is put before the names."""
        return "".join(self.diffs(None if path is None else (path,), title=title, most=texts.MAX_TEXT_CHARS))

    @converted
    def diffs(
        self, paths: tuple[str, ...] | None = None, *, title: str = "", most: int = sys.maxsize
    ) -> Iterator[str]:
        """The same part by part, of these paths and what is below; after so many characters the rest is only named."""
        wanted = None if paths is None else tuple(map(entries.callers, paths))
        return guarded(self, self._look().diffs(self._below, wanted, title, most))

    @converted
    def layer_bytes(self) -> int:
        """What the changed files take on the disk."""
        return self.layer.scan.used_bytes(self.layer.read(UNREAD))

    @converted
    def links(self) -> dict[str, str]:
        """The symbolic links of the layer, and where they point: the program chose that, so none is followed."""
        return {path: entry.target for path, entry in self._look().layer.items() if entry.kind == entries.LINK}

    @converted
    def seal(self) -> Manifest:
        """The layer as it is now. From here on it is shown like this, whatever programs make of it."""
        again, layer = self._sealed, self.layer.read(self._keep)
        self._sealed = look.sealed(layer, self.store, self._below)
        if again and again.layer != layer:
            self._collect()
        return layer

    def unseal(self) -> None:
        self._sealed = None

    # Checkpoints

    @converted
    def create_checkpoint(
        self, name: str = "", state_data: Mapping[str, Any] | None = None, *, checkpoint_id: str = ""
    ) -> Checkpoint:
        """Keep the layer as it is now, and some data of the caller's with it. Without an id it gets one."""
        made = Checkpoint(
            checkpoint_id=checkpoint_id or new_checkpoint_id(),
            name=name,
            number=self._state().get("number", 0) + 1,
            created_s=time.time(),
            state_data=dict(state_data or {}),
            layer=self.layer.read(self._keep),
        )
        self.unseal()
        self.store.save(made)
        self.layer.remember()
        self._set_state(number=made.number, current=made.checkpoint_id)
        return made

    @converted
    def checkpoints(self) -> list[Checkpoint]:
        """The oldest first."""
        return self.store.checkpoints()

    @property
    def current(self) -> str:
        """The checkpoint that was made or gone back to last; empty where there is none."""
        if self._current is None:
            self._current = str(self._state().get("current", ""))
        return self._current

    @converted
    def rollback_to_checkpoint(self, checkpoint_id: str, paths: tuple[str, ...] | None = None) -> Rollback:
        """Go back, or forward, to a checkpoint; with ``paths``, only these and what is below them."""
        then = self.store.load(checkpoint_id)
        layer = then.layer if paths is None else self._mixed(then.layer, paths)
        count = self._go(layer, "" if paths is not None else checkpoint_id)
        state = then.state_data if paths is None else None
        partial = paths is not None
        return Rollback(checkpoint_id=checkpoint_id, partial=partial, files_restored=count, state_data=state)

    @converted
    def drop_hidden(self) -> None:
        """Take out of the layer what lies where something has been hidden since."""
        self.go_to(self.layer.read(self._keep))

    @converted
    def discard(self) -> int:
        """Drop all changes; checkpoints stay. Return how many paths were restored."""
        return self.go_to({})

    def _mixed(self, then: Manifest, paths: tuple[str, ...]) -> Manifest:
        layer: Manifest = self.layer.read(self._keep)
        for path in paths:
            layer = merge.swap(layer, then, entries.callers(path), self._read_base)
        return layer

    def _read_base(self, path: str) -> dict[str, Entry]:
        top = self._scan.one(path, self._keep)
        if top is None:
            return {}
        below = self._scan.below(path, self._keep) if top.entry.kind == entries.FOLDER else {}
        return {path: top.entry, **entries.of_index(below)}

    def go_to(self, layer: Manifest) -> int:
        """Make this the layer; its contents are in the store. Return how many paths were written or removed."""
        return self._go(layer, "")

    def _go(self, layer: Manifest, current: str) -> int:
        """``current``: the checkpoint whose layer it is. Then it is in the store, and not in the journal."""
        self.unseal()
        going = GoingBack(temporary=new_name(), current=current, layer=None if current else layer)
        journal.note(self.store, going)
        return self._finish_rollback(layer, going)

    def _finish_rollback(self, layer: Manifest, going: GoingBack) -> int:
        """It may contain what has been hidden since, and that does not come back."""
        if self.hidden:
            layer = {path: entry for path, entry in layer.items() if not merge.is_below(path, self.hidden)}
        count = self.layer.restore(layer, going.temporary)
        self.layer.remember()
        if going.current:
            self._set_state(current=going.current)
        self.store.remove(JOURNAL)
        self.store.reserve()
        return count

    @converted
    def delete_checkpoint(self, checkpoint_id: str) -> None:
        if checkpoint_id not in self.store.checkpoint_ids():  # one that is damaged can be deleted too
            self.store.load(checkpoint_id)
        self.store.drop(checkpoint_id)
        self._collect()

    @converted
    def sweep(self) -> None:
        """Remove contents that nothing needs, such as those that a commit with a conflict kept in vain."""
        self._collect()

    def _collect(self) -> None:
        self.store.collect(self._originals.known, self._sealed.layer if self._sealed else {})

    def tidy(self) -> None:
        """After an error: a full disk must not stay full with contents that were kept in vain."""
        try:
            self._collect()
        except (CheckpointError, OSError):
            pass  # the first error is the one to tell

    # Commit

    @converted
    def commit(self, paths: tuple[str, ...] | None = None, *, mounted: bool = False) -> Committed:
        """Carry the layer over into the base, all of it or some paths. This ends the history: checkpoints go.

        ``mounted``: somebody works on the layer, so it stays as it is, and says again what the base now says too.
        """
        with self.base.locked():
            planned = self.plan_commit(paths, mounted=mounted)
            self.stage(planned)
            self.check_again(planned)
            return self.carry_out(planned)

    @converted
    def plan_commit(
        self, paths: tuple[str, ...] | None = None, *, mounted: bool = False, on_conflict: OnConflict = REFUSE,
        untrusted: tuple[str, ...] = (),
    ) -> Planned:  # fmt: skip
        """The first half of a commit, which changes nothing: what would be done, or the conflicts."""
        wanted = None if paths is None else tuple(map(entries.callers, paths))
        self.base.confirm()
        return self._planner.plan(wanted, on_conflict, mounted=mounted, untrusted=untrusted)

    @converted
    def stage(self, planned: Planned) -> None:
        """Between the two halves: make every new file beside its place. A failure ends the commit here."""
        self.layer.begin_staging()
        journal.note(self.store, Staging(temporary=planned.temporary))
        try:
            self._writer(planned.temporary).stage(entries.of_index(planned.plan.now), planned.plan.target)
        except BaseException:
            self._unstage(planned.temporary)
            raise

    @converted
    def check_again(self, planned: Planned) -> None:
        """Making the new files took time, and others may have changed the old ones meanwhile."""
        try:
            commit_plan.check_again(planned.plan, self._scan)
        except ConflictError:
            self._unstage(planned.temporary)
            raise

    @converted
    def unstage(self, planned: Planned) -> None:
        """Nothing is to be committed after all."""
        self._unstage(planned.temporary)

    def _unstage(self, temporary: str) -> None:
        self._writer(temporary).unstage()
        self.layer.end_staging()
        self.store.remove(JOURNAL)

    @converted
    def carry_out(self, planned: Planned) -> Committed:
        """The second half: once the journal is written, it is carried to its end, now or at the next start."""
        self.unseal()
        self._set_state()
        settled = planned.settled
        carrying = Carrying(temporary=planned.temporary, plan=planned.plan, rest=planned.rest, whole=planned.whole,
                            anew=tuple(entries.ordered(settled.anew)))  # fmt: skip
        journal.note(self.store, carrying)
        self._finish_commit(carrying)
        left = tuple(path for path, entry in planned.chosen.items() if entry.kind in entries.SPECIAL)
        told = (path for path in entries.ordered(planned.chosen) if commit_plan.is_told(planned.plan, path))
        done = tuple(path for path in told if path not in left or commit_plan.removes(planned.plan, path))
        decided = {name: tuple(entries.ordered(getattr(settled, name))) for name in ("theirs", "mine", "merged")}
        return Committed(paths=done, left=left, **decided)

    def _finish_commit(self, carrying: Carrying) -> None:
        plan, temporary = carrying.plan, carrying.temporary
        writer = self._writer(temporary)
        written = writer.apply(plan.now, plan.target)
        writer.unstage()
        self.layer.end_staging()
        self.layer.settle(carrying.rest, plan, written, temporary, whole=carrying.whole, anew=carrying.anew)
        self._originals.drop({*plan.now, *plan.target, *carrying.anew})
        self._drop_history()
        self.store.remove(JOURNAL)
        self._collect()

    @converted
    def forget_checkpoints(self) -> None:
        """End the history as a commit does, without a commit."""
        self._drop_history()
        self._collect()

    def _drop_history(self) -> None:
        for checkpoint_id in self.store.checkpoint_ids():
            self.store.drop(checkpoint_id)
        self._set_state(current="")

    def _writer(self, temporary: str) -> Writer:
        """The writer into the base; the same one throughout a commit."""
        if self._base_writer is None or self._base_writer.temporary != temporary:
            source = lambda _, entry: self.store.open(entry.digest)  # noqa: E731
            self._base_writer = Writer(self.base, source, temporary, special=False, alone=False)
        return self._base_writer

    # After a crash

    @converted
    def recover(self) -> None:
        """Finish what was broken off. What others changed since stays theirs, and is named."""
        begun = journal.noted(self.store)
        if isinstance(begun, Staging):
            self._unstage(begun.temporary)
        elif isinstance(begun, GoingBack):
            layer = self.store.load(begun.current).layer if begun.layer is None else begun.layer
            self._finish_rollback(layer, begun)
        elif begun is not None:
            with self.base.locked():
                self._resume(begun)

    def _resume(self, begun: Carrying) -> None:
        touched = {entries.parent(path) for path in (*begun.plan.now, *begun.plan.target)}
        self._writer(begun.temporary).open_closed({*begun.plan.now, *begun.plan.target})
        self._writer(begun.temporary).sweep(touched)
        plan, theirs = commit_plan.resume(commit_plan.outside(begun.plan, self.hidden), self._scan)
        rest = begun.rest
        if rest is not None:
            rest = {**commit_plan.left_over(begun.plan, theirs), **rest}
        # Not as a whole if something is theirs: that is younger than the layer, and must stay so.
        self._finish_commit(replace(begun, plan=plan, rest=rest, whole=begun.whole and not theirs))
        commit_plan.left_to_them(theirs)

    def _state(self) -> dict[str, Any]:
        return (self.store.read(STATE) if self.store.holds(STATE) else None) or {}

    def _set_state(self, **changed: object) -> None:
        self.store.write(STATE, {**self._state(), "base": list(self.base.identity), **changed})
        self._current = None

    @converted
    def pin(self) -> None:
        """It will be kept: remember which directory the base is, so that another one in its place is refused."""
        self.store.reserve()
        if not self.store.holds(STATE):
            self._set_state()

    def close(self) -> None:
        """Let go of the directories; the store stays, for the next time."""
        self.layer.close()
        self.base.close()
        self.store.close()


def open_overlay(upper: str | Tree, base: str, store: Place, *, hidden: tuple[str, ...] = ()) -> Workspace:
    """A workspace whose layer overlayfs keeps in ``upper``; ``hidden`` are absolute paths below the base."""
    kept = Store(store) if isinstance(store, str) else store
    tree = _base(base, kept)
    secrets = _inside(tree, hidden)
    return Workspace(tree, kept, OverlayLayer(upper, tree, kept, hidden=secrets), hidden=secrets)


def open_snapshot(base: str, store: Place, *, hidden: tuple[str, ...] = ()) -> Workspace:
    """A workspace whose layer is a working copy in ``store/work``."""
    kept = Store(store) if isinstance(store, str) else store
    tree = _base(base, kept)
    secrets = _inside(tree, hidden)
    return Workspace(tree, kept, Snapshot(tree, kept, hidden=secrets), hidden=secrets)


def _inside(base: Tree, hidden: tuple[str, ...]) -> frozenset[str]:
    prefix = base.path.rstrip("/") + "/"
    return frozenset([path[len(prefix) :] for path in hidden if path.startswith(prefix)])


def _base(path: str, store: Store) -> Tree:
    state = (store.read(STATE) if store.holds(STATE) else None) or {}
    identity = state.get("base")
    return Tree(path, identity=(identity[0], identity[1]) if identity else None)
