"""``Workspace``: look at what changed, set checkpoints, go back to one, carry over to the base.

Every change of more than one file is written into a journal first and carried to its end at the next start
if it was broken off, so that a workspace is found in the old state or in the new one. Power loss is covered
as far as the file system orders renames; nothing is forced to the disk. Runs no program and locks nothing.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping

from ringfence.checkpoint import carry, differences, merge
from ringfence.checkpoint import entry as entries
from ringfence.checkpoint.apply import Writer, new_name
from ringfence.checkpoint.carry import Carry
from ringfence.checkpoint.entry import Entry, Manifest, Seen
from ringfence.checkpoint.overlay import USER_PREFIX, OverlayLayer
from ringfence.checkpoint.scan import UNREAD, Reading, Scan
from ringfence.checkpoint.snapshot import Snapshot
from ringfence.checkpoint.store import JOURNAL, STATE, Checkpoint, Store
from ringfence.checkpoint.tree import Tree
from ringfence.errors import CheckpointError, ConflictError, UsageError
from ringfence.model.outcome import Change
from ringfence.model.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

    P = ParamSpec("P")
    T = TypeVar("T")

    class Layer(Protocol):
        """Where the changes lie. ``OverlayLayer`` and ``Snapshot``."""

        scan: Scan
        """How to read the tree that holds the current state."""

        def read(self, how: Reading) -> dict[str, Entry]: ...
        def restore(self, layer: Manifest, temporary: str) -> int: ...
        def remember(self) -> None: ...
        def foreign(self, path: str, seen: Seen | None, entry: Entry | None) -> bool: ...
        def settle(self, rest: Manifest | None, carry: Carry, temporary: str, *, whole: bool) -> None: ...
        def held(self) -> Manifest: ...
        def close(self) -> None: ...


@record
class Rollback:
    """What a rollback did."""

    checkpoint_id: str
    partial: bool
    files_restored: int
    state_data: Mapping[str, Any] | None
    """The checkpoint's. Absent after a partial rollback: it would not fit the rest."""


@record
class Planned:
    """A commit that has been looked over and not begun."""

    chosen: Manifest
    plan: Carry
    rest: Manifest | None
    """What the layer holds afterwards. Absent: it stays as it is, for somebody works on it."""
    whole: bool


@record
class Committed:
    """What a commit did."""

    paths: tuple[str, ...]
    left: tuple[str, ...]
    """Sockets, FIFOs and devices, which stay in the layer."""


def _converted(method: Callable[Concatenate[Workspace, P], T]) -> Callable[Concatenate[Workspace, P], T]:
    """Around every operation: it begins with a fresh look, and errors of the file system become ours."""

    def call(self: Workspace, /, *args: P.args, **kwargs: P.kwargs) -> T:
        for tree in (self.base, self.layer.scan.tree):
            tree.forget()  # others may have replaced folders since
        try:
            return method(self, *args, **kwargs)
        except OSError as error:
            name = ascii(error.filename)[1:-1] if error.filename else self.base.path
            hint = "call recover() to finish" if self.store.holds(JOURNAL) else ""
            raise CheckpointError(f"{name}: {error.strerror}", hint=hint) from error

    call.__name__, call.__doc__ = method.__name__, method.__doc__
    return call


