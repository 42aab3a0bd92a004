"""A function called inside a living box: its code goes in, a value comes out in a safe encoding.

A fresh interpreter in the box runs the same job that a pool's warm ones run; so a call is a visit like any other, and
sees the files and processes of those before it. What comes back is the guest's word and executes nothing.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence

import ringfence
from ringfence.model.job import Job
from ringfence.python_jobs import job as python_job
from ringfence.python_jobs import pack as callables

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Our package by its own directory: the directory above it need not be readable, and is on no path of the job.
_LOADER = """\
import importlib.util, os, sys
place = sys.argv[1]
spec = importlib.util.spec_from_file_location('ringfence', place + '/__init__.py', submodule_search_locations=[place])
sys.modules['ringfence'] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules['ringfence'])
from ringfence.python_jobs import interpreter
interpreter.prepare()
with open(0, 'rb', closefd=False) as stdin:
    job = [stdin.read()]
os.dup2(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC), 0)
interpreter.run(job.pop(), environment=dict(os.environ), channel=3)
"""


_SAME = """\
import sys
if sys.version_info[:2] != ({0}, {1}):
    sys.exit("functions need the caller's Python, {0}.{1}; this is %d.%d" % sys.version_info[:2])
"""


def needed_paths() -> tuple[str, ...]:
    """What a policy must make readable beside the interpreter, so that calls can be made."""
    return (os.path.dirname(os.path.abspath(ringfence.__file__)),)


def call_job(
    function: Callable[..., Any],
    params: Mapping[str, object],
    *,
    modules: Sequence[str] | None = None,
    python: str = "",
) -> Job:
    """The visit that calls ``function(**params)``; ``engine.call_result`` reads its outcome.

    ``modules``: top-level modules that its own code may import; absent: all. Advice, not the boundary.
    ``python``: the interpreter inside, if it is not the caller's own.
    """
    surroundings = python_job.Surroundings(
        path=("",), packages=python_job.package_folders(), modules=None if modules is None else tuple(modules)
    )
    packed, arguments = callables.pack(function), callables.pack_arguments((), dict(params))
    work = python_job.call_job(packed, arguments, surroundings=surroundings)
    loader = _SAME.format(*sys.version_info[:2]) + _LOADER if python else _LOADER
    argv = (python or sys.executable, "-I", "-S", "-X", "utf8", "-c", loader, *needed_paths())
    return Job(argv=argv, stdin=work, channel=True)
