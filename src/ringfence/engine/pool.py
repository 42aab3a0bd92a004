"""``Pool``: many small jobs, each in a sandbox of its own that stood by for it.

A door for callers that run machine-written snippets by the thousand. It adds nothing to what a sandbox holds: every
job gets a new one, under the same policy, and nothing is used twice. Results of calls come back in a safe encoding.
"""

from __future__ import annotations

import os
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial

from ringfence.backends.led_visit import UNDELIVERED, PythonJobs
from ringfence.engine.line import Line, Turn
from ringfence.engine.presence import Presence, Stay, comes
from ringfence.engine.returned import Returned, returned
from ringfence.engine.run import backend_for, close_whole, refuse
from ringfence.engine.standing import Standing
from ringfence.engine.supervision import Listeners, supervise
from ringfence.errors import SetupError, UnavailableError, UsageError, is_of_a_call
from ringfence.model import callables, python_job
from ringfence.model.events import OnOutput
from ringfence.model.job import Job
from ringfence.model.limits import IsolationLevel
from ringfence.model.outcome import Outcome
from ringfence.model.policy import SandboxPolicy
from ringfence.model.record import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ringfence.backends.contract import Backend, StandbyBox, Visit

_SIGKILL = 9
# What a sandbox that stands by takes of this process, and what must be left for jobs and for everything else.
_DESCRIPTORS_EACH, _SPARE_DESCRIPTORS = 4, 64


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
        _check(warm=warm, at_once=at_once, queue_limit=queue_limit, idle_s=idle_s)
        _check_room(warm)
        self._owner = os.getpid()
        backend = backend_for(self.policy.isolation)
        self._partial = bool(refuse(backend, self.policy))
        self._python = PythonJobs(preload=_names(preload), packages=python_job.package_folders())
        self._presence = Presence("pool")
        self._at_once = max(warm, os.cpu_count() or 1) if at_once is None else at_once
        self._line = Line(self._at_once, queue_limit)
        # Not a method: what stands must not keep alive a pool that everybody has forgotten.
        self._open = partial(_opened, backend, self.policy, self._python)
        first = self._open()  # here, so that what can't work is said at once
        try:
            self._standing = Standing(self._open, warm, idle_s, first)
        except BaseException:
            close_whole(first)
            raise
        weakref.finalize(self, self._standing.let_go).atexit = False

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

    def call(self, function: Callable[..., Any], /, *args: object, **kwargs: object) -> Any:
        """What the function returns; CallError with the guest's own traceback where it raises.

        >>> with Pool(warm=1) as pool:
        ...     pool.call(lambda a, b: a * b, 6, 7)
        42
        """
        return self.try_call(function, *args, **kwargs).value

    def try_call(self, function: Callable[..., Any], /, *args: object, **kwargs: object) -> Returned:
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

    def submit(
        self, job: Job | Sequence[str | os.PathLike[str]], *, on_output: OnOutput | None = None
    ) -> Ticket:
        """Run it in the background; the ticket waits for its outcome, or cancels it."""
        return Ticket(self, Job.of(job), on_output)

    @property
    def _surroundings(self) -> python_job.Surroundings:
        return python_job.Surroundings(path=("",), packages=self._python.packages)

    def _call(self, function: bytes, arguments: bytes, name: str) -> Returned:
        work = python_job.call_job(function, arguments, surroundings=self._surroundings)
        return returned(self._run(Job(argv=("python", name), channel=True, python=work), None))

    def _run(self, job: Job, on_output: OnOutput | None) -> Outcome:
        with self._enter() as stay, _with_own_input(job) as job:
            return self._take_turn(job, self._line.join(), Listeners(on_output=on_output, attach=stay.attach))

    def _enter(self) -> Stay:
        if self._owner != os.getpid():
            raise UsageError("a pool stays with the process that made it", hint="make a new one after fork")
        return self._presence.enter()

    def _take_turn(self, job: Job, turn: Turn, listeners: Listeners) -> Outcome:
        try:
            if not turn.wait():
                raise UsageError(f"the job never had its turn: {turn.refused}")
            return self._deliver(job, listeners)
        finally:
            self._line.leave(turn)

    def _deliver(self, job: Job, listeners: Listeners) -> Outcome:
        """Run it in a sandbox that stands by, or in a new one when that ended before it heard of the job.

        A new sandbox may still be asked of a zygote that is being killed. Its end is certain when that sandbox has
        failed, and the one after it comes from a new zygote.
        """
        for source in (self._standing.take, self._open):
            try:
                return self._run_in(source(), job, listeners)
            except SetupError as error:
                if error.step not in UNDELIVERED:
                    raise
        return self._run_in(self._open(), job, listeners)

    def _run_in(self, box: StandbyBox, job: Job, listeners: Listeners) -> Outcome:
        try:
            return supervise(box, job, self.policy, partial=self._partial, listeners=listeners)
        finally:
            self._standing.give_back(box)

    # ---- the end

    def close(self) -> None:
        """End everything that runs, and leave nothing behind.

        Called from within one of its jobs, by what is told of its output, it is done when that job has ended.
        """
        if self._owner != os.getpid():
            return
        left = self._presence.close(self._line.close, self._standing.close)
        if left:  # no exception: a job must not choose that its caller gets one
            warnings.warn(left, RuntimeWarning, stacklevel=2)

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Ticket:
    """A job under way in a pool."""

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
            job = held.enter_context(_with_own_input(job))
            self._turn = pool._line.join()
            held.callback(pool._line.leave, self._turn)
            work = threading.Thread(target=self._work, args=(job, on_output, held), name="ringfence-job", daemon=True)
            work.start()
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
        """End it, or take it out of the line; its place is free at once."""
        self._cancelled = True
        if not self._pool._line.withdraw(self._turn, "it was cancelled") and self._visit is not None:
            self._visit.signal(_SIGKILL)

    @property
    def done(self) -> bool:
        return self._ended.is_set()

    def result(self, timeout_s: float | None = None) -> Outcome:
        """Its outcome, as soon as there is one; TimeoutError when that takes longer."""
        if not comes(self._ended, timeout_s):
            raise TimeoutError("the job has not ended yet")
        if self._problem is not None:
            raise self._problem
        assert self._outcome is not None
        return self._outcome


