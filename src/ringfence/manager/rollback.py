"""``RollbackSystem``: checkpoints of living sandboxes, and going back to one, by hand or after a violation.

A checkpoint keeps files and the caller's own state, and running processes where that is asked for (``live_state``).
Going back ends what runs, and says what that was.
"""

from __future__ import annotations

import json
import os
import weakref
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ringfence.checkpoint import store
from ringfence.checkpoint.late import late_since
from ringfence.checkpoint.transaction import Transaction
from ringfence.errors import LateAttemptError, SandboxError, SupervisionError, UsageError
from ringfence.manager import live_state, snapshots
from ringfence.manager.result import RollbackResult
from ringfence.manager.sandbox import AUTOMATIC, Sandbox
from ringfence.model.outcome import Outcome
from ringfence.model.record import record

FULL, PARTIAL, FAILED = "full", "partial", "failed"
KEPT_AUTOMATIC = 32
"""How many of the checkpoints made before executions are kept, the youngest ones."""


@record(kw_only=False)
class Checkpoint:
    """A state of a sandbox that you can go back to."""

    checkpoint_id: str
    timestamp: datetime
    sandbox_id: str
    filesystem_snapshot: Path
    """A directory with the files of that time; with several allowed paths, each at its absolute path below it. It is
    made when it is first read, while the sandbox is open, and removed with the checkpoint."""
    state_data: dict[str, Any]
    metadata: dict[str, Any]
    processes: tuple[str, ...] | None = None
    """The running processes in it, each with its pid on the host at that time and its command. None: nobody asked."""

    def __getattribute__(self, name: str) -> Any:
        """Lazy: a checkpoint is made before every execution, and a copy of the files costs as much as the tree."""
        value = object.__getattribute__(self, name)
        if name == "filesystem_snapshot":
            with _find_anywhere(self.sandbox_id).locked() as transaction:
                snapshots.make(transaction, self.checkpoint_id, value)
        return value


