"""``Pool``: many small jobs, each in a sandbox of its own that stood by for it.

A door for callers that run machine-written snippets by the thousand. It adds nothing to what a sandbox holds: every
job gets a new one, under the same policy, and nothing is used twice. Results of calls come back in a safe encoding.
"""

from __future__ import annotations

import os
import sys
import warnings
import weakref
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from functools import partial

from ringfence.backends.facts import PythonJobs
from ringfence.backends.leader_client import UNDELIVERED
from ringfence.engine.admission import AdmissionQueue, Slot
from ringfence.engine.call_result import CallResult, call_result
from ringfence.engine.keywords import deadline_of, job_of
from ringfence.engine.occupancy import Occupancy, Occupant
from ringfence.engine.run import backend_for, close_whole, refuse
from ringfence.engine.supervision import Listeners, supervise
from ringfence.engine.ticket import NEVER, Ticket, with_own_input
from ringfence.engine.warm_set import WarmSet
from ringfence.engine.workers import Workers
from ringfence.errors import SetupError, UnavailableError, UsageError
from ringfence.model.events import OnOutput
from ringfence.model.job import Job
from ringfence.model.limits import IsolationLevel
from ringfence.model.outcome import Outcome
from ringfence.model.policy import SandboxPolicy
from ringfence.python_jobs import job as python_job
from ringfence.python_jobs import pack as callables

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Never, Unpack

    from ringfence.backends.contract import Backend, StandbyBox
    from ringfence.engine.handing_over import Handed
    from ringfence.engine.job_future import CallFuture, JobFuture
    from ringfence.engine.keywords import Beside

# Descriptors that a standby sandbox takes from this process, and what must be left for jobs and everything else.
_DESCRIPTORS_EACH, _SPARE_DESCRIPTORS = 4, 64


