"""``SandboxManager``: sandboxes made, executed in, looked at, committed, rolled back and destroyed, each by its id.

A door on the engine: what isolates is the box, what undoes is the transaction. May be used from any thread.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from ringfence.checkpoint.layer import Committed
from ringfence.checkpoint.transaction import Transaction
from ringfence.engine import boxed_call
from ringfence.engine.call_result import call_result
from ringfence.engine.handle import Handle
from ringfence.engine.run import traits_of
from ringfence.errors import LateAttemptError, SandboxError, SupervisionError, UsageError
from ringfence.manager import live_state, permissions, result, snapshots, stored
from ringfence.manager.config import SandboxConfig
from ringfence.manager.context import SandboxContext, context_of
from ringfence.manager.registry import Damaged, Metadata, Registry, new_id
from ringfence.manager.result import ExecutionResult, RollbackResult
from ringfence.manager.rollback import RollbackSystem, plain_copy
from ringfence.manager.sandbox import Sandbox
from ringfence.model.events import OnOutput
from ringfence.model.job import Job
from ringfence.model.outcome import Changes, Outcome
from ringfence.model.policy import SandboxPolicy
from ringfence.model.record import replace
from ringfence.model.ways.walk import real
from ringfence.monitor.resource_monitor import ResourceMonitor
from ringfence.monitor.source import Source, offer
from ringfence.sandbox import hiding

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.backends.process_images import RestoredTree

_CLEANUP_EVERY_S = 60.0
_MAKING_HOURS = 0.1
"""Younger sandboxes may still be in the making: they are on disk before they can be locked."""


class SandboxManager:
    """Sandboxes of one directory.

    ``config``: for sandboxes that are made without one. ``sandbox_root``: where all of them lie; absent: where each
    one's config says.
    """

    def __init__(
        self, config: SandboxConfig | None = None, *, sandbox_root: str | os.PathLike[str] | None = None
    ) -> None:
        self.config = _checked(config) or SandboxConfig()
        self._fixed = None if sandbox_root is None else Registry(sandbox_root)
        self._living: dict[str, Sandbox] = {}
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._attaching = threading.Lock()
        self._cleaned_s: dict[str, float] = {}
        self._configs: dict[str, SandboxConfig] = {}
        """For sandboxes that this manager has had open: what it knows itself is not read from disk."""
        self.rollback_system = RollbackSystem(self._find, self._all)
        self.monitor = ResourceMonitor()
        offer(self._source_of)
        registry = self._registry(self.config)
        stored.tell_of_old_ones(registry.root)
        self._clean_up(registry)

    def _registry(self, config: SandboxConfig) -> Registry:
        return self._fixed or Registry(config.sandbox_root)

    def _all(self) -> list[Sandbox]:
        with self._lock:
            return list(self._living.values())

    def _source_of(self, sandbox_id: str) -> Source | None:
        """For monitors of this process; None: the sandbox is not ours."""
        found = next((each for each in self._all() if each.context.sandbox_id == sandbox_id), None)
        if found is None or os.getpid() != self._owner:
            return None
        return found.source()

    def _check(self) -> None:
        if os.getpid() != self._owner:
            raise UsageError("a manager can only be used in the process that made it", hint="make a new one after fork")

    def _find(self, sandbox_id: str) -> Sandbox:
        self._check()
        with self._lock:
            found = self._living.get(sandbox_id) if isinstance(sandbox_id, str) else None
        if found is None:
            raise UsageError(f"no sandbox {sandbox_id!r} is open here", hint="attach(id) opens one that is on disk")
        return found

    def _of(self, context: SandboxContext) -> Sandbox:
        if not isinstance(context, SandboxContext):
            raise UsageError(f"{context!r:.80} is not a SandboxContext", hint="create_sandbox and attach give one")
        return self._find(context.sandbox_id)

    # ---- life

    @contextmanager
    def sandbox(self, config: SandboxConfig | None = None) -> Iterator[SandboxContext]:
        """A sandbox for the length of a ``with``; changes that were not committed are gone at its end."""
        context = self.create_sandbox(config)
        try:
            yield context
        finally:
            if os.getpid() == self._owner:  # a forked copy that gets here has no sandbox to destroy
                self.destroy_sandbox(context.sandbox_id)

    def create_sandbox(self, config: SandboxConfig | None = None) -> SandboxContext:
        """A new sandbox; UnavailableError if this host can't enforce what the config asks for."""
        self._check()
        config = _checked(config) or self.config
        policy, backend = permissions.policy_and_backend(config)
        registry = self._registry(config)
        self._clean_up(registry)
        bases = tuple(real(path) for path in config.allowed_paths)
        metadata = Metadata(
            sandbox_id=new_id(), created_s=time.time(), isolation=str(config.isolation_level), bases=bases,
            config=config.to_dict(),
        )  # fmt: skip
        folder = registry.add(metadata)
        try:
            hidden = permissions.hidden_paths(config)
            transaction = Transaction.create(folder, bases, kind=backend.transaction_kind(), hidden=hidden,
                                             root=registry.root)  # fmt: skip
            return self._open(config, policy, metadata, transaction).context
        except BaseException:
            registry.remove(metadata.sandbox_id)
            raise

    def attach(
        self, sandbox_id: str, config: SandboxConfig | None = None, *, trust: bool = False
    ) -> SandboxContext:
        """Open one that is on disk, after a restart; BusyError if somebody else has it open.

        ``config``: what it may do from now on; absent: what is stored, which is refused if it is weaker than this
        manager's own config. ``trust``: accept records that we did not write, with an operation interrupted in it.
        """
        self._check()
        registry = self._registry(self.config)
        registry.folder(sandbox_id)  # which refuses anything that is no id
        with self._attaching:
            with self._lock:
                if sandbox_id in self._living:
                    return self._living[sandbox_id].context
            if trust:
                registry.trust(sandbox_id)
            return self._attached(registry, sandbox_id, _checked(config)).context

    def _attached(self, registry: Registry, sandbox_id: str, config: SandboxConfig | None) -> Sandbox:
        """Everything by one descriptor of its directory: what is read is what is opened."""
        tree = registry.opened(sandbox_id)
        try:
            metadata = registry.read_in(tree, sandbox_id)
            config = stored.given(metadata, config) if config else self._configs.get(sandbox_id)
            config = config or stored.believed(metadata, self.config)
            policy, _ = permissions.policy_and_backend(config)
        except BaseException:
            tree.close()
            raise
        transaction = Transaction.open(tree)
        try:
            hiding.refuse_unhidden(transaction, policy.hidden_paths)
        except BaseException:
            transaction.close()
            raise
        registry.touch(sandbox_id)
        return self._open(config, policy, metadata, transaction)

    def _open(
        self, config: SandboxConfig, policy: SandboxPolicy, metadata: Metadata, transaction: Transaction
    ) -> Sandbox:
        opened = Sandbox(context_of(config, metadata, transaction), transaction, policy, self.monitor)
        try:
            with self._lock:
                self._living[metadata.sandbox_id] = opened
                self._configs[metadata.sandbox_id] = config
            opened.open_ahead()
        except BaseException:
            self._forget(opened)
            opened.close()
            raise
        return opened

    def detach(self, sandbox_id: str) -> None:
        """End what runs in it and release it; it stays on disk, for ``attach``."""
        found = self._find(sandbox_id)
        self._forget(found)
        registry = _registry_of(found)
        try:
            state = plain_copy(found.context.state_data, "state_data")
            with found.locked():
                registry.write(replace(registry.read(sandbox_id), state_data=state))
        finally:
            found.close()

    def _forget(self, sandbox: Sandbox) -> None:
        with self._lock:
            self._living.pop(sandbox.context.sandbox_id, None)

    def destroy_sandbox(self, sandbox_id: str) -> None:
        """End what runs in it and remove it, whether it is open here or only on disk."""
        self._check()
        self._registry(self.config).folder(sandbox_id)  # which refuses anything that is no id
        with self._lock:
            found = self._living.get(sandbox_id)
        if found is None:
            self._registry(self.config).remove_unused(sandbox_id)
            return
        found.close(lambda: _registry_of(found).remove(sandbox_id))
        self._forget(found)

    def list_active_sandboxes(self) -> list[SandboxContext]:
        """The sandboxes that are open here."""
        return [sandbox.context for sandbox in self._all()]

    def stored_sandboxes(self) -> list[Metadata | Damaged]:
        """All sandboxes on disk, open or not."""
        return list(self._registry(self.config).all())

    def close(self) -> None:
        """Detach all sandboxes; nothing in them runs any more."""
        problems: list[Exception] = []
        for sandbox in self._all() if os.getpid() == self._owner else ():
            try:
                self.detach(sandbox.context.sandbox_id)
            except Exception as error:
                problems.append(error)
        if problems:
            raise problems[0]

    def __enter__(self) -> SandboxManager:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _clean_up(self, registry: Registry) -> None:
        """Remove what nobody has used for as long as its own config says."""
        with self._lock:
            now_s = time.monotonic()
            if now_s < self._cleaned_s.get(registry.root, float("-inf")) + _CLEANUP_EVERY_S:
                return
            self._cleaned_s[registry.root] = now_s
        registry.sweep()
        with suppress(SandboxError):  # it is closed to us: listing or making a sandbox reports that
            for metadata in registry.all():
                with suppress(SandboxError):  # in use, or not removable: no manager fails because of another's sandbox
                    if isinstance(metadata, Metadata) and _is_old(registry, metadata):
                        registry.remove_unused(metadata.sandbox_id, force=False)

    # ---- executions

    def execute_in_sandbox(
        self,
        context: SandboxContext,
        tool_fn: Callable[..., Any],
        params: Mapping[str, Any] | None = None,
        *,
        on_output: OnOutput | None = None,
    ) -> ExecutionResult:
        """Call ``tool_fn(**params)`` inside. What it does is in the result, and never raises here."""
        if not isinstance(params or {}, Mapping) or not all(isinstance(name, str) for name in params or {}):
            raise UsageError(f"params: {params!r:.80} is not a mapping of names to values")
        if not callable(tool_fn):
            raise UsageError(f"{tool_fn!r:.80} can't be called")
        sandbox = self._of(context)
        imports = sandbox.context.config.allowed_imports
        python = traits_of(sandbox.context.isolation_level).python
        job = boxed_call.call_job(tool_fn, params or {}, modules=imports, python=python)

        def make(outcome: Outcome, more: Iterable[str]) -> ExecutionResult:
            return result.of_call(call_result(result.with_imports(outcome, imports)), context.sandbox_id, more)

        return self._execute(sandbox, job, make, on_output)

    def run(
        self, context: SandboxContext, job: Job | Sequence[str | os.PathLike[str]], *, on_output: OnOutput | None = None
    ) -> ExecutionResult:
        """Run a command inside, to its end; what it leaves running in the background stays."""
        make = lambda outcome, more: result.of_command(outcome, context.sandbox_id, more)  # noqa: E731
        return self._execute(self._of(context), Job.of(job), make, on_output)

    def start(
        self, context: SandboxContext, job: Job | Sequence[str | os.PathLike[str]], *, on_output: OnOutput | None = None
    ) -> Handle:
        """Start a command in the background; the handle streams its output, sends signals and waits."""
        return self._of(context).start(Job.of(job), on_output)

    def restored(self, context: SandboxContext) -> tuple[RestoredTree, ...]:
        """The process trees that the last rollback restored: output, input, and whether they have ended."""
        return self._of(context).restored()

    def _execute(
        self,
        sandbox: Sandbox,
        job: Job,
        make: Callable[[Outcome, Iterable[str]], ExecutionResult],
        on_output: OnOutput | None,
    ) -> ExecutionResult:
        context = sandbox.context
        _registry_of(sandbox).touch(context.sandbox_id)
        before = self.rollback_system.before_execution(sandbox) if context.config.checkpoint_before_execution else ""
        try:
            outcome, watched = sandbox.run(job, on_output)
        except SupervisionError as error:
            raise self.rollback_system.undo_unseen(sandbox, before, error) from None
        done = result.with_limit(make(outcome, map(str, watched.violations)), watched.violations)
        done = result.with_unheld(done, permissions.unheld(context.config))
        done = replace(done, checkpoint_id=before, resource_usage=watched.used(outcome))
        if watched.violations:
            sandbox.close_box()  # after a limit is passed everything is ended; the next execution has a new box
        if done.success or not context.config.enable_auto_rollback:
            return done
        undone = self.rollback_system.undo_execution(sandbox, before, outcome, done.error or "failure")
        return replace(done, rollback=undone, rolled_back=undone.success)

    # ---- what changed

    def changes(self, context: SandboxContext) -> Changes:
        """What differs from the allowed paths, by their own absolute paths."""
        return self._of(context).changes()

    def links(self, context: SandboxContext) -> dict[str, str]:
        """The symbolic links that were made or changed, and where they point: the guest's choice."""
        return self._of(context).links()

    def diff(self, context: SandboxContext, path: str | None = None) -> str:
        """What changed, as text: added, modified, deleted, with unified diffs of texts."""
        return self._of(context).diff(path)

    def seal(self, context: SandboxContext) -> str:
        """A seal over all changes up to now, to commit exactly these: processes in the sandbox may change more."""
        return self._of(context).seal()

    def commit(
        self, context: SandboxContext, paths: Iterable[str | os.PathLike[str]] | None = None, *, sealed: str = "",
        on_conflict: str = "refuse",
    ) -> Committed:  # fmt: skip
        """Commit the changes into the allowed paths, all or some; ConflictError if others changed the same, or the
        changes are not what was ``sealed``. LateAttemptError if what an execution left running has tried something
        forbidden since the last result; that execution is undone. ``on_conflict``: see ``Transaction.commit``."""
        sandbox = self._of(context)
        with sandbox.at_rest() as transaction:
            try:
                done = sandbox.commit(paths, sealed, on_conflict)
            except LateAttemptError as error:
                raise self.rollback_system.undo_late(sandbox, error) from None
            live_state.sweep(sandbox, transaction)
            snapshots.sweep(transaction)
        return done

    def rollback(
        self,
        context: SandboxContext,
        checkpoint_id: str | None = None,
        paths: Iterable[str | os.PathLike[str]] | None = None,
    ) -> RollbackResult:
        """Go back to a checkpoint; absent: to the last one, or to the beginning if there is none."""
        sandbox = self._of(context)
        with sandbox.at_rest() as transaction:
            wanted = checkpoint_id or transaction.current
            if wanted:
                return self.rollback_system.rollback_to_checkpoint(wanted, paths)
            if paths is not None:
                hint = "call create_checkpoint first, or roll back to the beginning without paths"
                raise UsageError("there is no checkpoint from which some paths could be restored", hint=hint)
            return self.rollback_system.discard(sandbox)


def _registry_of(sandbox: Sandbox) -> Registry:
    return Registry(sandbox.context.folder.parent)


def _is_old(registry: Registry, metadata: Metadata) -> bool:
    """By its own config; a sandbox of another door has none, and that door looks after it."""
    if not metadata.config:
        return False
    try:
        config = SandboxConfig.from_dict(metadata.config)
    except SandboxError:
        return False
    oldest_hours = max(config.cleanup_age_hours, _MAKING_HOURS)
    return config.auto_cleanup and registry.idle_hours(metadata.sandbox_id) > oldest_hours


def _checked(config: object) -> SandboxConfig | None:
    if config is not None and not isinstance(config, SandboxConfig):
        raise UsageError(f"{config!r:.80} is not a SandboxConfig")
    return config
