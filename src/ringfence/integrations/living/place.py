"""``Place``: a box and, if it has one, the transaction under it, for doors whose callers come back again and again.

A box that has ended is opened anew; its files stay if they lie in the transaction. Going back and committing
end what runs. The box itself has no deadline, so that an interpreter can live in it: each visit has the policy's.
It decides nothing about isolation.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from ringfence.checkpoint.layer import Committed, Rollback
from ringfence.checkpoint.store import Checkpoint
from ringfence.checkpoint.transaction import Transaction
from ringfence.engine import boxed_call
from ringfence.engine.box import Box
from ringfence.engine.handle import Handle
from ringfence.engine.run import traits_of
from ringfence.errors import CheckpointError, SandboxError, SetupError, UsageError
from ringfence.integrations.living.checkpoints import problem_with_another
from ringfence.model.events import OnEvent, OnOutput
from ringfence.model.job import Job
from ringfence.model.limits import TEN_YEARS_S
from ringfence.model.outcome import Changes, Outcome
from ringfence.model.policy import SandboxPolicy

_T = TypeVar("_T")
_SIGKILL = 9
# The steps of a SetupError after which the job may be given to a new box: nothing of it has begun.
_BOX_GONE = ("enter the box", "reach the leader", "lead")
_NO_HISTORY = "this sandbox has no checkpoints: it works in a private directory"


class Place:
    """Used from any thread; visits run side by side."""

    def __init__(self, policy: SandboxPolicy, transaction: Transaction | None = None) -> None:
        """``transaction``: on whose directories it works, closed by whoever opened it; absent: a private directory,
        which goes with the box."""
        self.policy = policy
        self._inner = session_policy(policy)
        self._transaction = transaction
        self._box: Box | None = None
        self._box_lock = threading.RLock()
        self._turn = threading.RLock()
        self._closed = False
        self.on_event: OnEvent | None = None
        """Called for each refused attempt of a visit, by the thread that leads it."""

    # ---- the box

    def box(self) -> Box:
        """The box, opened if it is not."""
        with self._box_lock:
            if self._closed:
                raise UsageError("the sandbox is closed")
            if self._box is not None and self._box.ended:
                self.end_all()
            if self._box is None:
                self._box = Box(self._inner, transaction=self._transaction, turn=self._turn)
            return self._box

    def end_all(self) -> None:
        """End everything that runs; the next visit opens the box anew."""
        with self._box_lock:
            box, self._box = self._box, None
        if box is not None:
            try:
                box.close()
            except SandboxError:
                pass  # what could not be removed is a private directory of the box

    @contextmanager
    def at_rest(self) -> Iterator[None]:
        """Nothing runs and nothing begins, so what is read meanwhile is consistent."""
        with self._box_lock, self._turn:
            self.end_all()
            yield

    def close(self) -> None:
        with self._box_lock:
            self._closed = True
            self.end_all()

    def __enter__(self) -> Place:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _in_a_box(self, work: Callable[[Box], _T]) -> _T:
        """Do it in a new box if the old one ended before the work reached it."""
        box = self.box()
        try:
            return work(box)
        except SetupError as error:
            if error.step not in _BOX_GONE or not box.ended:
                raise
        return work(self.box())

    # ---- visits and files

    def start(
        self, job: Job, *, timeout: float | None = None, unending: bool = False, on_output: OnOutput | None = None
    ) -> Handle:
        """A visit in the background. ``timeout``: less time than the policy gives; ``unending``: it lives as long as
        the box, and its caller watches the time."""
        allowed = TEN_YEARS_S if unending else self.seconds(timeout)
        return self._in_a_box(
            lambda box: box.start(job, timeout=allowed, on_event=self.on_event, on_output=on_output)
        )

    def run(self, job: Job, *, timeout: float | None = None, on_output: OnOutput | None = None) -> Outcome:
        """Run a visit to its end; an interrupted wait ends the visit first."""
        handle = self.start(job if job.stdin is not None else _unfed(job), timeout=timeout, on_output=on_output)
        try:
            return handle.wait()
        except BaseException:
            handle.signal(_SIGKILL)
            handle.join()
            raise

    def seconds(self, timeout: float | None) -> float:
        """The time for a visit: what was asked for, and never more than the policy allows."""
        if timeout is not None and not timeout > 0:
            raise UsageError(f"timeout: {timeout!r} must be a number of seconds > 0")
        return self.policy.wall_time_s if timeout is None else min(timeout, self.policy.wall_time_s)

    def put(self, name: str, content: bytes) -> None:
        self._in_a_box(lambda box: box.put(name, content))

    def get(self, name: str, max_bytes: int) -> bytes:
        return self._in_a_box(lambda box: box.get(name, max_bytes))

    # ---- what changed, and going back

    def transaction(self) -> Transaction:
        if self._transaction is None:
            raise UsageError(_NO_HISTORY, hint="open it on a workspace")
        return self._transaction

    def changes(self) -> Changes:
        with self._turn:
            return self.transaction().changes()

    def diff(self, path: str | None = None) -> str:
        with self._turn:
            return self.transaction().diff(path)

    def seal(self) -> str:
        with self._turn:
            return self.transaction().seal()

    def checkpoint(self, name: str = "") -> Checkpoint:
        """CheckpointError if there are too many, or they take too much: the policy's limit of the disk is about the
        files alone."""
        with self._turn:
            problem = problem_with_another(self.transaction(), self.policy)
            if problem:
                raise CheckpointError(problem, hint="roll back to an existing one, or commit: that removes them all")
            return self.transaction().create_checkpoint(name)

    def checkpoints(self) -> list[Checkpoint]:
        with self._turn:
            return self.transaction().checkpoints()

    def roll_back(self, checkpoint_id: str) -> Rollback:
        """Ends what runs."""
        with self._box_lock, self._turn:
            self.transaction()
            self.end_all()
            return self.transaction().rollback(checkpoint_id)

    def commit(self, paths: Iterable[str] | None = None, *, sealed: str = "") -> Committed:
        """Ends what runs, so that nothing changes in the middle. ``sealed``: only what was there at that ``seal()``."""
        with self._box_lock, self._turn:
            self.transaction()
            self.end_all()
            return self.transaction().commit(paths, sealed=sealed)


def _unfed(job: Job) -> Job:
    from ringfence.model.record import replace

    return replace(job, stdin=b"")


def session_policy(policy: SandboxPolicy) -> SandboxPolicy:
    """Show what our own program needs, and give the box no deadline: each visit has one."""
    changes: dict[str, object] = {"wall_time_s": TEN_YEARS_S}
    if traits_of(policy.isolation).files_apart and not policy.root:
        readable = dict.fromkeys((*policy.readable_paths, *boxed_call.needed_paths()))
        changes["readable_paths"] = tuple(readable)
    return policy.with_changes(**changes)
