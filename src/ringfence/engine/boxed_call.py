"""A function called inside a living box: in by its code, out by a value in a safe encoding.

A fresh interpreter in the box runs the same job that a pool's warm ones run; so a call is a visit like any other, and
sees the files and processes of those before it. What comes back is the guest's word and executes nothing.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence

import ringfence
from ringfence.model import callables, python_job
from ringfence.model.job import Job

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Our package by its own folder: the one that it lies in need not be readable, and is on no path of the job's.
_LOADER = """\
import importlib.util, os, sys
place = sys.argv[1]
spec = importlib.util.spec_from_file_location('ringfence', place + '/__init__.py', submodule_search_locations=[place])
sys.modules['ringfence'] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules['ringfence'])
from ringfence.posix import interpreter
interpreter.prepare()
with open(0, 'rb', closefd=False) as stdin:
    job = stdin.read()
os.dup2(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC), 0)
interpreter.run(job, environment=dict(os.environ), channel=3)
"""


def needed_paths() -> tuple[str, ...]:
    """What a policy must let be read beside the interpreter, so that calls can be made."""
    return (os.path.dirname(os.path.abspath(ringfence.__file__)),)


def call_job(
    function: Callable[..., Any], params: Mapping[str, object], *, modules: Sequence[str] | None = None
) -> Job:
    """The visit that calls ``function(**params)``; ``engine.returned`` reads its outcome.

    ``modules``: top-level modules that its own code may import; absent: all. Advice, not the boundary.
    """
    surroundings = python_job.Surroundings(
        path=("",), packages=python_job.package_folders(), modules=None if modules is None else tuple(modules)
    )
    packed, arguments = callables.pack(function), callables.pack_arguments((), dict(params))
    work = python_job.call_job(packed, arguments, surroundings=surroundings)
    argv = (sys.executable, "-I", "-S", "-X", "utf8", "-c", _LOADER, *needed_paths())
    return Job(argv=argv, stdin=work, channel=True)