class Pool:
    """Standby sandboxes, and a queue in front of them.

    ``policy``: absent: strict. A policy that names no ``isolation`` means ``process``, here too. ``warm``: how many
    stand by. ``preload``: modules that are imported before Python jobs begin. ``at_once``: how many jobs run at a time;
    None: as many as ``warm``, or as there are processors if that is more. ``queue_limit``: how many more may wait;
    None: any number. ``idle_s``: after this long without a job all standby sandboxes but one are closed.
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
        _check(warm=warm, at_once=at_once, queue_limit=queue_limit, idle_s=idle_s)
        _check_room(warm)
        self._owner = os.getpid()
        backend = backend_for(self.policy.isolation)
        _check_number(warm, backend.traits.most_standing)
        self._partial = bool(refuse(backend, self.policy))
        self._python = PythonJobs(preload=_names(preload), packages=python_job.package_folders())
        self.surroundings = python_job.Surroundings(path=("",), packages=self._python.packages)
        self._occupancy = Occupancy("pool")
        self._at_once = max(warm, os.cpu_count() or 1) if at_once is None else at_once
        self._queue = AdmissionQueue(self._at_once, queue_limit)
        self._workers = Workers(self._at_once)
        self._deadline_s: float | None = None
        """Less time than the policy gives a job."""
        self._whole: Pool | None = None
        """For a pool made by ``with_limits``: the original pool, which must live as long."""
        # Not a method: standby sandboxes must not keep alive a pool that nobody holds any more.
        self._open = partial(_opened, backend, self.policy, self._python)
        first = self._open()  # here, so that a set-up that can't work fails at once
        try:
            self._warm = WarmSet(self._open, warm, idle_s, first)
        except BaseException:
            close_whole(first)
            raise
        for let_go in (self._warm.let_go, self._workers.stop):
            weakref.finalize(self, let_go).atexit = False

    # ---- jobs

    def with_limits(self, *, wall_time_s: float, **others: Never) -> Pool:
        """The same pool with less time for each job: ``pool.with_limits(wall_time_s=2).call(…)``."""
        for name in others:
            raise UsageError(f"{name}: the sandboxes of a pool are made before the job is known",
                             hint="make another pool for jobs with other limits")  # fmt: skip
        limited = copy(self)
        limited._whole = self
        limited._deadline_s = deadline_of(self.policy, wall_time_s, "pool")
        return limited

    def run(
        self,
        job: Job | Sequence[str | os.PathLike[str]],
        *,
        timeout: float | None = None,
        on_output: OnOutput | None = None,
        **beside: Unpack[Beside],
    ) -> Outcome:
        """Run any command, with the keywords of ``ringfence.run``; ``timeout`` can only shorten the policy's time."""
        _refuse_function(job, "call")
        job = job_of(job, **beside)
        return self._within(timeout)._run(job, on_output)

    def run_source(
        self,
        source: str | bytes,
        *,
        arguments: Sequence[str] = (),
        name: str = "<job>",
        stdin: bytes | int | None = None,
        files: dict[str, bytes] | None = None,
        environment: dict[str, str] | None = None,
        timeout: float | None = None,
        on_output: OnOutput | None = None,
    ) -> Outcome:
        """Run Python source as ``python FILE`` would, without the start of an interpreter.

        >>> pool = Pool(warm=1)
        >>> pool.run_source("print(1 + 1)").stdout
        b'2\\n'
        >>> pool.close()
        """
        given = {"stdin": stdin, "files": files or {}, "environment": environment or {}}
        job = self.source_job(source, name, arguments, **given)
        return self._within(timeout)._run(job, on_output)

    def call(self, function: Callable[..., Any], /, *args: object, **kwargs: object) -> Any:
        """Return what the function returns; CallError with the guest's own traceback if it raises.

        >>> with Pool(warm=1) as pool:
        ...     pool.call(lambda a, b: a * b, 6, 7)
        42
        """
        return self.try_call(function, *args, **kwargs).value

    def try_call(self, function: Callable[..., Any], /, *args: object, **kwargs: object) -> CallResult:
        """The same as data: a value, or why there is none. Nothing that the guest does raises here."""
        packed, arguments = callables.pack(function), callables.pack_arguments(args, kwargs)
        return self._call(packed, arguments, callables.name_of(function))

    def submit_call(self, function: Callable[..., Any], /, *args: object, **kwargs: object) -> CallFuture:
        """The same in the background: a ``concurrent.futures.Future`` of the value.

        >>> with Pool(warm=1) as pool:
        ...     pool.submit_call(max, 3, 4).result()
        4
        """
        from ringfence.engine.job_future import CallFuture

        packed, arguments = callables.pack(function), callables.pack_arguments(args, kwargs)
        return CallFuture(self, self._call_job(packed, arguments, callables.name_of(function)))

    def map(
        self,
        function: Callable[..., Any],
        items: Iterable[object],
        *,
        progress: bool = False,
        timeout: float | None = None,
    ) -> list[Any]:
        """The function's value for every item, in order, as many at a time as the pool runs.

        The first failure, in the order of the items, is raised when the running ones have ended; no more are begun.
        ``timeout``: for each item; it can only shorten the policy's time.
        """
        return self._map(function, items, lambda done: done.value, progress, timeout)

    def try_map(
        self,
        function: Callable[..., Any],
        items: Iterable[object],
        *,
        progress: bool = False,
        timeout: float | None = None,
    ) -> list[CallResult]:
        """The same for items that may fail: how each ended, as ``try_call`` gives it.

        >>> with Pool(warm=1) as pool:
        ...     [done.problem or done.value for done in pool.try_map(lambda n: 6 // n, [2, 0])]
        [3, 'ZeroDivisionError: integer division or modulo by zero']
        """
        return self._map(function, items, lambda done: done, progress, timeout)

    def _map(
        self,
        function: Callable[..., Any],
        items: Iterable[object],
        take: Callable[[CallResult], Any],
        progress: bool,
        timeout: float | None,
    ) -> list[Any]:
        from ringfence.engine.mapping import map_in_order

        packed, name, within = callables.pack(function), callables.name_of(function), self._within(timeout)

        def one(item: object) -> Any:
            return take(within._call(packed, callables.pack_arguments((item,), {}), name))

        return map_in_order(one, list(items), self._at_once, progress=progress)

    def submit(
        self,
        job: Job | Sequence[str | os.PathLike[str]],
        *arguments: Never,
        timeout: float | None = None,
        on_output: OnOutput | None = None,
        **beside: Unpack[Beside],
    ) -> Ticket:
        """Run it in the background; the ticket waits for its outcome, or cancels it."""
        _refuse_function(job, "submit_call")
        if arguments:
            raise UsageError("submit takes one command", hint="write submit([program, argument, …])")
        job = job_of(job, **beside)
        return Ticket(self._within(timeout), job, on_output)

    def submit_many(self, jobs: Iterable[Handed], *, timeout: float | None = None) -> list[JobFuture]:
        """Any number of jobs in one call, without a thread each: a future for each, in order, which can be awaited.

        All are checked and queued before this returns. Text or bytes are a Python source, a list of texts or a ``Job``
        is a command: the result is an Outcome. A function, or a tuple of one and its arguments, is a call: the result
        is its value. If one of them is invalid, that is a UsageError, and none begins.

        >>> with Pool(warm=1) as pool:
        ...     [future.result() for future in pool.submit_many([(max, 3, 4), (len, "abc")])]
        [4, 3]
        """
        from ringfence.engine.handing_over import submit_all

        return submit_all(self._within(timeout), jobs)

    def submit_watched(self, job: Job, told: Listeners, *, timeout: float | None = None) -> JobFuture:
        """One job, with listeners for its output and events while it runs; ``source_job`` makes a Python job."""
        from ringfence.engine.job_future import JobFuture

        return JobFuture(self._within(timeout), job, told)

    async def run_async(self, job: Handed, *, timeout: float | None = None) -> Any:
        """One job of ``submit_many``, awaited; cancelling the task ends the sandbox."""
        (future,) = self.submit_many([job], timeout=timeout)
        return await future

    def _within(self, timeout: float | None) -> Pool:
        return self if timeout is None else self.with_limits(wall_time_s=timeout)

    def source_job(self, source: str | bytes, name: str = "<job>", arguments: Sequence[str] = (), **given: Any) -> Job:
        """Python source as a job of this pool; ``given``: its input, files and environment."""
        work = python_job.source_job(source, name=name, arguments=arguments, surroundings=self.surroundings)
        return Job(argv=("python", name, *arguments), python=work, **given)

    def _call_job(self, function: bytes, arguments: bytes, name: str) -> Job:
        work = python_job.call_job(function, arguments, surroundings=self.surroundings)
        return Job(argv=("python", name), channel=True, python=work)

    def _call(self, function: bytes, arguments: bytes, name: str) -> CallResult:
        return call_result(self._run(self._call_job(function, arguments, name), None))

    def _run(self, job: Job, on_output: OnOutput | None) -> Outcome:
        with self._enter() as occupant, with_own_input(job) as job:
            return self._take_turn(job, self._queue.join(), Listeners(on_output=on_output, attach=occupant.attach))

    def _enter(self) -> Occupant:
        if self._owner != os.getpid():
            raise UsageError("a pool stays with the process that made it", hint="make a new one after fork")
        return self._occupancy.enter()

    def _take_turn(self, job: Job, slot: Slot, listeners: Listeners) -> Outcome:
        try:
            if not slot.wait():
                raise UsageError(NEVER.format(slot.refused))
            return self._deliver(job, listeners)
        finally:
            self._queue.leave(slot)

    def _deliver(self, job: Job, listeners: Listeners) -> Outcome:
        """Run it in a sandbox that stands by, or in a new one if that ended before it got the job.

        A new sandbox may still be asked of a zygote that is being killed. Once that sandbox has failed the zygote is
        known to be gone, and the next sandbox comes from a new zygote.
        """
        for source in (self._warm.take, self._open):
            try:
                return self._run_in(source(), job, listeners)
            except SetupError as error:
                if error.step not in UNDELIVERED:
                    raise
        return self._run_in(self._open(), job, listeners)

    def _run_in(self, box: StandbyBox, job: Job, listeners: Listeners) -> Outcome:
        try:
            return supervise(
                box, job, self.policy, partial=self._partial, listeners=listeners, deadline_s=self._deadline_s
            )
        finally:
            self._warm.give_back(box)

    # ---- the end

    def close(self) -> None:
        """End everything that runs, and leave nothing behind.

        Called from within one of its jobs, by an output callback, it takes effect when that job has ended.
        """
        if self._owner != os.getpid():
            return
        left = self._occupancy.close(self._queue.close, self._remove)
        if left:  # no exception: a job must not be able to cause one in its caller
            warnings.warn(left, RuntimeWarning, stacklevel=2)

    def _remove(self) -> str:
        self._workers.stop()
        return self._warm.close()

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Pool:
        return self

    async def __aexit__(self, *_: object) -> None:
        from asyncio import to_thread

        await to_thread(self.close)


