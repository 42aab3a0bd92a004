"""``Transaction``: several directories of the host, the layers over them and their common history, as one thing on
disk.

It outlives every process. The process that opens it holds its lock, and first finishes what an earlier holder left
broken off. One id names a checkpoint in all of its directories. Paths in and out are absolute, those of the host's
directories. Mounts nothing, and runs no program but git, to merge. While its layers are written (rollback, commit)
nobody may work on them. """

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack

from ringfence.checkpoint import opening
from ringfence.checkpoint.commit import commit_plan, together
from ringfence.checkpoint.commit.conflicts import OnConflict, on_conflict_of
from ringfence.checkpoint.diff.texts import MAX_TEXT_CHARS
from ringfence.checkpoint.late import LateAttempts
from ringfence.checkpoint.layer import Committed, Rollback
from ringfence.checkpoint.layout import OVERLAY, SNAPSHOT, Layout, Parts
from ringfence.checkpoint.lock import Lock
from ringfence.checkpoint.records.transaction_journal import COMMIT, DISCARD, ROLLBACK, Noted, TransactionJournal
from ringfence.checkpoint.sealing import hold_to, seal
from ringfence.checkpoint.snapshot import Snapshot
from ringfence.checkpoint.store import SPARE, Checkpoint, new_checkpoint_id, refuse_no_size
from ringfence.checkpoint.tree import Tree
from ringfence.checkpoint.workspace import Workspace, open_overlay, open_snapshot
from ringfence.errors import CheckpointError, ConflictError
from ringfence.model.outcome import Changes
from ringfence.model.paths import within
from ringfence.model.record import replace
from ringfence.model.state_folder import own_stamp

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Path = str | os.PathLike[str]

__all__ = ["OVERLAY", "SNAPSHOT", "Transaction"]