class RollbackSystem:
    """Sets checkpoints and rolls back to them, in the sandboxes of one manager; without a manager, in all of this
    process."""

    def __init__(
        self,
        find: Callable[[str], Sandbox] | None = None,
        living: Callable[[], list[Sandbox]] | None = None,
    ) -> None:
        self._find = find or _find_anywhere
        self._living = living or _living_anywhere
        if living is not None:
            _of_managers.add(self)

    def create_checkpoint(
        self,
        sandbox_id: str,
        metadata: Mapping[str, Any] | None = None,
        state_data: Mapping[str, Any] | None = None,
        *,
        processes: bool = False,
    ) -> Checkpoint:
        """Keep the sandbox as it is now; ``state_data``: data of the caller's, absent: the context's.

        ``processes``: keep the running processes too, as of the same moment. UnavailableError if this host can't do
        that, CheckpointError if a process can't be kept; then there is no checkpoint.
        """
        sandbox = self._find(sandbox_id)
        state = sandbox.context.state_data if state_data is None else state_data
        kept = {"state": plain_copy(state, "state_data"), "metadata": plain_copy(metadata or {}, "metadata")}
        return self._created(sandbox, kept, processes=processes)

    def _created(self, sandbox: Sandbox, kept: dict[str, Any], *, processes: bool = False) -> Checkpoint:
        with sandbox.at_rest() if processes else sandbox.locked() as transaction:
            with live_state.taken(sandbox) if processes else nullcontext() as running:
                kept |= {live_state.KEY: running} if running else {}
                made = transaction.create_checkpoint(state_data=kept)
            sandbox.known.add(made.checkpoint_id)
        return _checkpoint(made, sandbox)

    def before_execution(self, sandbox: Sandbox) -> str:
        """Sets an automatic checkpoint; only the newest are kept. Returns its id."""
        with sandbox.locked() as transaction:
            automatic = sandbox.automatic
            state = plain_copy(sandbox.context.state_data, "state_data")
            kept = {"state": state, "metadata": {AUTOMATIC: True}, AUTOMATIC: True}
            made = self._created(sandbox, kept).checkpoint_id
            automatic.append(made)
            if len(automatic) >= 2 * KEPT_AUTOMATIC:  # many at a time: each deletion looks at all contents
                for old in automatic[:-KEPT_AUTOMATIC]:
                    transaction.delete_checkpoint(old)
                snapshots.sweep(transaction)
                del automatic[:-KEPT_AUTOMATIC]
        return made

    def rollback_to_checkpoint(
        self,
        checkpoint_id: str,
        paths: Iterable[str | os.PathLike[str]] | None = None,
        *,
        processes: bool = True,
    ) -> RollbackResult:
        """Go back, or forward, to a checkpoint; with ``paths``, only these and what is below them.

        ``processes``: restore those of the checkpoint; a rollback of some paths never does. A rollback that fails is a
        result with ``rollback_type`` ``failed``; only an unknown id is an error.
        """
        sandbox = self._holder(checkpoint_id)
        with sandbox.at_rest() as transaction:
            kept = _running(transaction, checkpoint_id) if processes and paths is None else None
            try:
                if kept:
                    live_state.check(sandbox, kept)
            except SandboxError as error:
                return failed(checkpoint_id, f"nothing was changed: {_told(error)}")
            ended = sandbox.close_box()
            try:
                done = sandbox.roll_back(checkpoint_id, paths)
            except UsageError:
                raise
            except SandboxError as error:
                return failed(checkpoint_id, _told(error), ended)
            problem = live_state.restore(sandbox, kept) if kept else ""
        return RollbackResult(
            success=not problem,
            error=problem or None,
            processes_restored=tuple(kept["commands"]) if kept and not problem else (),
            checkpoint_id=checkpoint_id,
            rollback_type=PARTIAL if done.partial else FULL,
            files_restored=done.files_restored,
            state_restored=done.state_data is not None,
            processes_ended=ended,
        )

    def discard(self, sandbox: Sandbox) -> RollbackResult:
        """Go back to the beginning; the caller's own state is not touched."""
        with sandbox.at_rest() as transaction:
            ended = sandbox.close_box()
            try:
                count = transaction.discard()
            except SandboxError as error:
                return failed("", _told(error), ended)
        return RollbackResult(
            success=True, checkpoint_id="", rollback_type=FULL, files_restored=count, state_restored=False,
            processes_ended=ended,
        )  # fmt: skip

    def list_checkpoints(self, sandbox_id: str) -> list[Checkpoint]:
        """All checkpoints, the oldest first."""
        sandbox = self._find(sandbox_id)
        with sandbox.locked() as transaction:
            found = [_checkpoint(each, sandbox) for each in transaction.checkpoints()]
            sandbox.known.update(each.checkpoint_id for each in found)
        return found

    def delete_checkpoint(self, checkpoint_id: str) -> None:
        sandbox = self._holder(checkpoint_id)
        with sandbox.locked() as transaction:
            transaction.delete_checkpoint(checkpoint_id)
            live_state.sweep(sandbox, transaction)
            snapshots.sweep(transaction)
            sandbox.known.discard(checkpoint_id)
            sandbox.automatic[:] = [each for each in sandbox.automatic if each != checkpoint_id]

    def collect(self, sandbox_id: str, max_bytes: int) -> list[str]:
        """Delete checkpoints, the oldest first and never the current one, until the rest fits; return those."""
        sandbox = self._find(sandbox_id)
        with sandbox.locked() as transaction:
            deleted = _collected(sandbox, transaction, max_bytes)
            snapshots.sweep(transaction, all_of_them=True)
            sandbox.automatic[:] = [each for each in sandbox.automatic if each not in deleted]
        return deleted

    def auto_rollback_on_violation(self, sandbox_id: str, violation: str) -> RollbackResult:
        """End everything in the sandbox and go back to its last checkpoint, if there is one."""
        sandbox = self._find(sandbox_id)
        with sandbox.at_rest() as transaction:
            last = transaction.current
            if last:
                return self.rollback_to_checkpoint(last, processes=False)
            ended = sandbox.close_box()
        return failed("", f"{violation}: there is no checkpoint to go back to; what ran was ended", ended)

    def undo_execution(self, sandbox: Sandbox, before: str, outcome: Outcome, why: str) -> RollbackResult:
        """Go back to before this execution, or to before the one whose leftover process has tried something since."""
        since = late_since(outcome.recorder)
        try:
            if since:
                return self.go_back_before(sandbox, since)
            if before:
                return self.rollback_to_checkpoint(before)
            return self.auto_rollback_on_violation(sandbox.context.sandbox_id, why)
        except SandboxError as error:  # somebody else has destroyed it meanwhile
            return failed(before, str(error))

    def undo_unseen(self, sandbox: Sandbox, before: str, error: SupervisionError) -> SupervisionError:
        """Undo an execution that was ended because ringfence lost sight of it; the hint says so."""
        if before and sandbox.context.config.enable_auto_rollback:
            try:
                undone = self.rollback_to_checkpoint(before, processes=False)
            except SandboxError as gone:  # somebody else has destroyed it meanwhile
                undone = failed(before, str(gone))
            told = "rolled back to before it" if undone.success else f"not rolled back: {undone.error}"
            error.hint = f"{told}; {error.hint}" if error.hint else told
        return error

    def undo_late(self, sandbox: Sandbox, error: LateAttemptError) -> LateAttemptError:
        """Undo the execution that left the process running, as if it had made the attempt itself."""
        if sandbox.context.config.enable_auto_rollback:
            undone = self.go_back_before(sandbox, error.since)
            error.hint = "rolled back to before what tried it" if undone.success else f"not rolled back: {undone.error}"
        return error

    def go_back_before(self, sandbox: Sandbox, since: Iterable[str]) -> RollbackResult:
        """End everything, and go back to the oldest of these checkpoints; if one of them is gone, to the beginning.
        Automatic checkpoints since then go too: they contain what is to be undone."""
        with sandbox.at_rest() as transaction:
            ids = [each.checkpoint_id for each in transaction.checkpoints()]
            wanted = set(since)
            oldest = next((each for each in ids if each in wanted), "") if wanted <= set(ids) else ""
            done = self.rollback_to_checkpoint(oldest, processes=False) if oldest else self.discard(sandbox)
            if done.success:
                self._forget_automatic(sandbox, ids[ids.index(oldest) + 1 :] if oldest else ids)
        return done

    def _forget_automatic(self, sandbox: Sandbox, since: Iterable[str]) -> None:
        for checkpoint_id in set(since).intersection(sandbox.automatic):
            self.delete_checkpoint(checkpoint_id)

    def _holder(self, checkpoint_id: str) -> Sandbox:
        for sandbox in self._living():
            if checkpoint_id in sandbox.known:
                return sandbox
        for sandbox in self._living():  # one from before this manager's time
            if any(each.checkpoint_id == checkpoint_id for each in self.list_checkpoints(sandbox.context.sandbox_id)):
                return sandbox
        raise UsageError(f"no sandbox of this manager has a checkpoint {checkpoint_id!r}")


