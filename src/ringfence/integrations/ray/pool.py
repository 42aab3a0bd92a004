"""``RayPool``: the pool's methods, with the sandboxes on the nodes of a Ray cluster.

It adds nothing to what a sandbox enforces. Every job runs in a sandbox of its own on some node; what comes back is the
same Outcome, and a value is decoded here, by the same checks, from the bytes that the guest wrote.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ringfence import __version__
from ringfence.cluster.blobs import Blobs
from ringfence.cluster.dispatch import Dispatch
from ringfence.cluster.ray_module import AUTO, addresses_of, connect, slots_of
from ringfence.cluster.routes import check_route
from ringfence.engine.call_result import CallResult, call_result
from ringfence.engine.keywords import deadline_of, job_of
from ringfence.engine.mapping import Bar
from ringfence.engine.run import traits_of
from ringfence.errors import SandboxError, UsageError
from ringfence.integrations.ray.wire import CallWork, PoolSettings, SourceWork, WiredJob, wired
from ringfence.integrations.ray.worker import run_jobs
from ringfence.model.job import Job
from ringfence.model.limits import IsolationLevel
from ringfence.model.outcome import Outcome
from ringfence.model.policy import HOST_NETWORK, SandboxPolicy
from ringfence.python_jobs import pack as callables

if TYPE_CHECKING:
    from typing import Unpack

    from ringfence.engine.keywords import Beside

_WIDEST, _LARGEST = 8, 32
_PARTS = 4
"""Each worker gets at least this many tasks of a map, if there are enough items: so no worker is idle at the end."""


class RayPool:
    """Sandboxes on the nodes of a cluster that demands its token.

    ``address``: ``host:port`` of the cluster; absent: that of this machine. ``width``: how many sandboxes one worker
    process runs at once, each a slot of its node; absent: up to 8. ``preload``: modules that Python jobs find imported.
    """

    def __init__(
        self, policy: SandboxPolicy | None = None, *,
        address: str = AUTO, width: int | None = None, preload: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self.policy = policy or SandboxPolicy(isolation=IsolationLevel.STRICT)
        _check_apart(self.policy)
        self._ray = connect(address)
        rules = self.policy.network_rule
        check_route(rules if isinstance(rules, tuple) else (), addresses_of(self._ray))
        width = min(_WIDEST, _smallest_node(self._ray.nodes())) if width is None else width
        if type(width) is not int or not 1 <= width <= slots_of(self._ray):
            raise UsageError(f"width: {width!r} must be from 1 to the {slots_of(self._ray)} slots of the cluster")
        self._settings = PoolSettings(policy=self.policy, preload=tuple(preload), width=width, version=__version__)
        self._blobs = Blobs(self._ray)
        self._open: set[Dispatch] = set()
        self._closed = False

    # ---- jobs

    def run(
        self, job: Job | Sequence[str | os.PathLike[str]], *, timeout: float | None = None, on_output: None = None,
        **beside: Unpack[Beside],
    ) -> Outcome:  # fmt: skip
        """Any command, with the keywords of ``ringfence.run`` except ``cwd``, a directory of this machine, and
        ``on_output``."""
        _refuse_on_output(on_output)
        return _outcome(self._one(wired(self._blobs, job_of(job, **beside)), timeout))

    def run_source(
        self, source: str | bytes, *, arguments: Sequence[str] = (), name: str = "<job>", stdin: bytes | None = None,
        files: dict[str, bytes] | None = None, environment: dict[str, str] | None = None, timeout: float | None = None,
        on_output: None = None,
    ) -> Outcome:  # fmt: skip
        """Python source, as ``python FILE`` would run it."""
        _refuse_on_output(on_output)
        given = {"stdin": stdin, "files": files or {}, "environment": environment or {}}
        return _outcome(self._one(self._source(source, name, arguments, given), timeout))

    def call(self, function: Callable[..., Any], /, *args: object, **kwargs: object) -> Any:
        """What the function returns; CallError with the guest's own traceback where it raises."""
        return self.try_call(function, *args, **kwargs).value

    def try_call(self, function: Callable[..., Any], /, *args: object, **kwargs: object) -> CallResult:
        """The same, with all that is known of how it ended, and never an exception of the guest's choice."""
        work = self._call(callables.pack(function), callables.pack_arguments(args, kwargs), callables.name_of(function))
        return call_result(_outcome(self._one(work, None)))

    def map(
        self, function: Callable[..., Any], items: Iterable[object], *,
        progress: bool = False, timeout: float | None = None,
    ) -> list[Any]:  # fmt: skip
        """The function's value for every item, in order; the first failure in that order is raised at the end."""
        return [done.value for done in self.try_map(function, items, progress=progress, timeout=timeout)]

    def try_map(
        self, function: Callable[..., Any], items: Iterable[object], *,
        progress: bool = False, timeout: float | None = None,
    ) -> list[CallResult]:  # fmt: skip
        """How each item ended, in order."""
        packed, name = callables.pack(function), callables.name_of(function)
        jobs = [self._call(packed, callables.pack_arguments((item,), {}), name) for item in items]
        ends = self._in_order(jobs, timeout, progress)
        return [call_result(_outcome(end)) for end in ends]

    def run_sources(
        self, sources: Sequence[str | bytes], *, timeout: float | None = None
    ) -> Iterator[tuple[int, Outcome]]:
        """Many sources: the place and the outcome of each, as they come, each exactly once."""
        jobs = [self._source(source, "<job>", (), {}) for source in sources]
        for place, end in self._as_they_come(jobs, timeout):
            yield place, _outcome(end)

    # ---- the end

    def close(self) -> None:
        """End everything that runs; the pools on the nodes close themselves."""
        self._closed = True
        for dispatch in [*self._open]:
            dispatch.close()
        self._blobs.close()

    def __enter__(self) -> RayPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- tasks

    def _source(self, source: str | bytes, name: str, arguments: Sequence[str], given: dict[str, Any]) -> WiredJob:
        if not isinstance(source, str | bytes):
            raise UsageError(f"a source must be a string or bytes, not {type(source).__name__}")
        if isinstance(arguments, str) or not all(isinstance(part, str) for part in (name, *arguments)):
            raise UsageError("the name and the arguments of a source must be strings",
                             hint="write arguments=['one', 'two']")  # fmt: skip
        is_text = isinstance(source, str)
        data = source.encode("utf-8", "surrogatepass") if isinstance(source, str) else source
        work = SourceWork(source=self._blobs.of(data), is_text=is_text, name=name, arguments=tuple(arguments))
        return wired(self._blobs, Job(argv=("python", name, *arguments), **given), work)

    def _call(self, function: bytes, arguments: bytes, name: str) -> WiredJob:
        work = CallWork(function=self._blobs.of(function), arguments=self._blobs.of(arguments), name=name)
        return wired(self._blobs, Job(argv=("python", name), channel=True), work)

    def _one(self, job: WiredJob, timeout: float | None) -> object:
        ((_, end),) = self._as_they_come([job], timeout)
        return end

    def _in_order(self, jobs: Sequence[WiredJob], timeout: float | None, progress: bool) -> list[object]:
        ends: list[object] = [None] * len(jobs)
        bar = Bar(len(jobs), sys.stderr if progress else None)
        try:
            for place, end in self._as_they_come(jobs, timeout):
                ends[place] = end
                bar.step()
        finally:
            bar.close()
        return ends

    def _as_they_come(self, jobs: Sequence[WiredJob], timeout: float | None) -> Iterator[tuple[int, object]]:
        """Place and end of each job, exactly once: a task's name is its place, and its result is taken once."""
        if self._closed:
            raise UsageError("the pool is closed", hint="make a new one")
        deadline = deadline_of(self.policy, timeout, "pool")
        dispatch = Dispatch(self._ray, run_jobs, width=self._settings.width)
        self._open.add(dispatch)
        try:
            size = self._task_size(len(jobs))
            for start in range(0, len(jobs), size):
                dispatch.submit(str(start), self._settings, jobs[start : start + size], deadline)
            for name, ends in dispatch.results():
                count = len(jobs[int(name) : int(name) + size])
                whole = isinstance(ends, list) and len(ends) == count
                yield from enumerate(ends if whole else [ends] * count, int(name))  # type: ignore[arg-type]
            if self._closed:
                raise UsageError("the pool was closed, and what ran in it was ended")
        finally:
            dispatch.close()
            self._open.discard(dispatch)

    def _task_size(self, count: int) -> int:
        """How many jobs a task has: with more, each costs less, but all run again if their node is lost."""
        workers = max(1, slots_of(self._ray) // self._settings.width)
        return max(1, min(_LARGEST, count // (workers * _PARTS)))


def _outcome(end: object) -> Outcome:
    """What a node said of a job; its error is raised here."""
    if isinstance(end, SandboxError):
        raise end
    if not isinstance(end, Outcome):
        raise UsageError(f"a node answered with {type(end).__name__}", hint="install the same ringfence on every node")
    return end


def _refuse_on_output(on_output: object) -> None:
    """A job whose node is lost begins again elsewhere, and its first output would be reported twice."""
    if on_output is not None:
        raise UsageError("on_output: on a cluster a job may be started again, which would report its output twice",
                         hint="take it from the outcome, or use ringfence.Pool")  # fmt: skip


def _smallest_node(nodes: Sequence[Any]) -> int:
    """A task must fit on every node that has slots at all."""
    from ringfence.cluster.ray_module import SLOTS

    slots = [int(node["Resources"].get(SLOTS, 0)) for node in nodes if node.get("Alive")]
    return min((count for count in slots if count), default=1)


def _check_apart(policy: SandboxPolicy) -> None:
    """UsageError if a job could reach the cluster: whoever reaches its ports and has its token runs code everywhere."""
    if not traits_of(policy.isolation).files_apart:
        raise UsageError(f"isolation {policy.isolation}: a job could read the cluster's token",
                         hint="jobs of a cluster run under strict")  # fmt: skip
    if policy.network_rule == HOST_NETWORK:
        raise UsageError("network host: a job would reach the ports of the cluster",
                         hint="name the hosts to reach, or none")  # fmt: skip
