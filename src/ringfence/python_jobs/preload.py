"""Loads what Python jobs find loaded already, and refuses what would let one job reach the next.

Runs once, in the process that will be forked. A module may do anything when it is imported. Its memory becomes each
job's own, copied when it is written to, except what it has mapped as shared. Its descriptors are closed in jobs, whose
own have other numbers.
"""

from __future__ import annotations

import gc
import os
import sys
from _collections_abc import Callable, Sequence

from ringfence.python_jobs import interpreter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.transport.request import Preload

    Shared = Callable[[], frozenset[str]]

_NUMBERS = 256
"""Descriptors that modules open have numbers from here on: few jobs open so many files of their own."""


def load(python: Preload, shared: Shared) -> None:
    """The interpreter as it is after its start, and what the caller wants to be there. ImportError names what is not,
    or may not be. ``shared``: the memory that forks would write to together, as /proc has it."""
    interpreter.prepare()
    if not python["preload"]:
        return
    sys.path += python["packages"]
    held = _hold_numbers()
    try:
        _import(python["preload"], shared)
    finally:
        for descriptor in held:
            os.close(descriptor)
    del sys.path[len(sys.path) - len(python["packages"]) :]


def _hold_numbers() -> list[int]:
    """Take all low numbers. A file that a module has open is closed in a job, but the module's object still has its
    number, and may write what it had buffered: into the job's channel, if that had the same number."""
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _NUMBERS if soft == resource.RLIM_INFINITY else min(_NUMBERS, soft // 2)
    held = [os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)]
    while held[-1] < most - 1:
        held.append(os.dup(held[0]))
    return held


def _import(names: Sequence[str], shared: Shared) -> None:
    import importlib

    ours = shared()
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError:
            raise
        except BaseException as error:  # a module may do anything when it is imported, and exit
            raise ImportError(f"{name}: {type(error).__name__}: {error}") from error
        if shared() - ours:
            gc.collect()  # perhaps nobody has it any more
        if found := sorted(shared() - ours):
            raise ImportError(_refusal(name, found))


def _refusal(name: str, found: Sequence[str]) -> str:
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    return (
        f"{name}: importing it maps memory that all jobs of the pool would write to: {_readable(found[0])}{more}; "
        "leave it out of the preload, and import it in the jobs"
    )


def _readable(mapping: str) -> str:
    place, permissions, *_ = fields = mapping.split(None, 5)
    return f"{fields[5] if len(fields) > 5 else 'without a name'} ({permissions}, {place})"
