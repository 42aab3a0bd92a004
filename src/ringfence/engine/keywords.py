"""``cwd``, ``input``, ``timeout`` and ``env``: what users of ``subprocess`` say beside a command.

They complete a job and shorten its time; they are no second way to say what a policy says. Other keywords of
``subprocess`` are refused, with a hint how to get the same here.
"""

from __future__ import annotations

import os
from _collections_abc import Mapping, Sequence

from ringfence.errors import PolicyError, UsageError
from ringfence.model.job import Job
from ringfence.model.policy import SandboxPolicy
from ringfence.model.record import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Never, TypedDict

    class Beside(TypedDict, total=False):
        """The keywords that complete a job."""

        cwd: str | os.PathLike[str] | None
        input: bytes | None
        env: Mapping[str, str] | None


KNOWN = "cwd, input, timeout and env"
_CAPTURED = "output is always captured: outcome.stdout, outcome.stderr"
_BYTES = "output is bytes: outcome.stdout.decode()"
_ELSEWHERE = {
    "shell": "run ['sh', '-c', TEXT]",
    "check": "look at outcome.ok; the failure of a program raises no exception",
    "stdin": "input takes bytes, Job(argv=…, stdin=…) a descriptor",
    **dict.fromkeys(("capture_output", "stdout", "stderr"), _CAPTURED),
    **dict.fromkeys(("text", "encoding", "errors", "universal_newlines"), _BYTES),
}


def job_of(
    what: Job | Sequence[str | os.PathLike[str]],
    *,
    cwd: str | os.PathLike[str] | None = None,
    input: bytes | None = None,
    env: Mapping[str, str] | None = None,
    **unknown: Never,
) -> Job:
    """A command or a job, with the keywords given beside it. ``env`` adds to the job's environment."""
    for name in unknown:
        raise UsageError(f"unknown keyword {name!r}", hint=_ELSEWHERE.get(name, f"the keywords are {KNOWN}"))
    job = Job.of(what)
    if cwd is not None:
        job = replace(_without(job, "cwd"), cwd=_path(cwd))
    if input is not None:
        job = replace(_without(job, "stdin"), stdin=_fed(input))
    return job if env is None else replace(job, environment=_added(job.environment, env))


def _without(job: Job, field: str) -> Job:
    if getattr(job, field) is not None:
        raise UsageError(f"{field} is set in the job and as a keyword", hint="set it once")
    return job


def _path(cwd: object) -> str:
    if not isinstance(cwd, str | bytes | os.PathLike):
        raise UsageError(f"cwd: {cwd!r} is not a path", hint="name a directory")
    return os.fsdecode(cwd)


def _fed(input: object) -> bytes:
    if not isinstance(input, bytes | bytearray | memoryview):
        hint = "write input=TEXT.encode()" if isinstance(input, str) else "a descriptor goes into Job(stdin=…)"
        raise UsageError(f"input: {type(input).__name__} must be bytes", hint=hint)
    return bytes(input)


def _added(environment: Mapping[str, str], env: object) -> Mapping[str, str]:
    if not isinstance(env, Mapping):
        raise UsageError(f"env: {type(env).__name__} is not a mapping", hint="write env={'NAME': 'text'}")
    return {**environment, **env}


def policy_of(policy: SandboxPolicy | None, timeout: float | None = None) -> SandboxPolicy:
    """The policy, with the time that was asked for in place of its own."""
    policy = SandboxPolicy() if policy is None else policy
    if not isinstance(policy, SandboxPolicy):
        raise UsageError(f"policy: {type(policy).__name__} is not a SandboxPolicy",
                         hint="write SandboxPolicy(…), or put arguments into the list of the command")  # fmt: skip
    if timeout is None:
        return policy
    try:
        return policy.with_changes(wall_time_s=timeout)
    except PolicyError as error:
        raise UsageError(f"timeout: {error.problem}", hint="write a number of seconds, or text such as 2m") from None


def deadline_of(policy: SandboxPolicy, timeout: float | None, place: str) -> float | None:
    """A shorter time for one job in a place whose policy stays as it is."""
    if timeout is None:
        return None
    asked = policy_of(policy, timeout).wall_time_s
    if asked > policy.wall_time_s:
        raise UsageError(f"timeout: {asked:g} s is more than the {policy.wall_time_s:g} s that the {place} allows",
                         hint=f"make the {place} with a longer wall_time_s")  # fmt: skip
    return asked