_of_managers: weakref.WeakSet[RollbackSystem] = weakref.WeakSet()


def _living_anywhere() -> list[Sandbox]:
    return [sandbox for system in list(_of_managers) for sandbox in system._living()]


def _find_anywhere(sandbox_id: str) -> Sandbox:
    for system in list(_of_managers):
        if any(each.context.sandbox_id == sandbox_id for each in system._living()):
            return system._find(sandbox_id)
    raise UsageError(f"no sandbox {sandbox_id!r} is open in this process", hint="a manager's attach(id) opens one")


def _running(transaction: Transaction, checkpoint_id: str) -> Mapping[str, Any] | None:
    found = (each for each in transaction.checkpoints() if each.checkpoint_id == checkpoint_id)
    return next((live_state.of(each) for each in found), None)


def _collected(sandbox: Sandbox, transaction: Transaction, max_bytes: int) -> list[str]:
    """The images of processes count like contents."""

    def images_bytes() -> int:
        live_state.sweep(sandbox, transaction)
        return live_state.used_bytes(sandbox)

    return transaction.collect(max_bytes, images_bytes)


def _told(error: SandboxError) -> str:
    return f"{error}; {error.hint}" if error.hint else str(error)


def failed(checkpoint_id: str, error: str, ended: tuple[str, ...] = ()) -> RollbackResult:
    """A rollback that could not be carried out."""
    return RollbackResult(
        success=False, checkpoint_id=checkpoint_id, rollback_type=FAILED, files_restored=0, state_restored=False,
        error=error, processes_ended=ended,
    )  # fmt: skip


def _checkpoint(made: store.Checkpoint, sandbox: Sandbox) -> Checkpoint:
    running = live_state.of(made)
    return Checkpoint(
        checkpoint_id=made.checkpoint_id,
        timestamp=datetime.fromtimestamp(made.created_s, UTC),
        sandbox_id=sandbox.context.sandbox_id,
        filesystem_snapshot=snapshots.place(sandbox.context.folder, made.checkpoint_id),
        state_data=dict(made.state_data.get("state", {})),
        metadata=dict(made.state_data.get("metadata", {})),
        processes=None if running is None else tuple(running["commands"]),
    )


def plain_copy(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A copy that has gone through JSON, so that what is restored later is what was shown here."""
    try:
        copy: dict[str, Any] = json.loads(json.dumps(dict(values), allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        hint = "keep numbers, strings, lists and dicts"
        raise UsageError(f"{name} can't be kept: {error}", hint=hint) from error
    return copy