def _refuse_function(job: object, instead: str) -> None:
    if callable(job):
        hint = f"write pool.{instead}(function, argument, …)"
        raise UsageError(f"{callables.name_of(job)} is a function, not a command", hint=hint)


def _opened(backend: Backend, policy: SandboxPolicy, python: PythonJobs) -> StandbyBox:
    """A new sandbox that stands by."""
    box = backend.open(policy)
    try:
        box.prewarm(python)
    except BaseException:
        close_whole(box)
        raise
    return box


def _check_room(warm: int) -> None:
    """Otherwise the sandboxes would take the last descriptors, and anything else that the caller opens would fail."""
    import resource

    most, needed = resource.getrlimit(resource.RLIMIT_NOFILE)[0], _DESCRIPTORS_EACH * warm + _SPARE_DESCRIPTORS
    if most != resource.RLIM_INFINITY and needed > most:
        raise UnavailableError(
            f"warm: {warm} sandboxes need {needed} descriptors, but this process may open only {most}",
            missing=("descriptors",), hint=f"ulimit -n {needed}, or resource.setrlimit before the pool is made",
        )  # fmt: skip


def _check_number(warm: int, most: int) -> None:
    if most and warm > most:
        raise UsageError(f"warm: {warm} sandboxes; a pool at this isolation level has at most {most} at one time")


def _check(*, warm: int, at_once: int | None, queue_limit: int | None, idle_s: float) -> None:
    counts = {"warm": (warm, 0, False), "at_once": (at_once, 1, True), "queue_limit": (queue_limit, 0, True)}
    for name, (value, least, may_miss) in counts.items():
        if not (may_miss and value is None) and (type(value) is not int or value < least):
            raise UsageError(f"{name}: {value!r} must be an integer of at least {least}")
    if not isinstance(idle_s, int | float) or not idle_s > 0:
        raise UsageError(f"idle_s: {idle_s!r} must be a number of seconds greater than 0")


def _names(preload: Iterable[str]) -> tuple[str, ...]:
    listed = isinstance(preload, Iterable) and not isinstance(preload, str | bytes)
    names = tuple(preload) if listed else (None,)
    if not all(isinstance(name, str) for name in names):
        raise UsageError(f"preload: {preload!r} is not a list of names of modules", hint="write preload=['json']")
    return names  # type: ignore[return-value]
