"""The ordered steps between fork and exec, as plain data, and the table that executes them.

A plan is a list of ``(step, arguments…)``. It is made by a pure function, sent to the process that
becomes the job, and executed there in order; a step that fails is named in the error.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # loads nothing, see ADR 0003
import os
import sys
from _collections_abc import Callable, Sequence

from ringfence.linux import processes
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


def place_descriptors(sources: Sequence[int], keep: Sequence[int], stay: Sequence[int] = ()) -> range:
    """Put the sources at 0, 1, 2 …, those to keep behind them, closed on exec, and close all else.

    Returns the new numbers of those that are kept. ``stay`` are left open where they are.
    """
    # First out of the way of the targets, so that no dup2 overwrites a source that is still needed.
    floor = len(sources) + len(keep)
    if any(descriptor < floor for descriptor in stay):
        raise OSError("a descriptor that is to stay stands where another belongs")
    moved = [duplicate(source, floor) for source in (*sources, *keep)]
    for target, source in enumerate(moved):
        os.dup2(source, target, inheritable=target < len(sources))
    start = floor
    for descriptor in sorted(stay):
        os.closerange(start, descriptor)
        start = descriptor + 1
    close_from(start)
    return range(len(sources), floor)


def close_from(first: int) -> None:
    """Close every descriptor from this one on.

    The limit says nothing of those opened before it was lowered, and may be a thousand million.
    """
    if sys.platform == "linux" and processes.close_from(first):
        return
    try:
        last = max(map(int, os.listdir("/dev/fd")))
    except (OSError, ValueError):
        last = os.sysconf("SC_OPEN_MAX")
    os.closerange(first, last + 1)


def duplicate(descriptor: int, floor: int) -> int:
    """A copy of the descriptor with the first free number from ``floor`` on, closed on exec."""
    import fcntl

    return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, floor)


def _signals() -> None:
    """Back to the defaults: Python itself ignores SIGPIPE and SIGXFSZ, and exec would keep that."""
    for number in range(1, signal.NSIG):
        if signal.getsignal(number) not in (signal.SIG_DFL, None):  # None: a handler of C code, lost with exec
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _no_new_privileges() -> None:
    if sys.platform == "linux":
        processes.no_new_privileges()


def _die_with_leader(leader: int) -> None:
    if sys.platform != "linux":
        return
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


def _await_job(python: bool) -> None:
    from ringfence.posix import standby

    standby.await_job(python)


def _put_file(name: str) -> None:
    from ringfence.posix import file_transfer

    file_transfer.put(name)


def _get_file(name: str, most_bytes: int) -> None:
    from ringfence.posix import file_transfer

    file_transfer.get(name, most_bytes)


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
    "await job": _await_job,
    "put file": _put_file,
    "get file": _get_file,
}


def execute(plan: Sequence[Step]) -> None:
    """Carry the steps out in order; returns only if the last one is not an exec."""
    for name, *arguments in plan:
        try:
            _step(str(name))(*arguments)
        except StepFailed:
            raise
        except BaseException as error:
            raise StepFailed(_label(str(name), arguments), error) from error


def _step(name: str) -> Callable[..., None]:
    if name not in STEPS:
        from ringfence.linux import plan as linux_plan

        STEPS.update(linux_plan.STEPS)
    return STEPS[name]


def _label(name: str, arguments: list[object]) -> str:
    shown = name in ("rlimit", "attach", "file system", "overlay", "show", "whiteouts")
    return f"{name} {arguments[0]}" if shown else name
