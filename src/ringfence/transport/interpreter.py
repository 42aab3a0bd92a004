"""Starts a process of ours with an interpreter of its own: nothing of the environment, no streams, one channel to its
starter."""

from __future__ import annotations

import os
import subprocess
import sys
from _collections_abc import Callable

from ringfence.errors import SetupError, is_of_a_call
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
