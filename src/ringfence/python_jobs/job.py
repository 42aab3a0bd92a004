"""Python work for a process that already runs Python: a source or a call, as bytes on their way into a sandbox.

Made by the caller, read only by ``python_jobs/interpreter.py`` inside; marshal, because both are the same interpreter
and the bytes are ours. It says nothing about environment, streams or limits: those are the visit's.
"""

from __future__ import annotations

import marshal
import os
import sys
from _collections_abc import Sequence

from ringfence.errors import UsageError
from ringfence.model.record import record
from ringfence.python_jobs.encode import MAX_BYTES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.transport.request import PythonRequest


@record
class Surroundings:
    """What a Python job finds around it."""

    path: tuple[str, ...] = ()
    """Directories to import from before the interpreter's own; of a script, its own directory is the first."""
    packages: tuple[str, ...] = ()
    """Directories to import from after the interpreter's own, as site-packages is. Their .pth files are not read."""
    modules: tuple[str, ...] | None = None
    """Top-level modules that the job's own code may import; absent: all. Advice to it, never the boundary."""
    max_value_bytes: int = MAX_BYTES
    """Of the value that comes back, encoded."""


def package_folders() -> tuple[str, ...]:
    """Where this interpreter's installed packages are."""
    return tuple(path for path in sys.path if os.path.basename(path) in ("site-packages", "dist-packages"))


def source_job(
    source: str | bytes, *, name: str = "<job>", arguments: Sequence[str] = (), value: bool = False,
    surroundings: Surroundings = Surroundings(),  # noqa: B008  (frozen)
) -> bytes:  # fmt: skip
    """Run a source as ``python NAME ARGUMENTS`` would; ``value``: send the value of its last expression."""
    if not isinstance(source, str | bytes):
        raise UsageError(f"a source must be a string or bytes, not {type(source).__name__}")
    one_text = isinstance(arguments, str)
    arguments = [name, *arguments]
    if one_text or not all(isinstance(part, str) for part in arguments):
        raise UsageError("name and arguments of a source must be strings", hint="write arguments=['one', 'two']")
    return _packed("source", surroundings, source=source, name=name, arguments=arguments, value=bool(value))


def call_job(function: bytes, arguments: bytes, *, surroundings: Surroundings = Surroundings()) -> bytes:  # noqa: B008
    """Call a function with arguments, both as ``python_jobs/pack.py`` has packed them."""
    return _packed("call", surroundings, function=function, packed=arguments)


def _packed(kind: str, surroundings: Surroundings, **fields: object) -> bytes:
    return marshal.dumps({"kind": kind, **surroundings.__dict__, **fields})


def unpacked(job: bytes) -> PythonRequest:
    """Inside the sandbox: the fields of a job."""
    fields: PythonRequest = marshal.loads(job)
    return fields
