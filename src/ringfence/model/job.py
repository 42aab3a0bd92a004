"""``Job``: what to run. It says nothing about what is allowed; that is the policy's."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from ringfence.errors import UsageError
from ringfence.model.record import record

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
    """Absent: a fresh private folder that is removed afterwards."""
    environment: Mapping[str, str] = MappingProxyType({})
    """Set for this job, over what the policy sets."""
    stdin: bytes | int | None = None
    """Bytes to feed, or a descriptor to hand over; absent: the null device."""
    files: Mapping[str, bytes] = MappingProxyType({})
    """Written below the working folder before the start, by relative path; absent: none."""
    channel: bool = False
    """Give the job a descriptor of its own for a result, beside its output (see Outcome.message)."""
    terminal: bool = False
    """Give the job a terminal of its own in place of pipes; both streams then arrive as stdout."""

    def __post_init__(self) -> None:
        argv = tuple(self.argv) if not isinstance(self.argv, str | bytes) else ()
        object.__setattr__(self, "argv", tuple(_text(part) for part in argv))
        object.__setattr__(self, "cwd", None if self.cwd is None else os.path.abspath(os.fspath(self.cwd)))
        object.__setattr__(self, "environment", MappingProxyType(dict(self.environment)))
        object.__setattr__(self, "files", MappingProxyType(dict(self.files)))
        _check_argv(self.argv)
        _check_files(self.files)

    @classmethod
    def of(cls, what: Job | Sequence[str | os.PathLike[str]]) -> Job:
        """A job as it is, or one made of a command."""
        if isinstance(what, Job):
            return what
        if isinstance(what, str | bytes):
            hint = "write [program, argument, …]"
            raise UsageError("a command is a list of arguments, not one text", hint=hint)
        return cls(argv=tuple(os.fspath(part) for part in what))


def _text(part: object) -> str:
    if isinstance(part, bytes):
        return os.fsdecode(part)
    if isinstance(part, str | os.PathLike):
        return os.fsdecode(os.fspath(part))
    raise UsageError(f"{part!r} is not an argument; arguments are text or paths")


def _check_argv(argv: tuple[str, ...]) -> None:
    if not argv or not argv[0]:
        raise UsageError("no command was given", hint="ringfence run -- PROGRAM ARGUMENTS…")
    for part in argv:
        if "\0" in part:
            raise UsageError(f"{part!r} has a NUL in it; no program can receive it")
        if len(os.fsencode(part)) >= MAX_ARGUMENT_BYTES:
            raise UsageError("an argument is longer than 128 KiB", hint="pass it in a file or on stdin")


def _check_files(files: Mapping[str, bytes]) -> None:
    for name in files:
        parts = name.split("/")
        if name.startswith("/") or "\0" in name or not name or {"", ".", ".."} & set(parts):
            raise UsageError(f"{name!r} is not a relative path below the working folder")
