"""``Ticket``: a command under way in a pool, led by one of its threads."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from ringfence.engine.admission import Slot
from ringfence.engine.occupancy import wait_for
from ringfence.engine.supervision import Listeners
from ringfence.errors import SetupError, UsageError, is_of_a_call
from ringfence.model.events import OnOutput
from ringfence.model.job import Job
from ringfence.model.outcome import Outcome
from ringfence.model.record import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.backends.contract import Visit
    from ringfence.engine.pool import Pool

_SIGKILL = 9
NEVER = "job cancelled before it started: {}"


class Ticket:
    """A job in a pool, waiting or running."""

    def __init__(self, pool: Pool, job: Job, on_output: OnOutput | None = None) -> None:
        self._pool = pool
        self._visit: Visit | None = None
        self._outcome: Outcome | None = None
        self._problem: BaseException | None = None
        self._cancelled = False
        # Not the thread's own end: Python before 3.13 takes a thread for ended when Ctrl-C interrupts join.
        self._ended = threading.Event()
        held = ExitStack()
        try:
            self._stay = held.enter_context(pool._enter())
            self._stay.thread = 0  # no thread is in there yet
            job = held.enter_context(with_own_input(job))
            self._turn = Slot(lambda: pool._workers.add(lambda: self._work(job, on_output, held)))
            pool._workers.need_one_more()
            held.callback(pool._queue.leave, self._turn)
            pool._queue.join(self._turn)
        except BaseException:
            held.close()
            raise

    def _work(self, job: Job, on_output: OnOutput | None, held: ExitStack) -> None:
        self._stay.thread = threading.get_ident()
        listeners = Listeners(on_output=on_output, attach=self._attach)
        try:
            self._outcome = self._pool._take_turn(job, self._turn, listeners)
        except BaseException as error:
            self._problem = error
        finally:
            held.close()
            self._ended.set()

    def _attach(self, visit: Visit, _: object) -> None:
        self._visit = visit
        self._stay.attach(visit)
        if self._cancelled:
            visit.signal(_SIGKILL)

    def cancel(self) -> None:
        """End it, or take it out of the queue; its place is free at once."""
        self._cancelled = True
        if self._pool._queue.withdraw(self._turn, "it was cancelled"):
            # Told now: the threads of the pool may be at work for long.
            self._problem = UsageError(NEVER.format(self._turn.refused))
            self._ended.set()
        elif self._visit is not None:
            self._visit.signal(_SIGKILL)

    @property
    def done(self) -> bool:
        return self._ended.is_set()

    def result(self, timeout_s: float | None = None) -> Outcome:
        """Its outcome, as soon as there is one; TimeoutError if that takes longer."""
        if not wait_for(self._ended, timeout_s):
            raise TimeoutError("the job has not ended yet")
        if self._problem is not None:
            raise self._problem
        assert self._outcome is not None
        return self._outcome


@contextmanager
def with_own_input(job: Job) -> Iterator[Job]:
    """Its caller may close the descriptor while it waits for its turn, and the number may be another file's by then."""
    if not isinstance(job.stdin, int):
        yield job
        return
    try:
        ours = os.dup(job.stdin)
    except OSError as error:
        if not is_of_a_call(error):
            raise
        raise SetupError("open the streams", str(error)) from error
    try:
        yield replace(job, stdin=ours)
    finally:
        os.close(ours)
