"""``JobFuture`` and ``CallFuture``: a job and a call under way in a pool, each as a ``concurrent.futures.Future``.

``as_completed``, ``wait`` and callbacks take them as their own, and ``await`` waits for them without blocking the loop.
Unlike other futures they can be cancelled while they run: the sandbox is ended.
"""

from __future__ import annotations

import threading
from collections.abc import Generator
from concurrent.futures import Future
from contextlib import ExitStack
from typing import Any

from ringfence.engine.admission import Slot
from ringfence.engine.call_result import CallResult, call_result
from ringfence.engine.supervision import Listeners
from ringfence.engine.ticket import with_own_input
from ringfence.model.job import Job
from ringfence.model.outcome import Outcome
from ringfence.model.record import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.backends.contract import Visit
    from ringfence.engine.pool import Pool

_SIGKILL = 9


class JobFuture(Future[Any]):
    """A job in a pool. Its result is the job's Outcome."""

    def __init__(self, pool: Pool, job: Job, told: Listeners | None = None) -> None:
        """It is in the line from now on. ``told``: who else hears of it while it runs."""
        super().__init__()
        self._pool = pool
        self._told = told or Listeners()
        self._visit: Visit | None = None
        self._killed = False
        self._claimed = threading.Lock()
        """Taken once, by the thread that sets the result: the one that cancels it, or the one that has run it."""
        self._turn = Slot(lambda: pool._workers.add(self._work))
        self._held = ExitStack()
        try:
            self._stay = self._held.enter_context(pool._enter())
            self._stay.thread = 0  # no thread is in there yet
            self._job = self._held.enter_context(with_own_input(job))
            pool._workers.need_one_more()
            self._held.callback(pool._queue.leave, self._turn)
            pool._queue.join(self._turn)
        except BaseException:
            self._held.close()
            raise

    def _work(self) -> None:
        """Runs in a thread of the pool, when its turn has come or never will."""
        self._stay.thread = threading.get_ident()
        value, problem = None, None
        try:
            told = replace(self._told, attach=self._attach)
            value = self._value_of(self._pool._take_turn(self._job, self._turn, told))
        except BaseException as error:
            problem = error
        finally:
            self._held.close()
        self._tell(value, problem)

    def _value_of(self, outcome: Outcome) -> object:
        return outcome

    def _attach(self, visit: Visit, _: object) -> None:
        self._visit = visit
        self._stay.attach(visit)
        if self.cancelled() or self._killed:
            visit.signal(_SIGKILL)

    def kill(self) -> None:
        """End the sandbox, at once or as soon as there is one. Unlike after ``cancel`` there is an outcome."""
        self._killed = True
        if self._visit is not None and not self.done():
            self._visit.signal(_SIGKILL)

    def _tell(self, value: object, problem: BaseException | None) -> None:
        if not self._claimed.acquire(blocking=False) or not self.set_running_or_notify_cancel():
            return
        if problem is not None:
            self.set_exception(problem)
        else:
            self.set_result(value)

    def cancel(self) -> bool:
        """Take it out of the queue, or end its sandbox; False if it has ended already."""
        if not super().cancel():
            return False
        if self._claimed.acquire(blocking=False):
            self.set_running_or_notify_cancel()
        if not self._pool._queue.withdraw(self._turn, "it was cancelled") and self._visit is not None:
            self._visit.signal(_SIGKILL)
        return True

    def running(self) -> bool:
        return self._visit is not None and not self.done()

    def __await__(self) -> Generator[Any, None, Any]:
        """Cancelling the task that waits here ends the sandbox."""
        from asyncio import wrap_future

        return wrap_future(self).__await__()


class CallFuture(JobFuture):
    """A call in a pool. Its result is the function's value; CallError if there is none."""

    _returned: CallResult | None = None

    def _value_of(self, outcome: Outcome) -> object:
        self._returned = call_result(outcome)
        return self._returned.value

    def returned(self, timeout: float | None = None) -> CallResult:
        """How it ended, as data, as ``Pool.try_call`` gives it."""
        problem = self.exception(timeout)
        if self._returned is None:
            assert problem is not None
            raise problem
        return self._returned