class Transaction:
    """Layers over directories of the host, held by this process until ``close``."""

    def __init__(self, plan: Layout, lock: Lock) -> None:
        """By ``create`` or ``open``."""
        self._layout = plan
        self._lock = lock
        self._journal = TransactionJournal(plan.documents, len(plan.bases))
        self.late = LateAttempts(plan.documents, f"checkpoints/0/{SPARE}")
        """What was tried on it after the last result: it blocks every commit."""
        self._workspaces: list[Workspace] = []
        self._stamp: object = ()
        try:
            self._open_all()
        except BaseException:
            self.close()
            raise

    @classmethod
    def create(
        cls, folder: Path, bases: Iterable[Path] = (), *, kind: str = OVERLAY, hidden: Iterable[str] = (),
        root: str = "",
    ) -> Transaction:  # fmt: skip
        """Create a transaction. Without bases it lies over a private directory of its own, ``workspace``. ``root``: a
        directory of many transactions that it is one of, which no job sees."""
        return cls(*opening.made(folder, bases, kind, hidden, root))

    @classmethod
    def open(cls, folder: Path | Tree, *, finish: bool = True) -> Transaction:
        """Open an existing transaction; ForeignError if it is not ours. An interrupted operation is finished first, or
        an error without ``finish``; ConflictError, once, if others changed the same files. Closes a ``Tree`` too."""
        return cls(*opening.opened(folder, finish=finish))

    def _open_all(self) -> None:
        theirs = [path for number in range(len(self.bases)) for path in self._open_one(number)]
        theirs += self._finish()
        for workspace in self._workspaces:
            workspace.pin()
        self._forget_orphans()
        commit_plan.left_to_them(theirs)

    def _open_one(self, number: int) -> list[str]:
        """Opening finishes what was broken off in this base; return what others have changed there since."""
        try:
            self._workspaces.append(self._workspace(number))
            return []
        except ConflictError as error:
            self._workspaces.append(self._workspace(number))
            return self._absolute(number, error.paths)
        except OSError as error:
            raise CheckpointError(f"{self.bases[number]}: {error.strerror}") from error

    def _workspace(self, number: int) -> Workspace:
        base, store, hidden = self.bases[number], self._layout.open_store(number), self._layout.hidden
        if self.kind == SNAPSHOT:
            return open_snapshot(base, store, hidden=hidden)
        return open_overlay(self._layout.open_upper(number), base, store, hidden=hidden)

    # ---- what it is

    @property
    def folder(self) -> str:
        return self._layout.folder

    @property
    def kind(self) -> str:
        return self._layout.kind

    @property
    def bases(self) -> tuple[str, ...]:
        """The directories of the host that it lies over."""
        return self._layout.bases

    @property
    def hidden(self) -> tuple[str, ...]:
        return self._layout.hidden

    @property
    def layers(self) -> tuple[tuple[str, str], ...]:
        """(base, directory of its ``upper`` and ``work``), for mounting an overlay."""
        return tuple((base, self._layout.layer(number)) for number, base in enumerate(self.bases))

    def place(self, base: Path) -> str:
        """Where a job finds a base: at its own path, or in a working copy."""
        return self._layout.place(self._layout.number(os.fspath(base)))

    def working_copy(self, folder: Path) -> str:
        """The same for a directory in one of the bases."""
        ((number, inside),) = self._layout.parts([folder]).items()
        place = self._layout.place(number)
        return f"{place}/{inside[0]}" if inside else place

    def give_to(self, owner: tuple[int, int]) -> None:
        """Give its working copies to these ids, for jobs with ids of their own. No box may work on the transaction."""
        for workspace in self._workspaces:
            if isinstance(workspace.layer, Snapshot):
                workspace.layer.give_to(owner)

    def note_box(self, private_folder: str) -> None:
        """A box works on it now. If this process is killed, the next to open it waits for that directory to go."""
        self._lock.note(os.fsencode(private_folder))

    def forget_box(self, private_folder: str) -> None:
        self._lock.forget(os.fsencode(private_folder))

    @property
    def ours(self) -> tuple[str, ...]:
        """Directories of ringfence's own, which no job sees wherever they lie."""
        return self._layout.ours

    def hide(self, paths: Iterable[str]) -> None:
        """Hide these paths from jobs from now on, so that no commit reaches them. What earlier jobs did there is lost.
        A working copy is not changed. No box may work on the transaction."""
        more = [path for path in paths if path not in self.hidden]
        if not more or self.kind == SNAPSHOT:
            return
        self._close_workspaces()
        self._layout = replace(self._layout, hidden=(*self.hidden, *more))
        self._open_all()
        for number, workspace in self._numbered():
            if any(within(path, self.bases[number]) for path in more):
                workspace.drop_hidden()
        self._layout.save()  # last: after an interruption before this, everything is done again

    def _look_anew(self) -> None:
        """What we made in a base since it was looked at is not the jobs' change."""
        stamp, self._stamp = self._stamp, own_stamp()
        for workspace in self._workspaces if stamp != self._stamp else ():
            workspace.also_hide(self.ours)

    # ---- what changed

    def changes(self) -> Changes:
        """What differs from the bases."""
        self._look_anew()
        found = [(number, workspace.changes(noting=True)) for number, workspace in self._numbered()]
        rows = (replace(each, path=self._layout.absolute(number, each.path)) for number, told in found for each in told)
        return Changes(rows, complete=all(told.complete for _, told in found))

    def links(self) -> dict[str, str]:
        """The symbolic links of the layers, and where they point."""
        rows = ((number, link) for number, workspace in self._numbered() for link in workspace.links().items())
        return {self._layout.absolute(number, path): target for number, (path, target) in rows}

    def diff(self, path: Path | None = None) -> str:
        """What changed, as text: all, or one path. Names are relative to the base where there is only one."""
        return "".join(self.diffs(None if path is None else [path], most=MAX_TEXT_CHARS))

    def diffs(self, paths: Iterable[Path] | None = None, *, most: int = sys.maxsize) -> Iterator[str]:
        """The same part by part; after ``most`` characters of a base, further changes are only named."""
        self._look_anew()
        for number, inside in self._layout.parts(paths).items():
            yield from self._workspaces[number].diffs(inside, title=self._title(number), most=most)

    def _title(self, number: int) -> str:
        return "" if len(self.bases) == 1 else self.bases[number].lstrip("/") + "/"

    # ---- checkpoints: one is there once the first base has it, which gets it last

    def create_checkpoint(self, name: str = "", state_data: Mapping[str, Any] | None = None) -> Checkpoint:
        """Keep the layers as they are now, with some data of the caller's."""
        self.recover()
        made = new_checkpoint_id()
        try:
            for number, workspace in reversed(self._numbered()):
                workspace.create_checkpoint(name, None if number else state_data, checkpoint_id=made)
        except CheckpointError:
            self._forget_orphans()
            raise
        return self._merged(self._workspaces[0].store.load(made))

    def checkpoints(self) -> list[Checkpoint]:
        """All checkpoints, the oldest first."""
        return [self._merged(each) for each in self._workspaces[0].checkpoints()]

    def _merged(self, first: Checkpoint) -> Checkpoint:
        parts = ((number, each.store.load(first.checkpoint_id)) for number, each in self._numbered())
        rows = ((self._layout.absolute(n, path), entry) for n, part in parts for path, entry in part.layer.items())
        return replace(first, layer=dict(rows))

    @property
    def current(self) -> str:
        """The id of the checkpoint that was set, or gone back to, last; empty if there is none."""
        return self._workspaces[0].current if self._workspaces else ""

    def delete_checkpoint(self, checkpoint_id: str) -> None:
        for workspace in self._workspaces:
            workspace.delete_checkpoint(checkpoint_id)

    def collect(self, max_bytes: int, also: Callable[[], int] = lambda: 0) -> list[str]:
        """Delete the oldest, never the current one, until the rest fits; return which. ``also``: bytes going along."""
        refuse_no_size(max_bytes)
        deleted = []
        for workspace in self._workspaces:
            workspace.sweep()
        for old in self._workspaces[0].checkpoints():
            if self.used_bytes() + also() <= max_bytes:
                break
            if old.checkpoint_id != self.current:
                self.delete_checkpoint(old.checkpoint_id)
                deleted.append(old.checkpoint_id)
        return deleted

    def used_bytes(self) -> int:
        """What checkpoints take on the disk; the layers themselves are not counted."""
        return sum(workspace.store.used_bytes() for workspace in self._workspaces)

    def layer_bytes(self) -> int:
        """What the changed files take on the disk."""
        return sum(workspace.layer_bytes() for workspace in self._workspaces)

    def _forget_orphans(self) -> None:
        """Checkpoints whose making or deletion was broken off."""
        known = set(self._workspaces[0].store.checkpoint_ids())
        for workspace in self._workspaces[1:]:
            for orphan in set(workspace.store.checkpoint_ids()) - known:
                workspace.delete_checkpoint(orphan)

    # ---- going back, and carrying over: written down first, then done in each base

    def rollback(self, checkpoint_id: str, paths: Iterable[Path] | None = None) -> Rollback:
        """Go back, or forward, to a checkpoint; with ``paths``, only these and what is below them."""
        self._lock.refuse_boxes()
        self.recover()
        then = self._workspaces[0].store.load(checkpoint_id)
        parts = self._layout.parts(paths)
        self._note(ROLLBACK, parts, checkpoint_id)
        gone = (self._workspaces[n].rollback_to_checkpoint(checkpoint_id, inside) for n, inside in parts.items())
        count = sum(each.files_restored for each in gone)
        self._journal.done()
        if paths is None:
            self.late.undo(checkpoint_id, lambda: [each.checkpoint_id for each in self._workspaces[0].checkpoints()])
        state = then.state_data if paths is None else None
        return Rollback(checkpoint_id=checkpoint_id, partial=state is None, files_restored=count, state_data=state)

    def discard(self) -> int:
        """Drop all changes; checkpoints stay. Return how many paths were restored."""
        self._lock.refuse_boxes()
        self.recover()
        self._note(DISCARD, self._layout.parts(None))
        count = sum(workspace.discard() for workspace in self._workspaces)
        self._journal.done()
        self.late.take()
        return count

    def seal(self) -> str:
        """A seal over all that the layers hold now, for a commit of exactly that. ``changes``, ``links`` and ``diff``
        show that until there is a new seal, a checkpoint, a commit or a rollback, whatever programs change meanwhile.
        """
        self._look_anew()
        return seal(workspace.seal() for workspace in self._workspaces)

    def unseal(self) -> None:
        """Show the layers as they are again."""
        for workspace in self._workspaces:
            workspace.unseal()

    def commit(
        self, paths: Iterable[Path] | None = None, *, mounted: bool = False, sealed: str = "",
        on_conflict: str = OnConflict.REFUSE,
    ) -> Committed:  # fmt: skip
        """Carry the layers over into the bases, all or some paths; ConflictError, and nothing at all, if there is one.

        ``paths``: a relative one starts at the only base. This ends the history: all checkpoints go. ``mounted``:
        somebody works on the layers, so they stay as they are. ``sealed``: only if the commit is exactly what they held
        at that ``seal()``. ``on_conflict``: which version wins if somebody else changed the same file: ``theirs``,
        the base's; ``mine``, the layer's; or ``merge`` for both changes, line by line.
        """
        how = on_conflict_of(on_conflict, free=not (mounted or sealed))
        if not mounted:
            self._lock.refuse_boxes()
        self._look_anew()
        self.late.refuse()
        self.recover()
        parts = self._layout.parts(paths)
        with ExitStack() as held:
            for number in sorted(parts, key=lambda number: self.bases[number]):  # as all others would
                held.enter_context(self._workspaces[number].base.locked())
            done = self._commit(parts, how, mounted=mounted, sealed=sealed)
        return together.told(done, self._absolute)

    def _commit(self, parts: Parts, how: OnConflict, *, mounted: bool, sealed: str) -> list[tuple[int, Committed]]:
        planned = together.planned(self._workspaces, parts, how, self._absolute, mounted=mounted)
        hold_to(sealed, (plan.chosen for _, plan in planned))
        if not planned:
            return []
        together.stage(self._workspaces, planned)
        self._note(COMMIT, parts)
        done = [(number, self._workspaces[number].carry_out(plan)) for number, plan in planned]
        together.end_history(self._workspaces)
        self._journal.done()
        return done

    # ---- after a crash

    def recover(self) -> None:
        """Finish an interrupted operation. What others changed since stays as it is; a ConflictError names it."""
        if not self._journal.exists():
            return
        theirs = [path for number, each in self._numbered() for path in self._until_conflict(number, each.recover)]
        commit_plan.left_to_them([*theirs, *self._finish()])

    def _finish(self) -> list[str]:
        """Do what the journal asks for in each base once more: where it is done already, nothing changes."""
        noted = self._journal.read()
        if noted is None:
            return []
        theirs = [self._until_conflict(number, self._step(noted, number)) for number in noted.parts]
        if noted.op == COMMIT and not all(theirs):  # else it was refused everywhere, and nothing has happened
            together.end_history(self._workspaces)
        self._journal.done()
        return [path for paths in theirs for path in paths]

    def _step(self, noted: Noted, number: int) -> Callable[[], object]:
        workspace, paths = self._workspaces[number], noted.parts[number]
        steps: Mapping[str, Callable[[], object]] = {
            ROLLBACK: lambda: workspace.rollback_to_checkpoint(noted.checkpoint, paths),
            DISCARD: workspace.discard,
            COMMIT: lambda: workspace.commit(paths),
        }
        return steps[noted.op]

    def _until_conflict(self, number: int, step: Callable[[], object]) -> list[str]:
        try:
            step()
        except ConflictError as error:
            return self._absolute(number, error.paths)
        return []

    def _note(self, op: str, parts: Parts, checkpoint: str = "") -> None:
        self._journal.write(Noted(op=op, parts=parts, checkpoint=checkpoint), f"checkpoints/0/{SPARE}")

    # ---- the rest

    def _numbered(self) -> list[tuple[int, Workspace]]:
        return list(enumerate(self._workspaces))

    def _absolute(self, number: int, paths: Iterable[str]) -> list[str]:
        return [self._layout.absolute(number, path) for path in paths]

    def _close_workspaces(self) -> None:
        for workspace in self._workspaces:
            workspace.close()
        self._workspaces = []

    def close(self) -> None:
        """Release it; it stays on disk."""
        self.late.collect = None
        self._close_workspaces()
        opening.let_go(self._layout, self._lock)

    def __enter__(self) -> Transaction:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
