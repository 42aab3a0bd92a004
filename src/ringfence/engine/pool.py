"""``Pool``: many small jobs, each in a sandbox of its own that stood by for it.

A door for callers that run machine-written snippets by the thousand. It adds nothing to what a sandbox holds: every
job gets a new one, under the same policy, and nothing is used twice. Results of calls come back in a safe encoding.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterable, Sequence

from ringfence.backends.led_visit import UNDELIVERED, PythonJobs
from ringfence.engine.line import Line, Turn
from ringfence.engine.returned import Returned, returned
from ringfence.engine.run import backend_for, refuse
from ringfence.engine.standing import Standing
from ringfence.engine.supervision import Listeners, supervise
from ringfence.errors import SetupError, UnavailableError, UsageError
from ringfence.model import callables, python_job
from ringfence.model.events import OnOutput
from ringfence.model.job import Job
from ringfence.model.limits import IsolationLevel
from ringfence.model.outcome import Outcome
from ringfence.model.policy import SandboxPolicy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ringfence.backends.contract import StandbyBox, Visit

_SIGKILL = 9
# Longer than a leader tries to end its tree; then it is killed, and that takes no time.
_END_WAIT_S, _KILL_WAIT_S = 15.0, 5.0


class Pool:
    """Sandboxes that stand by, and a line in front of them.

    ``warm``: how many stand by. ``preload``: modules that Python jobs find imported. ``at_once``: how many jobs run at
    a time, None: as many as ``warm``, or as there are processors if that is more. ``queue_limit``: how many more may
    wait, None: any number. ``idle_s``: after so long without a job all but one are let go.
    """

    def __init__(
        self,
        policy: SandboxPolicy | None = None,
        *,
        warm: int = 4,
        preload: Sequence[str] = (),
        at_once: int | None = None,
        queue_limit: int | None = None,
        idle_s: float = 60.0,
    ) -> None:
        if sys.platform != "linux":
            raise UnavailableError("pools need Linux", missing=("Linux",), hint="use run()")
        self.policy = policy or SandboxPolicy(isolation=IsolationLevel.STRICT)
        at_once = max(warm, os.cpu_count() or 1) if at_once is None else at_once
        _check(warm=warm, at_once=at_once, queue_limit=queue_limit, idle_s=idle_s)
        self._owner = os.getpid()
        self._backend = backend_for(self.policy.isolation)
        self._partial = bool(refuse(self._backend, self.policy))
        self._python = PythonJobs(preload=tuple(preload), packages=python_job.package_folders())
        self._running: set[Visit] = set()
        self._lock = threading.Lock()
        self._closed = False
        self._line = Line(at_once, queue_limit)
        self._at_once = at_once
        first = self._open()  # here, so that what can't work is said at once
        self._standing = Standing(self._open, warm, idle_s)
        self._standing.give_back(first) if warm == 0 else self._standing.add(first)

    def _open(self) -> StandbyBox:
        box: StandbyBox = self._backend.open(self.policy)  # type: ignore[assignment]
        try:
            box.stand_by(self._python)
        except BaseException:
            box.close()
            raise
        return box

    # ---- jobs

    def run(self, job: Job | Sequence[str | os.PathLike[str]], *, on_output: OnOutput | None = None) -> Outcome:
        """Any command."""
        return self._run(Job.of(job), on_output)

    def run_source(
        self,
        source: str | bytes,
        *,
        arguments: Sequence[str] = (),
        name: str = "<job>",
        stdin: bytes | int | None = None,
        files: dict[str, bytes] | None = None,
        environment: dict[str, str] | None = None,
        on_output: OnOutput | None = None,
    ) -> Outcome:
        """Python source, as ``python FILE`` would run it, without the start of an interpreter.

        >>> pool = Pool(warm=1)
        >>> pool.run_source("print(1 + 1)").stdout
        b'2\\n'
        >>> pool.close()
        """
        work = python_job.source_job(source, name=name, arguments=arguments, surroundings=self._surroundings)
        job = Job(argv=("python", name, *arguments), stdin=stdin, files=files or {}, environment=environment or {},
                  python=work)  # fmt: skip
        return self._run(job, on_output)

    def call(self, function: Callable[..., Any], *args: object, **kwargs: object) -> Any:
        """What the function returns; CallError with the guest's own traceback where it raises.

        >>> with Pool(warm=1) as pool:
        ...     pool.call(lambda a, b: a * b, 6, 7)
        42
        """
        return self.try_call(function, *args, **kwargs).value

    def try_call(self, function: Callable[..., Any], *args: object, **kwargs: object) -> Returned:
        """The same, with all that is known of how it ended, and never an exception of the guest's choice."""
        packed, arguments = callables.pack(function), callables.pack_arguments(args, kwargs)
        return self._call(packed, arguments, getattr(function, "__qualname__", "call"))

    def map(
        self, function: Callable[..., Any], items: Iterable[object], *, progress: bool = False
    ) -> list[Any]:
        """The function's value for every item, in order, as many at a time as the pool runs.

        The first failure, in the order of the items, is raised when those that run have ended; no more are begun.
        """
        from ringfence.engine.mapping import map_in_order

        packed, name = callables.pack(function), getattr(function, "__qualname__", "map")

        def one(item: object) -> Any:
            return self._call(packed, callables.pack_arguments((item,), {}), name).value

        return map_in_order(one, list(items), self._at_once, progress=progress)

    def submit(self, job: Job | Sequence[str | os.PathLike[str]]) -> Ticket:
        """Run it in the background; the ticket waits for its outcome, or cancels it."""
        return Ticket(self, Job.of(job))

    @property
    def _surroundings(self) -> python_job.Surroundings:
        return python_job.Surroundings(path=("",), packages=self._python.packages)

    def _call(self, function: bytes, arguments: bytes, name: str) -> Returned:
        work = python_job.call_job(function, arguments, surroundings=self._surroundings)
        return returned(self._run(Job(argv=("python", name), channel=True, python=work), None))

    def _run(self, job: Job, on_output: OnOutput | None) -> Outcome:
        return self._take_turn(job, self._join(), on_output)

    def _join(self) -> Turn:
        if self._owner != os.getpid():
            raise UsageError("a pool stays with the process that made it", hint="make a new one after fork")
        return self._line.join()

    def _take_turn(self, job: Job, turn: Turn, on_output: OnOutput | None, ticket: Ticket | None = None) -> Outcome:
        try:
            if not turn.wait():
                raise UsageError(f"the job never had its turn: {turn.refused}")
            listeners = Listeners(on_output=on_output, attach=lambda visit, _: self._attach(visit, ticket))
            try:
                return self._run_in(self._standing.take(), job, listeners)
            except SetupError as error:
                if error.step not in UNDELIVERED:
                    raise
            # It was gone before it had heard of the job; so may be the others that stand.
            return self._run_in(self._open(), job, listeners)
        finally:
            self._line.leave(turn)

    def _run_in(self, box: StandbyBox, job: Job, listeners: Listeners) -> Outcome:
        try:
            return supervise(box, job, self.policy, partial=self._partial, listeners=listeners)
        finally:
            self._standing.give_back(box)

    def _attach(self, visit: Visit, ticket: Ticket | None) -> None:
        with self._lock:
            self._running = {running for running in self._running if running.fileno() >= 0} | {visit}
        if ticket is not None:
            ticket.attach(visit)
        if self._closed:
            visit.signal(_SIGKILL)

    # ---- the end

    def close(self) -> None:
        """End everything that runs, and leave nothing behind."""
        if self._closed or self._owner != os.getpid():
            return
        self._closed = True
        self._line.close()
        for visit in self._still_running():
            visit.signal(_SIGKILL)
        if not self._line.await_empty(_END_WAIT_S):
            for visit in self._still_running():
                visit.abandon()
            self._line.await_empty(_KILL_WAIT_S)
        self._standing.close()

    def _still_running(self) -> list[Visit]:
        with self._lock:
            return [visit for visit in self._running if visit.fileno() >= 0]

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Ticket:
    """A job under way in a pool."""

    def __init__(self, pool: Pool, job: Job) -> None:
        self._pool = pool
        self._turn = pool._join()
        self._visit: Visit | None = None
        self._outcome: Outcome | None = None
        self._problem: BaseException | None = None
        self._cancelled = False
        # Not the thread's own end: Python before 3.13 takes a thread for ended when Ctrl-C interrupts join.
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, args=(job,), name="ringfence-job", daemon=True)
        self._thread.start()

    def _work(self, job: Job) -> None:
        try:
            self._outcome = self._pool._take_turn(job, self._turn, None, self)
        except BaseException as error:
            self._problem = error
        finally:
            self._ended.set()

    def attach(self, visit: Visit) -> None:
        self._visit = visit
        if self._cancelled:
            visit.signal(_SIGKILL)

    def cancel(self) -> None:
        """End it, or take it out of the line; its place is free at once."""
        self._cancelled = True
        if not self._pool._line.withdraw(self._turn, "it was cancelled") and self._visit is not None:
            self._visit.signal(_SIGKILL)

    @property
    def done(self) -> bool:
        return self._ended.is_set()

    def result(self, timeout_s: float | None = None) -> Outcome:
        """Its outcome, as soon as there is one; TimeoutError when that takes longer."""
        if not self._ended.wait(timeout_s):
            raise TimeoutError("the job has not ended yet")
        if self._problem is not None:
            raise self._problem
        assert self._outcome is not None
        return self._outcome


def _check(*, warm: int, at_once: int, queue_limit: int | None, idle_s: float) -> None:
    if warm < 0 or at_once < 1:
        raise UsageError(f"warm={warm}, at_once={at_once}: no pool has fewer than 0 warm sandboxes or 1 place")
    if queue_limit is not None and queue_limit < 0:
        raise UsageError(f"queue_limit={queue_limit} is less than nobody")
    if not idle_s > 0:
        raise UsageError(f"idle_s={idle_s} is no time")