class Workspace:
    """A base, a layer over it, and the history of the layer."""

    def __init__(self, base: Tree, store: Store, layer: Layer, *, hidden: frozenset[str] = frozenset()) -> None:
        self.base = base
        self.store = store
        self.layer = layer
        self.hidden = hidden
        """Paths below the base that the job could not see: nothing that it did may reach them."""
        self._scan = Scan(base, without=hidden, ours=False)
        self._keep = Reading(store.put, store.has)
        self._in_place = isinstance(layer, Snapshot) and layer.in_place
        self._below: differences.Below = differences.TreeBelow(self._scan, layer.scan)
        if self._in_place:
            self._below = differences.ManifestBelow(layer.held, store.open, layer.scan)
        if store.holds(JOURNAL):
            self.recover()

    @_converted
    def changes(self) -> tuple[Change, ...]:
        """What differs from the base."""
        return differences.changes(self.layer.read(UNREAD), self._below)

    @_converted
    def diff(self, path: str | None = None, *, title: str = "") -> str:
        """What changed in one file, or in all, as text; ``title`` is put before the names."""
        layer = self.layer.read(UNREAD)
        if path is not None:
            return differences.text_diff(_path(path), layer, self.layer.scan, self._below, title)
        told = differences.changes(layer, self._below)
        return "".join(differences.told_diff(each, layer, self.layer.scan, self._below, title) for each in told)

    @_converted
    def links(self) -> dict[str, str]:
        """The symbolic links of the layer, and where they point: the program's choice. None is followed."""
        layer = self.layer.read(UNREAD)
        return {path: entry.target for path, entry in layer.items() if entry.kind == entries.LINK}

    # Checkpoints

    @_converted
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
        self.store.save(made)
        self.layer.remember()
        self._set_state(number=made.number, current=made.checkpoint_id)
        return made

    @_converted
    def checkpoints(self) -> list[Checkpoint]:
        """The oldest first."""
        return self.store.checkpoints()

    @property
    def current(self) -> str:
        """The checkpoint that was made or gone back to last; empty where there is none."""
        return str(self._state().get("current", ""))

    @_converted
    def rollback_to_checkpoint(self, checkpoint_id: str, paths: tuple[str, ...] | None = None) -> Rollback:
        """Go back, or forward, to a checkpoint; with ``paths``, only these and what is below them."""
        then = self.store.load(checkpoint_id)
        layer = then.layer if paths is None else self._mixed(then.layer, paths)
        count = self.go_to(layer, "" if paths is not None else checkpoint_id)
        state = then.state_data if paths is None else None
        return Rollback(
            checkpoint_id=checkpoint_id, partial=paths is not None, files_restored=count, state_data=state
        )

    @_converted
    def drop_hidden(self) -> None:
        """Take out of the layer what stands where something has been hidden since."""
        self.go_to(self.layer.read(self._keep))

    @_converted
    def discard(self) -> int:
        """Drop all changes; checkpoints stay. How many paths were restored."""
        return self.go_to({})

    def _mixed(self, then: Manifest, paths: tuple[str, ...]) -> Manifest:
        layer: Manifest = self.layer.read(self._keep)
        for path in paths:
            layer = merge.swap(layer, then, _path(path), self._read_base)
        return layer

    def _read_base(self, path: str) -> dict[str, Entry]:
        if self._in_place:
            return merge.part(self.layer.held(), path)
        top = self._scan.one(path, self._keep)
        if top is None:
            return {}
        below = self._scan.below(path, self._keep) if top.entry.kind == entries.FOLDER else {}
        return {path: top.entry, **{name: seen.entry for name, seen in below.items()}}

    def go_to(self, layer: Manifest, current: str = "") -> int:
        """Make the layer this one, whose contents are in the store; how many paths were written or removed.

        What is hidden now may have been in it once, and does not come back.
        """
        if self.hidden:
            layer = {path: entry for path, entry in layer.items() if not merge.is_below(path, self.hidden)}
        temporary = new_name()
        journal = {"op": "rollback", "layer": entries.to_rows(layer), "current": current, "temporary": temporary}
        self.store.write(JOURNAL, journal)
        return self._finish_rollback(layer, current, temporary)

    def _finish_rollback(self, layer: Manifest, current: str, temporary: str) -> int:
        count = self.layer.restore(layer, temporary)
        self.layer.remember()
        if current:
            self._set_state(current=current)
        self.store.remove(JOURNAL)
        return count

    @_converted
    def delete_checkpoint(self, checkpoint_id: str) -> None:
        self.store.load(checkpoint_id)
        self.store.drop(checkpoint_id)
        self.store.collect(self.layer.held())

    @_converted
    def collect(self, max_bytes: int) -> list[str]:
        """Delete checkpoints, the oldest first and never the current one, until the rest fits; which they were."""
        self.store.collect(self.layer.held())
        deleted = []
        for old in self.store.checkpoints():
            if self.store.used_bytes() <= max_bytes:
                break
            if old.checkpoint_id != self.current:
                self.store.drop(old.checkpoint_id)
                self.store.collect(self.layer.held())
                deleted.append(old.checkpoint_id)
        return deleted

    # Commit

    @_converted
    def commit(self, paths: tuple[str, ...] | None = None, *, mounted: bool = False) -> Committed:
        """Carry the layer over into the base, all of it or some paths. This ends the history: checkpoints go.

        ``mounted``: somebody works on the layer, so it stays as it is, and says again what the base now says too.
        """
        return self.carry_out(self.plan_commit(paths, mounted=mounted))

    @_converted
    def plan_commit(self, paths: tuple[str, ...] | None = None, *, mounted: bool = False) -> Planned:
        """The first half of a commit, which changes nothing: what would be done, or the conflicts."""
        wanted = None if paths is None else tuple(map(_path, paths))
        if wanted is not None and self._in_place:
            raise UsageError("in place everything is in the base already", hint="roll back what is not to stay")
        layer = self.layer.read(self._keep)
        chosen = merge.chosen(layer, wanted, self._has_folder)
        plan = self._plan(chosen)
        carry.check(plan, chosen, self.layer.foreign)
        rest = None if mounted else merge.rest(layer, wanted)
        return Planned(chosen=chosen, plan=plan, rest=rest, whole=wanted is None and not mounted)

    @_converted
    def carry_out(self, planned: Planned) -> Committed:
        """The second half: from the journal on it is carried to its end, now or at the next start."""
        journal = {
            "op": "commit",
            "now": entries.index_rows(planned.plan.now),
            "target": entries.to_rows(planned.plan.target),
            "rest": None if planned.rest is None else entries.to_rows(planned.rest),
            "whole": planned.whole,
            "temporary": new_name(),
        }
        self._set_state()
        self.store.write(JOURNAL, journal)
        self._finish_commit(planned.plan, journal)
        left = tuple(path for path, entry in planned.chosen.items() if entry.kind in entries.SPECIAL)
        done = tuple(path for path in entries.ordered(planned.chosen) if path not in left)
        return Committed(paths=done, left=left)

    def _has_folder(self, path: str) -> bool:
        status = self.base.status(path)
        return status is not None and entries.kind_of(status) == entries.FOLDER

    def _plan(self, chosen: Manifest) -> Carry:
        """In place there is nothing to carry: the commit is that it can't be undone any more."""
        return Carry(now={}, target={}) if self._in_place else carry.plan(chosen, self._scan, self.hidden)

    def _finish_commit(self, plan: Carry, journal: Mapping[str, Any]) -> None:
        temporary: str = journal["temporary"]
        self._base_writer(temporary).apply({path: seen.entry for path, seen in plan.now.items()}, plan.target)
        rest = None if journal["rest"] is None else entries.from_rows(journal["rest"])
        self.layer.settle(rest, plan, temporary, whole=journal["whole"])
        self._drop_history()
        self.store.remove(JOURNAL)
        self.store.collect(self.layer.held())

    @_converted
    def forget_checkpoints(self) -> None:
        """What a commit does to the history, without one."""
        self._drop_history()
        self.store.collect(self.layer.held())

    def _drop_history(self) -> None:
        for checkpoint_id in self.store.checkpoint_ids():
            self.store.drop(checkpoint_id)
        self._set_state(current="")

    def _base_writer(self, temporary: str) -> Writer:
        return Writer(self.base, lambda _, entry: self.store.open(entry.digest), temporary, special=False)

    # After a crash

    @_converted
    def recover(self) -> None:
        """Carry to its end what was broken off. What somebody else changed since is theirs, and named."""
        journal = self.store.read(JOURNAL)
        if journal is None:
            return
        if journal["op"] == "rollback":
            self._finish_rollback(entries.from_rows(journal["layer"]), journal["current"], journal["temporary"])
            return
        old = Carry(now=entries.index_from(journal["now"]), target=entries.from_rows(journal["target"]))
        touched = {entries.parent(path) for path in (*old.now, *old.target)}
        self._base_writer(journal["temporary"]).sweep(touched)
        plan, theirs = carry.resume(old, self._scan)
        self._finish_commit(plan, journal)
        if theirs:
            raise ConflictError(f"left as somebody else made it: {', '.join(theirs)}", paths=tuple(theirs))

    def _state(self) -> dict[str, Any]:
        return (self.store.read(STATE) if self.store.holds(STATE) else None) or {}

    def _set_state(self, **changed: object) -> None:
        self.store.write(STATE, {**self._state(), "base": list(self.base.identity), **changed})

    def pin(self) -> None:
        """Remember which folder the base is: another one in its place will be refused."""
        if not self.store.holds(STATE):
            self._set_state()

    def close(self) -> None:
        """Let go of the folders; the store stays, for the next time."""
        self.layer.close()
        self.base.close()


