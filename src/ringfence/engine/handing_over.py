"""Many jobs of several kinds in one call: which kind each of them is, and the futures of all or none of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence

from ringfence.engine.job_future import CallFuture, JobFuture
from ringfence.errors import UsageError
from ringfence.model.job import Job
from ringfence.python_jobs import pack as callables

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeAlias

    from ringfence.engine.pool import Pool

    Command: TypeAlias = Sequence[str | os.PathLike[str]]
    Handed: TypeAlias = str | bytes | Job | Command | Callable[[], Any] | tuple[Any, ...]

_HINT = (
    "a source must be a string, a command a list of strings or a Job, a call a function or a tuple of one and its "
    "arguments"
)


def submit_all(pool: Pool, jobs: Iterable[Handed]) -> list[JobFuture]:
    """Check all of them first, then put all into the line; an error leaves none of them behind."""
    if isinstance(jobs, str | bytes | Job) or not isinstance(jobs, Iterable):
        raise UsageError(f"{_shown(jobs)} is not a list of jobs", hint="write submit_many([job, job, …])")
    packed = _Packed()
    ready = [_made(pool, job, place, packed) for place, job in enumerate(jobs)]
    futures: list[JobFuture] = []
    try:
        for kind, job in ready:
            futures.append(kind(pool, job))
    except BaseException:  # too many for the line, a pool that closes, Ctrl-C
        for future in reversed(futures):  # from the end of the line: otherwise those behind would move up
            future.cancel()
        raise
    return futures


def _made(pool: Pool, job: Handed, place: int, packed: _Packed) -> tuple[type[JobFuture], Job]:
    try:
        if isinstance(job, str | bytes):
            return JobFuture, pool.source_job(job)
        if isinstance(job, tuple) and job and callable(job[0]):
            return CallFuture, packed.call(pool, job[0], job[1:])
        if callable(job):
            return CallFuture, packed.call(pool, job, ())
        if isinstance(job, Job | Sequence):
            return JobFuture, Job.of(job)  # type: ignore[arg-type]  # checked there
    except UsageError as error:
        raise UsageError(f"jobs[{place}]: {error}", hint=error.hint or _HINT) from error
    raise UsageError(f"jobs[{place}]: {_shown(job)} is not a job", hint=_HINT)


class _Packed:
    """A function that is called many times is packed once."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[object, bytes]] = {}

    def call(self, pool: Pool, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Job:
        if id(function) not in self._known:
            self._known[id(function)] = function, callables.pack(function)
        packed = callables.pack_arguments(arguments, {})
        return pool._call_job(self._known[id(function)][1], packed, callables.name_of(function))


def _shown(thing: object) -> str:
    text = repr(thing)
    return text if len(text) <= 60 else f"{text[:57]}…"
