"""``Sandbox``: a transaction and the box that is open on it, for one context. The box can be closed and opened anew.

Executions may come from any thread and run side by side; going back, committing and destroying wait for nobody: they
end what runs. It decides nothing about isolation, and knows nothing of other sandboxes.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from ringfence.checkpoint.layer import Committed, Rollback
from ringfence.checkpoint.transaction import Transaction
from ringfence.engine.box import Box, Handle
from ringfence.errors import SandboxError, SetupError, UsageError
from ringfence.linux import procfs
from ringfence.manager.context import SandboxContext
from ringfence.model.events import OnOutput
from ringfence.model.job import Job
from ringfence.model.limits import TEN_YEARS_S
from ringfence.model.outcome import Changes, Outcome
from ringfence.model.policy import SandboxPolicy
from ringfence.model.record import replace as replace_record
from ringfence.model.reply import shown
from ringfence.monitor.limits import ResourceLimits, ResourceUsage
from ringfence.monitor.resource_monitor import ResourceMonitor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.backends.kept_processes import Revived

_SIGKILL = 9
_LOOK_EVERY_S = 0.1
MAX_LINE_CHARS = 200
# The steps of a SetupError after which the job may be given to a new box: nothing of it has begun.
_BOX_GONE = ("enter the box", "reach the leader", "lead")
_TRIES = 3


class Watched:
    """One execution, as the monitor sees it. File operations are counted from when this is made to the last look, and
    both are looks at everything: the monitor's own may be a second old, and others' doings are not this one's."""

    def __init__(self, monitor: ResourceMonitor, context: SandboxContext) -> None:
        self._monitor = monitor
        self._context = context
        self.violations: list[str] = []
        self.usage: ResourceUsage | None = None
        """As of the last look; absent: there was none."""
        self._before: int | None = None
        """Operations up to the first look that succeeded; those before are not this one's."""
        self._look(whole=True)

    def _look(self, *, whole: bool) -> None:
        try:
            if whole:
                self._monitor.sample(self._context.sandbox_id)
            self.usage = self._monitor.get_usage(self._context.sandbox_id)
        except SandboxError:
            return  # the box is gone, and with it what could be looked at
        self.violations = list(self.usage.violations)
        if self._before is None:
            self._before = self.usage.file_operations

    def is_over(self, *, whole: bool = False) -> bool:
        """Whether a limit has been passed; which, is in ``violations``."""
        self._look(whole=whole)
        limit = self._context.resource_limits.max_file_operations
        count = self.usage.file_operations - (self._before or 0) if self.usage else 0
        if count > limit:
            self.violations.append(f"file operations: {count}, limit {limit}")
        return bool(self.violations)


