"""Starts a process of ours with an interpreter of its own: nothing of the environment, no streams, one channel to its
starter."""

from __future__ import annotations

import os
import subprocess
import sys
from _collections_abc import Callable, Mapping

from ringfence.errors import SetupError, UnavailableError, is_of_a_call
from ringfence.transport import passing

# Functions of libraries are looked up before this process forks, and not by each of its children.
_ENVIRONMENT = {"LD_BIND_NOW": "1"}


def started(step: str, code_for: Callable[[int], str]) -> tuple[int, int]:
    """Return our end of the channel and the pid, which the caller collects. ``code_for`` gets the other end, which only
    the new process has; SetupError names ``step``."""
    ours, theirs = passing.channel()
    null = subprocess.DEVNULL
    try:
        command = [sys.executable, "-I", "-S", "-c", code_for(theirs)]
        process = subprocess.Popen(
            command, pass_fds=(theirs,), stdin=null, stdout=null, stderr=null, env=_ENVIRONMENT, cwd="/",
        )  # fmt: skip
    except BaseException as error:
        os.close(ours)
        if is_of_a_call(error):
            raise SetupError(step, str(error)) from error
        raise
    finally:
        os.close(theirs)
    process.returncode = 0  # collected by its pid
    return ours, process.pid


def folders(libraries: Mapping[str, bool], purpose: str) -> list[str]:
    """Where such a process imports our package and these libraries from. Those that it can't do without are true: if
    one is missing, UnavailableError says so, because the process would end before it could."""
    from importlib.util import find_spec

    found = [os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))]
    for name, is_needed in libraries.items():
        spec = find_spec(name)
        if spec is not None and spec.origin:
            found.append(os.path.dirname(os.path.dirname(os.path.abspath(spec.origin))))
        elif is_needed:
            raise UnavailableError(f"{sys.executable} has no Python package {name}, which {purpose} needs",
                                   missing=(name,), hint=f"{sys.executable} -I -m pip install {name}")  # fmt: skip
    return list(dict.fromkeys(found))