def new_checkpoint_id() -> str:
    return os.urandom(6).hex()


def open_overlay(
    upper: str, base: str, store: str, *, hidden: tuple[str, ...] = (), prefix: str = USER_PREFIX
) -> Workspace:
    """A workspace whose layer overlayfs keeps in ``upper``; ``hidden`` are absolute paths below the base."""
    kept = Store(store)
    tree = _base(base, kept)
    secrets = _inside(tree, hidden)
    return Workspace(tree, kept, OverlayLayer(upper, tree, kept, hidden=secrets, prefix=prefix), hidden=secrets)


def open_snapshot(base: str, store: str, *, in_place: bool = False, hidden: tuple[str, ...] = ()) -> Workspace:
    """A workspace whose layer is a working copy in ``store/work``, or the base itself."""
    kept = Store(store)
    tree = _base(base, kept)
    secrets = _inside(tree, hidden)
    return Workspace(tree, kept, Snapshot(tree, kept, in_place=in_place, hidden=secrets), hidden=secrets)


def _inside(base: Tree, hidden: tuple[str, ...]) -> frozenset[str]:
    prefix = base.path.rstrip("/") + "/"
    return frozenset([path[len(prefix) :] for path in hidden if path.startswith(prefix)])


def _base(path: str, store: Store) -> Tree:
    state = (store.read(STATE) if store.holds(STATE) else None) or {}
    identity = state.get("base")
    return Tree(path, identity=(identity[0], identity[1]) if identity else None)


def _path(path: str) -> str:
    """A path of the caller's, relative to the workspace."""
    parts = path.strip("/").split("/")
    if path.startswith("/") or not all(part not in ("", ".", "..") for part in parts):
        raise UsageError(f"{path!r} is not a path inside the workspace", hint="give it relative to the workspace")
    return "/".join(parts)
