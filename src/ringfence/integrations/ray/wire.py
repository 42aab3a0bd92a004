"""Jobs on their way to a node: what the caller asked for, with long values sent by content. Plain records, ours alone.

Nothing that a guest wrote is ever loaded as a pickle: what comes back is an Outcome of our own making, and a value in
it is bytes until the caller's side has decoded it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ringfence.cluster.blobs import Blob, Blobs, Received
from ringfence.cluster.ray_module import RayModule
from ringfence.errors import UsageError
from ringfence.model.job import Job
from ringfence.model.policy import SandboxPolicy
from ringfence.model.record import record, replace
from ringfence.python_jobs import job as python_job


@record
class PoolSettings:
    """What all jobs of a pool have in common."""

    policy: SandboxPolicy
    preload: tuple[str, ...]
    width: int
    """How many sandboxes one worker runs at once."""
    version: str


@record
class SourceWork:
    """Python source."""

    source: Blob
    is_text: bool
    name: str
    arguments: tuple[str, ...]


@record
class CallWork:
    """A function and its arguments, packed."""

    function: Blob
    arguments: Blob
    name: str


@record
class WiredJob:
    """Describes one job. The rest of it stands in ``job``, without its files and its input."""

    job: Job
    work: SourceWork | CallWork | None = None
    """Absent: a command."""
    stdin: Blob | None = None
    files: Mapping[str, Blob] = MappingProxyType({})


def wired(blobs: Blobs, job: Job, work: SourceWork | CallWork | None = None) -> WiredJob:
    """Take a job apart; UsageError for what can't leave this machine."""
    if isinstance(job.stdin, int):
        raise UsageError("a descriptor stays on this machine", hint="give the input as bytes")
    if job.cwd is not None:
        raise UsageError("cwd names a directory of this machine", hint="send files=, or use ringfence.Pool")
    files = {name: blobs.of(data) for name, data in job.files.items()}
    stdin = None if job.stdin is None else blobs.of(job.stdin)
    return WiredJob(job=replace(job, stdin=None, files={}), work=work, stdin=stdin, files=files)


def unwired(wire: WiredJob, received: Received, ray: RayModule, surroundings: python_job.Surroundings) -> Job:
    """Put it together again, on a node."""

    def data(blob: Blob) -> bytes:
        return received.data(blob, ray)

    python = b""
    if isinstance(wire.work, SourceWork):
        source: str | bytes = data(wire.work.source)
        source = source.decode("utf-8", "surrogatepass") if wire.work.is_text else source  # type: ignore[union-attr]
        python = python_job.source_job(source, name=wire.work.name, arguments=wire.work.arguments,
                                       surroundings=surroundings)  # fmt: skip
    elif isinstance(wire.work, CallWork):
        python = python_job.call_job(data(wire.work.function), data(wire.work.arguments), surroundings=surroundings)
    return replace(
        wire.job, python=python, stdin=None if wire.stdin is None else data(wire.stdin),
        files={name: data(blob) for name, blob in wire.files.items()},
    )  # fmt: skip
