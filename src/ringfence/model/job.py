"""``Job``: what to run. It says nothing about what is allowed; that is the policy's."""

from __future__ import annotations

import os
from _collections_abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from ringfence.errors import UsageError
from ringfence.model.record import record
from ringfence.model.system_text import is_system_text
from ringfence.model.ways.walk import absolute

MAX_ARGUMENT_BYTES = 128 * 1024
"""Linux' MAX_ARG_STRLEN: one longer argument makes execve fail for a reason nobody understands."""


@record
class Job:
    """A command with what it is given: arguments, environment, input and files.

    >>> Job(argv=("echo", "hello")).argv
    ('echo', 'hello')
    """

    argv: tuple[str, ...]
    cwd: str | None = None
    """Absent: a fresh private directory that is removed afterwards."""
    environment: Mapping[str, str] = MappingProxyType({})
    """Set for this job, over what the policy sets."""
    stdin: bytes | int | None = None
    """Bytes, or a descriptor to hand over (``strict`` passes a file's content on); absent: the null device."""
    files: Mapping[str, bytes] = MappingProxyType({})
    """Written below the working directory before the start, by relative path; absent: none."""
    channel: bool = False
    """Give the job a descriptor of its own for a result, beside its output (see Outcome.message)."""
    terminal: bool = False
    """Give the job a terminal of its own in place of pipes; both streams then arrive as stdout."""
    stderr_apart: bool = False
    """With a terminal: leave stderr a pipe, for a caller whose own stderr goes somewhere else."""

    python: bytes = b""
    """Python work of ``python_jobs.job``, for a standby sandbox; ``argv`` then only names it."""
    foreign: bool = False
    """Somebody other than the caller chose its arguments and variables, e.g. a client of the service: what these name
    never decides what of the host is shown."""

    def __post_init__(self) -> None:
        if isinstance(self.argv, str | bytes) or not isinstance(self.argv, Iterable):
            raise UsageError(f"{self.argv!r} is not a list of arguments", hint="write [program, argument, …]")
        object.__setattr__(self, "argv", tuple(_text(part) for part in self.argv))
        object.__setattr__(self, "cwd", None if self.cwd is None else absolute(_text(self.cwd)))
        object.__setattr__(self, "environment", _checked_environment(self.environment))
        object.__setattr__(self, "files", MappingProxyType(dict(self.files)))
        _check_argv(self.argv)
        _check_input(self.stdin, self.terminal)
        _check_files(self.files)

    @classmethod
    def of(cls, what: Job | Sequence[str | os.PathLike[str]]) -> Job:
        """Return a job as it is, or make one from a command."""
        if isinstance(what, Job):
            return what
        if isinstance(what, str | bytes):
            hint = "write [program, argument, …]"
            raise UsageError("command must be a list of strings, not a single string", hint=hint)
        return cls(argv=what)  # type: ignore[arg-type]  # made uniform and checked there


def _text(part: object) -> str:
    if not isinstance(part, str | bytes | os.PathLike):
        raise UsageError(f"{part!r} is not an argument; arguments must be strings or paths")
    # A str enum becomes a plain str too: nothing else can be sent to the leader.
    return str.__str__(os.fsdecode(part))


def _check_argv(argv: tuple[str, ...]) -> None:
    if not argv or not argv[0]:
        raise UsageError("no command was given", hint="ringfence run -- PROGRAM ARGUMENTS…")
    for part in argv:
        if not is_system_text(part):
            raise UsageError(f"{part!r} contains a NUL or an unpaired surrogate (not valid Unicode)",
                             hint="remove it: no program can receive it")  # fmt: skip
        if len(os.fsencode(part)) >= MAX_ARGUMENT_BYTES:
            raise UsageError("an argument is longer than 128 KiB", hint="pass it in a file or on stdin")


def _checked_environment(environment: Mapping[str, str]) -> Mapping[str, str]:
    for name, value in environment.items():
        if not name or not is_system_text(name) or "=" in name or not is_system_text(value):
            raise UsageError(f"environment: {name!r}: {value!r} must be name/value strings without NUL")
    return MappingProxyType({_text(name): _text(value) for name, value in environment.items()})


def _check_input(stdin: object, terminal: bool) -> None:
    descriptor = isinstance(stdin, int) and not isinstance(stdin, bool) and stdin >= 0
    if stdin is not None and not descriptor and not isinstance(stdin, bytes):
        raise UsageError(f"stdin must be bytes or a descriptor, not {stdin!r}")
    if terminal and isinstance(stdin, bytes):
        raise UsageError("a job with a terminal needs a descriptor as stdin, not bytes")


def _check_files(files: Mapping[str, bytes]) -> None:
    for name, content in files.items():
        if not is_system_text(name) or {"", ".", ".."} & set(name.split("/")):
            raise UsageError(f"{name!r} must be a relative path below the working directory")
        if not isinstance(content, bytes):
            raise UsageError(f"{name!r}: the content of a file must be bytes, not {type(content).__name__}")