@contextmanager
def _with_own_input(job: Job) -> Iterator[Job]:
    """Its caller may close the descriptor while it waits for its turn, and the number be something else by then."""
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


def _opened(backend: Backend, policy: SandboxPolicy, python: PythonJobs) -> StandbyBox:
    """A new sandbox that stands by."""
    box: StandbyBox = backend.open(policy)  # type: ignore[assignment]
    try:
        box.stand_by(python)
    except BaseException:
        close_whole(box)
        raise
    return box


def _check_room(warm: int) -> None:
    """Else the sandboxes would take the last descriptors, and whatever else the caller opens would fail."""
    import resource

    most, needed = resource.getrlimit(resource.RLIMIT_NOFILE)[0], _DESCRIPTORS_EACH * warm + _SPARE_DESCRIPTORS
    if most != resource.RLIM_INFINITY and needed > most:
        raise UnavailableError(
            f"warm: {warm} sandboxes need {needed} descriptors, this process may have {most}",
            missing=("descriptors",), hint=f"ulimit -n {needed}, or resource.setrlimit before the pool is made",
        )  # fmt: skip


def _check(*, warm: int, at_once: int | None, queue_limit: int | None, idle_s: float) -> None:
    counts = {"warm": (warm, 0, False), "at_once": (at_once, 1, True), "queue_limit": (queue_limit, 0, True)}
    for name, (value, least, may_miss) in counts.items():
        if not (may_miss and value is None) and (type(value) is not int or value < least):
            raise UsageError(f"{name}: {value!r} is not a whole number from {least} on")
    if not isinstance(idle_s, int | float) or not idle_s > 0:
        raise UsageError(f"idle_s: {idle_s!r} is no time")


def _names(preload: Iterable[str]) -> tuple[str, ...]:
    listed = isinstance(preload, Iterable) and not isinstance(preload, str | bytes)
    names = tuple(preload) if listed else (None,)
    if not all(isinstance(name, str) for name in names):
        raise UsageError(f"preload: {preload!r} is not a list of names of modules", hint="write preload=['json']")
    return names  # type: ignore[return-value]
