"""``Sandbox``: a transaction and the box that is open on it, for one context. The box can be closed and opened anew.

Executions may come from any thread and run side by side; going back, committing and destroying do not wait: they end
what runs. It decides nothing about isolation, and knows nothing of other sandboxes.

It has two locks, one for the box and one for the transaction. A thread that opens or closes the box, or begins a visit,
holds the first. A thread that uses the transaction holds the second, so a checkpoint does not wait for a box that
opens. A thread that changes the layers under a box, or keeps what runs in it, holds both (``at_rest``). The order is
always box, then transaction.
"""

from __future__ import annotations

import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress

from ringfence.checkpoint.layer import Committed, Rollback
from ringfence.checkpoint.transaction import Transaction
from ringfence.engine.box import Box
from ringfence.engine.handle import Handle
from ringfence.errors import SandboxError, SetupError, SupervisionError, UsageError
from ringfence.kernel.proc import procfs
from ringfence.manager.context import SandboxContext
from ringfence.manager.watched import Watched
from ringfence.model.events import OnOutput
from ringfence.model.job import Job
from ringfence.model.limits import TEN_YEARS_S
from ringfence.model.outcome import Changes, Outcome
from ringfence.model.policy import SandboxPolicy
from ringfence.model.record import replace
from ringfence.monitor.limits import ResourceLimits
from ringfence.monitor.resource_monitor import ResourceMonitor
from ringfence.monitor.source import Source
from ringfence.python_jobs.reply import shown
from ringfence.sandbox import networks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.backends.process_images import RestoredTree

AUTOMATIC = "automatic"
"""What is kept with a checkpoint that no caller asked for."""
_SIGKILL = 9
_LOOK_EVERY_S = 0.1
MAX_LINE_CHARS = 200
# The steps of a SetupError after which the job may be given to a new box: nothing of it has begun.
_BOX_GONE = ("enter the box", "reach the leader", "lead")
_TRIES = 3
_ANY_NUMBER = 2**62