class Sandbox:
    """One context's."""

    def __init__(
        self, context: SandboxContext, transaction: Transaction, policy: SandboxPolicy, monitor: ResourceMonitor
    ) -> None:
        self.monitor = monitor
        self.context = context
        self.transaction = transaction
        self.policy = policy
        self.lock = threading.RLock()
        """Held by who uses the transaction or changes the box."""
        self.automatic: list[str] = []
        """Checkpoints that were made here before executions."""
        self.known: set[str] = set()
        """Ids of checkpoints that it has or had."""
        self._box: Box | None = None
        self._gone = False

    # ---- the box

    def box(self) -> Box:
        """The box, opened if it is not."""
        with self.lock:
            self._check()
            if self._box is not None and self._box.ended:
                self.close_box()
            if self._box is None:
                self._box = self._opened()
            return self._box

    def open_ahead(self) -> None:
        """Open the box while the caller goes on; what goes wrong is told to who first uses it."""
        threading.Thread(target=self._try_to_open, name="ringfence-open", daemon=True).start()

    def _try_to_open(self) -> None:
        try:
            self.box()
        except SandboxError:
            pass  # it is tried again where somebody waits for it

    def _opened(self) -> Box:
        box = Box(self.policy, transaction=self.transaction)
        try:
            self.monitor.start_monitoring(self.context.sandbox_id, _of_the_whole(self.context), box.watchable)
        except BaseException:
            box.close()
            raise
        return box

    def _check(self) -> None:
        if self._gone:
            raise UsageError(f"the sandbox {self.context.sandbox_id} is gone", hint="create a new one, or attach it")

    def close_box(self, which: Box | None = None) -> tuple[str, ...]:
        """End everything in it; what that was. ``which``: only if it is still this one."""
        with self.lock:
            if self._box is None or which not in (None, self._box):
                return ()
            box, self._box = self._box, None
            ended = _programs(box)
            try:
                self.monitor.stop_monitoring(self.context.sandbox_id)
            except UsageError:
                pass  # the caller has done so
            try:
                box.close()
            except SandboxError:
                pass  # what could not be removed is a private folder of the box; the sandbox is not touched by it
            return ended

    def programs(self) -> tuple[str, ...]:
        """What runs in the box."""
        with self.lock:
            return _programs(self._box) if self._box else ()

    def restored(self) -> tuple[Revived, ...]:
        with self.lock:
            return self._box.revived if self._box else ()

    def close(self, remove: Callable[[], None] | None = None) -> None:
        """Let go of it: nothing runs any more. What is on disk stays, or is removed while it is still locked."""
        with self.lock:
            if self._gone:
                return
            self._gone = True
            self.close_box()
            try:
                if remove is not None:
                    remove()
            finally:
                self.transaction.close()

    @contextmanager
    def held(self) -> Iterator[Transaction]:
        """The transaction, for one who takes his turn."""
        with self.lock:
            self._check()
            yield self.transaction

    # ---- visits

    def start(self, job: Job, on_output: OnOutput | None = None) -> Handle:
        return self._start(job, on_output)[0]

    def _start(self, job: Job, on_output: OnOutput | None) -> tuple[Handle, Box, Watched]:
        """In the box; in a new one where it has come to its end before it had heard of the job."""
        for _ in range(_TRIES):
            with self.lock:  # nobody may close the box under a job that is being started
                box = self.box()
                watched = Watched(self.monitor, self.context)
                try:
                    return box.start(job, on_output=on_output), box, watched
                except SetupError as error:
                    if error.step not in _BOX_GONE:
                        raise
                self.close_box(box)
        raise SandboxError(f"the box of {self.context.sandbox_id} does not stay open")

    def run(self, job: Job, on_output: OnOutput | None = None) -> tuple[Outcome, Watched]:
        """To its end, or until a limit is passed that only the monitor sees; Ctrl-C in here ends it first."""
        job = replace_record(job, stdin=b"") if job.stdin is None else job
        handle, box, watched = self._start(job, on_output)
        try:
            ended = self._to_its_end(handle, watched)
            if handle.entered or not box.ended:
                return ended
        except SetupError as error:
            if error.step not in _BOX_GONE:
                raise
        self.close_box(box)  # it was at its end when the job came to its door
        handle, _, watched = self._start(job, on_output)
        return self._to_its_end(handle, watched)

    def _to_its_end(self, handle: Handle, watched: Watched) -> tuple[Outcome, Watched]:
        try:
            while not handle.done:
                handle.join(_LOOK_EVERY_S)
                if watched.is_over():
                    handle.signal(_SIGKILL)
            watched.is_over(whole=True)
            return handle.wait(), watched
        except BaseException:
            handle.signal(_SIGKILL)
            handle.join()
            raise

    # ---- the transaction

    def changes(self) -> Changes:
        with self.held() as transaction:
            return transaction.changes()

    def links(self) -> dict[str, str]:
        with self.held() as transaction:
            return transaction.links()

    def diff(self, path: str | None) -> str:
        with self.held() as transaction:
            return transaction.diff(None if path is None else self._absolute(path))

    def seal(self) -> str:
        with self.held() as transaction:
            return transaction.seal()

    def commit(self, paths: Iterable[str | os.PathLike[str]] | None, sealed: str = "") -> Committed:
        """What runs goes on, on layers that stay as they are; where nothing runs they are emptied."""
        with self.held() as transaction:
            wanted = self._all_absolute(paths)
            busy = self._box is not None and bool(_programs(self._box))
            if not busy:
                self.close_box()
            done = transaction.commit(wanted, mounted=busy, sealed=sealed)
            self.automatic.clear()
            return done

    def roll_back(self, checkpoint_id: str, paths: Iterable[str | os.PathLike[str]] | None) -> Rollback:
        """With the box closed."""
        with self.held() as transaction:
            return transaction.rollback(checkpoint_id, self._all_absolute(paths))

    def _all_absolute(self, paths: Iterable[str | os.PathLike[str]] | None) -> list[str] | None:
        if isinstance(paths, str | bytes | os.PathLike):
            raise UsageError("paths is a list of paths, not one path", hint="write [path]")
        return None if paths is None else [self._absolute(path) for path in paths]

    def _absolute(self, path: str | os.PathLike[str]) -> str:
        """Relative ones are meant as a job that starts in the working directory would."""
        return os.path.normpath(os.path.join(self.transaction.bases[0], os.fspath(path)))


def _of_the_whole(context: SandboxContext) -> ResourceLimits:
    """Limits that hold as long as the box lives; the other two are of each execution."""
    return replace(context.resource_limits, max_execution_time=TEN_YEARS_S, max_file_operations=2**62)


def _programs(box: Box) -> tuple[str, ...]:
    """What runs in it; empty where nobody can tell."""
    if sys.platform != "linux":
        return ()
    found = (row for leader in box.watchable.leaders() for row in procfs.programs_below(leader))
    return tuple(f"{pid} {shown(line[:MAX_LINE_CHARS], one_line=True)}" for pid, line in found)
