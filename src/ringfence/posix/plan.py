"""The ordered steps between fork and exec, as plain data, and the table that executes them.

A plan is a list of ``(step, arguments…)``. It is made by a pure function, sent to the process that
becomes the job, and executed there in order; a step that fails is named in the error.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence

from ringfence.posix import rlimits

Step = tuple[object, ...]

CHANNEL_FD = 3
"""Where a job with a channel finds it; 0, 1, 2 and this are all that it inherits."""


class StepFailed(Exception):
    """A step of the plan failed; carries its name and the error."""

    def __init__(self, step: str, error: BaseException) -> None:
        super().__init__(step)
        self.step = step
        self.errno = error.errno or 0 if isinstance(error, OSError) else 0
        self.problem = _describe(error)


def _describe(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        name = error.filename
        where = f": {os.fsdecode(name)}" if isinstance(name, str | bytes) else ""
        return f"{error.strerror}{where}"
    return f"{type(error).__name__}: {error}"


def _session() -> None:
    os.setsid()


def _terminal() -> None:
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def place_descriptors(sources: Sequence[int], keep: int) -> int:
    """Put the sources at 0, 1, 2 … and close all else but ``keep``, which closes itself on exec.

    Returns the new number of ``keep``.
    """
    # First out of the way of the targets, so that no dup2 overwrites a source that is still needed.
    floor = len(sources) + 1
    moved = [duplicate(source, floor) for source in sources]
    saved = duplicate(keep, floor)
    for target, source in enumerate(moved):
        os.dup2(source, target)
    os.dup2(saved, len(sources), inheritable=False)
    os.closerange(floor, os.sysconf("SC_OPEN_MAX"))
    return len(sources)


def duplicate(descriptor: int, floor: int) -> int:
    """A copy of the descriptor with the first free number from ``floor`` on, closed on exec."""
    import fcntl

    return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, floor)


def _signals() -> None:
    """Back to the defaults: Python itself ignores SIGPIPE and SIGXFSZ, and exec would keep that."""
    for number in signal.valid_signals():
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            _default(number)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _default(number: int) -> None:
    try:
        signal.signal(number, signal.SIG_DFL)
    except (OSError, ValueError):
        pass  # reserved by the C library for its own threads


def _no_new_privileges() -> None:
    if sys.platform == "linux":
        from ringfence.linux import processes

        processes.no_new_privileges()


def _die_with_leader(leader: int) -> None:
    if sys.platform != "linux":
        return
    from ringfence.linux import processes

    processes.die_with_parent()
    if os.getppid() != leader:
        raise ProcessLookupError("the leader is gone")


def _umask(mask: int) -> None:
    os.umask(mask)


def _exec(argv: list[str], environment: dict[str, str]) -> None:
    try:
        os.execvpe(argv[0], argv, environment)
    except OSError as error:
        raise OSError(error.errno, error.strerror, argv[0]) from error  # not the last folder tried


STEPS: dict[str, Callable[..., None]] = {
    "session": _session,
    "terminal": _terminal,
    "die with leader": _die_with_leader,
    "folder": os.chdir,
    "umask": _umask,
    "signals": _signals,
    "no new privileges": _no_new_privileges,
    "rlimit": rlimits.apply,
    "exec": _exec,
}


def execute(plan: Sequence[Step]) -> None:
    """Carry the steps out in order; returns only if the last one is not an exec."""
    for name, *arguments in plan:
        try:
            STEPS[str(name)](*arguments)
        except BaseException as error:
            raise StepFailed(_label(str(name), arguments), error) from error


def _label(name: str, arguments: list[object]) -> str:
    return f"{name} {arguments[0]}" if name == "rlimit" else name