class Sandbox:
    """Holds the transaction and the box of one context."""

    def __init__(
        self, context: SandboxContext, transaction: Transaction, policy: SandboxPolicy, monitor: ResourceMonitor
    ) -> None:
        self.monitor = monitor
        self.context = context
        self.transaction = transaction
        self.policy = policy
        self._box_lock = threading.RLock()
        self._transaction_lock = threading.RLock()
        self._automatic: list[str] | None = None
        self.known: set[str] = set()
        """Ids of checkpoints that it has or had."""
        self._box: Box | None = None
        self._gone = False

    @property
    def automatic(self) -> list[str]:
        """Checkpoints that were made before executions, the oldest first; also before it was attached here."""
        with self._transaction_lock:
            if self._automatic is None:
                kept = self.transaction.checkpoints()
                self._automatic = [each.checkpoint_id for each in kept if each.state_data.get(AUTOMATIC) is True]
            return self._automatic

    # ---- the box

    def box(self) -> Box:
        """The box, opened if it is not."""
        with self._box_lock:
            self._check()
            if self._box is not None and self._box.ended:
                self.close_box()
            if self._box is None:
                self._box = self._opened()
            return self._box

    def open_ahead(self) -> None:
        """Open the box while the caller goes on; the first use of the box reports what went wrong."""
        threading.Thread(target=self._try_to_open, name="ringfence-open", daemon=True).start()

    def _try_to_open(self) -> None:
        try:
            self.box()
        except SandboxError:
            pass  # it is tried again when a caller waits for it

    def _opened(self) -> Box:
        # One more: then the monitor sees that the limit was passed, not only reached.
        most = (self.context.resource_limits.max_network_kb + 1) * 1024
        limits_at_gateway = {"bytes": most} if networks.is_listed(self.policy) else {}
        box = Box(self.policy, transaction=self.transaction, turn=self._transaction_lock,
                  network_limits=limits_at_gateway)  # fmt: skip
        try:
            limits = _of_the_whole(self.context)
            self.monitor.start_monitoring(self.context.sandbox_id, limits, box.watchable, standing=True)
        except BaseException:
            box.close()
            raise
        return box

    def source(self) -> Source:
        """Where a monitor can look at it as long as it lives, whichever box it has; from /proc, since each box has
        groups of its own."""


        def now() -> Source:
            box = self._box  # without the lock: a monitor must not wait
            return box.watchable if box is not None else Source()

        def terminate() -> None:
            end = now().terminate
            if end is not None:
                end()

        def network() -> int:
            count = now().network
            return count() if count is not None else 0

        return Source(leaders=lambda: now().leaders(), terminate=terminate, network=network)

    def _check(self) -> None:
        if self._gone:
            raise UsageError(f"the sandbox {self.context.sandbox_id} no longer exists",
                             hint="create a new one, or attach it")  # fmt: skip

    def close_box(self, which: Box | None = None) -> tuple[str, ...]:
        """End everything in it; return what that was. ``which``: only if the box is still this one."""
        with self._box_lock:
            if self._box is None or which not in (None, self._box):
                return ()
            box, self._box = self._box, None
            ended = _programs(box)
            try:
                problem = self._last_look()
            finally:
                with suppress(SandboxError):  # what is left is a private directory; it does not affect the sandbox
                    box.close()
        if problem is not None:
            text = f"the last look at {self.context.sandbox_id} failed: {problem!r:.200}"
            warnings.warn(text, RuntimeWarning, stacklevel=2)
        return ended

    def _last_look(self) -> Exception | None:
        """What a callback of the monitor raised at it; a box is closed all the same."""
        try:
            self.monitor.stop_monitoring(self.context.sandbox_id, standing=True)
        except UsageError:
            pass  # the caller has closed the monitor
        except Exception as error:
            return error
        return None

    def programs(self) -> tuple[str, ...]:
        """What runs in the box."""
        with self._box_lock:
            return _programs(self._box) if self._box else ()

    def restored(self) -> tuple[RestoredTree, ...]:
        with self._box_lock:
            return self._box.restored if self._box else ()

    def close(self, remove: Callable[[], None] | None = None) -> None:
        """Let go of it: nothing runs any more. Its files stay on disk, or are removed while it is still locked."""
        with self._box_lock, self._transaction_lock:
            if self._gone:
                return
            self._gone = True
            try:
                self.close_box()
                if os.name == "nt":
                    self.transaction.close()  # on that system nothing that is open can be moved or removed
                if remove is not None:
                    remove()
            finally:
                self.transaction.close()

    @contextmanager
    def locked(self) -> Iterator[Transaction]:
        """The transaction, for one thread at a time. Inside, the thread must not ask for the box: see ``at_rest``."""
        with self._transaction_lock:
            self._check()
            yield self.transaction

    @contextmanager
    def at_rest(self) -> Iterator[Transaction]:
        """The same while no thread opens or closes the box or begins a visit; a box that is opening is waited for."""
        with self._box_lock, self.locked() as transaction:
            yield transaction

    # ---- visits

    def start(self, job: Job, on_output: OnOutput | None = None) -> Handle:
        return self._start(job, on_output, None)[0]

    def _start(
        self, job: Job, on_output: OnOutput | None, operations: int | None
    ) -> tuple[Handle, Box, Watched]:
        """Run it in the box, or in a new one if the box ended before it got the job. ``operations``: how many calls it
        may make; the monitor looks at them if the level does not count them."""
        for _ in range(_TRIES):
            with self._box_lock:  # nobody may close the box under a job that is being started
                box = self.box()
                counted = box.counts_operations
                watched = Watched(self.monitor, self.context, counted=counted)
                self._check_sight(box, watched)
                try:
                    most = operations if counted else None
                    return box.start(job, on_output=on_output, operations=most), box, watched
                except SetupError as error:
                    if error.step not in _BOX_GONE:
                        raise
                self.close_box(box)
        raise SandboxError(f"the box of {self.context.sandbox_id} does not stay open")

    def run(self, job: Job, on_output: OnOutput | None = None) -> tuple[Outcome, Watched]:
        """Run it to its end, or until it passes a limit that only the monitor sees; Ctrl-C in here ends it first."""
        job = replace(job, stdin=b"") if job.stdin is None else job
        most: int | None = self.context.resource_limits.max_file_operations
        most = None if most == _ANY_NUMBER else most
        handle, box, watched = self._start(job, on_output, most)
        try:
            ended = self._to_its_end(handle, box, watched)
            if handle.entered or not box.ended:
                return ended
        except SetupError as error:
            if error.step not in _BOX_GONE:
                raise
        self.close_box(box)  # the box had ended when the job arrived
        handle, box, watched = self._start(job, on_output, most)
        return self._to_its_end(handle, box, watched)

    def _to_its_end(self, handle: Handle, box: Box, watched: Watched) -> tuple[Outcome, Watched]:
        try:
            while not handle.done:
                handle.join(_LOOK_EVERY_S)
                if watched.is_over():
                    handle.signal(_SIGKILL)
                if not handle.done:
                    self._check_sight(box, watched)
            for _ in range(_TRIES):
                watched.is_over(whole=True, told=handle.operations)
                if watched.problem is None:
                    break
            self._check_sight(box, watched, anything=True)
            return handle.wait(), watched
        except BaseException:
            handle.signal(_SIGKILL)
            handle.join()
            raise

    def _check_sight(self, box: Box, watched: Watched, *, anything: bool = False) -> None:
        """End all that runs, with an error, if the monitor is lost: two of the limits hold by it alone. ``anything``:
        also if just the last look failed. Nobody looks at a box that was closed, and nothing runs in it."""
        lost = watched.is_lost or (anything and watched.problem is not None)
        if not lost or self._box is not box:
            return
        self.close_box(box)
        raise SupervisionError(
            f"the monitor of {self.context.sandbox_id} was lost, so its limits on processor and network could not be "
            f"enforced, and what ran was ended: {watched.problem}",
            hint="keep manager.monitor open; the next execution has a new box, which is monitored again",
        )

    # ---- the transaction

    def changes(self) -> Changes:
        with self.locked() as transaction:
            return transaction.changes()

    def links(self) -> dict[str, str]:
        with self.locked() as transaction:
            return transaction.links()

    def diff(self, path: str | None) -> str:
        with self.locked() as transaction:
            return transaction.diff(None if path is None else self._absolute(path))

    def seal(self) -> str:
        with self.locked() as transaction:
            return transaction.seal()

    def commit(
        self, paths: Iterable[str | os.PathLike[str]] | None, sealed: str = "", on_conflict: str = "refuse"
    ) -> Committed:
        """Running processes go on, on layers that stay as they are; if nothing runs, the layers are emptied."""
        with self.at_rest() as transaction:
            wanted = self._all_absolute(paths)
            busy = self._box is not None and bool(_programs(self._box))
            if not busy:
                self.close_box()
            done = transaction.commit(wanted, mounted=busy, sealed=sealed, on_conflict=on_conflict)
            self.automatic.clear()
            return done

    def roll_back(self, checkpoint_id: str, paths: Iterable[str | os.PathLike[str]] | None) -> Rollback:
        """Go back with the box closed; the caller's own data too, if the checkpoint has some."""
        with self.at_rest() as transaction:
            done = transaction.rollback(checkpoint_id, self._all_absolute(paths))
        if done.state_data is not None:
            self.context.state_data.clear()
            self.context.state_data.update(done.state_data.get("state", {}))
        return done

    def _all_absolute(self, paths: Iterable[str | os.PathLike[str]] | None) -> list[str] | None:
        if isinstance(paths, str | bytes | os.PathLike):
            raise UsageError("paths must be a list of paths, not one path", hint="write [path]")
        return None if paths is None else [self._absolute(path) for path in paths]

    def _absolute(self, path: str | os.PathLike[str]) -> str:
        """Relative paths start in the working directory, as for a job."""
        return os.path.normpath(os.path.join(self.transaction.bases[0], os.fspath(path)))


def _of_the_whole(context: SandboxContext) -> ResourceLimits:
    """Limits that hold for the life of the box; the other two are per execution."""
    return replace(context.resource_limits, max_execution_time=TEN_YEARS_S, max_file_operations=_ANY_NUMBER)


def _programs(box: Box) -> tuple[str, ...]:
    """What runs in it; empty if that is unknown."""
    if sys.platform != "linux":
        return ()
    found = (row for leader in box.watchable.leaders() for row in procfs.programs_below(leader))
    return tuple(f"{pid} {shown(line[:MAX_LINE_CHARS], one_line=True)}" for pid, line in found)
