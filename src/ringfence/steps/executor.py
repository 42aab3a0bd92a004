"""The ordered steps between fork and exec, as plain data, and the table that executes them.

A plan is a list of ``(step, arguments…)``. It is made by a pure function, sent to the process that
becomes the job, and executed there in order; a step that fails is named in the error.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # loads nothing, see ADR 0003
import errno
import os
import sys
from _collections_abc import Callable, Mapping, Sequence

from ringfence.kernel import rlimits
from ringfence.steps.step import StepFailed as StepFailed
from ringfence.steps.step import label
from ringfence.transport import wire

if sys.platform == "linux":
    from ringfence.kernel.proc import processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.transport.request import Step

_TIOCSCTTY = 0x540E if sys.platform == "linux" else 0
"""As a number: in the root of an image no module can be loaded."""
CHANNEL_FD = 3
"""Where a job with a channel finds it; 0, 1, 2 and this are all that it inherits."""


def _setsid() -> None:
    os.setsid()


def _terminal() -> None:
    import fcntl

    fcntl.ioctl(0, _TIOCSCTTY or __import__("termios").TIOCSCTTY, 0)


def place_descriptors(sources: Sequence[int], keep_open: Sequence[int], leave_open: Sequence[int] = ()) -> range:
    """Put the sources at 0, 1, 2 …, then those to keep, which are closed on exec, and close all others.

    Returns the new numbers of those that are kept. ``leave_open`` are left open where they are.
    """
    # First move sources out of the way of the targets, so that no dup2 overwrites one that is still needed.
    floor = len(sources) + len(keep_open)
    if any(descriptor < floor for descriptor in leave_open):
        raise OSError("a descriptor that is to stay has the number of another")
    moved = [source if source >= floor else duplicate(source, floor) for source in (*sources, *keep_open)]
    for target, source in enumerate(moved):
        os.dup2(source, target, inheritable=target < len(sources))
    start = floor
    for descriptor in sorted(leave_open):
        os.closerange(start, descriptor)
        start = descriptor + 1
    close_from(start)
    return range(len(sources), floor)


def close_from(first: int) -> None:
    """Close every descriptor from this one on.

    The limit does not cover descriptors opened before it was lowered, and may be a thousand million.
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


def _reset_signals() -> None:
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


def _join_groups(entrances: list[str]) -> None:
    """Enter control groups of this host, before anything of the job runs."""
    for path in entrances:
        file = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)  # never made: a limit must fail then
        try:
            os.write(file, b"0")
        finally:
            os.close(file)


def _observe(program: bytes) -> None:
    from ringfence.steps import observe

    observe.observe(program)


def _umask(mask: int) -> None:
    os.umask(mask)


def _exec(argv: list[str], environment: dict[str, str], program: str = "") -> None:
    """``program``: the file that the first word means; absent: it is looked up in the PATH."""
    path = program or found(argv[0], environment.get("PATH", ""))
    try:
        if not path:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        os.execve(path, argv, environment)
    except OSError as error:
        # Do not take the next program of that name: nobody asked for that one.
        is_there = error.errno == errno.ENOENT and os.path.lexists(path)
        why = (wire.NOT_STARTED, _HALF_THERE, path) if is_there else (error.errno, error.strerror, argv[0])
        raise OSError(*why) from error


_HALF_THERE = "it is there, but what it links to, its interpreter (#!) or its loader is not"


def found(name: str, search_path: str) -> str:
    """Look it up like a shell: the first executable file of that name, else the first at all; or nothing."""
    if "/" in name:
        return name
    paths = [f"{folder}/{name}" for folder in search_path.split(":") if folder and name]
    files = [path for path in paths if os.path.lexists(path) and not os.path.isdir(path)]
    # A link may lead nowhere in here only because its target is not shown.
    chosen = (path for path in files if os.path.islink(path) or os.access(path, os.X_OK))
    return next(chosen, files[0] if files else "")


_NO_ENDINGS: dict[str, Callable[..., None]] = {}
STEPS: dict[str, Callable[..., None]] = {
    "join groups": _join_groups,
    "setsid": _setsid,
    "terminal": _terminal,
    "die with leader": _die_with_leader,
    "chdir": os.chdir,
    "umask": _umask,
    "reset signals": _reset_signals,
    "no new privileges": _no_new_privileges,
    "observe": _observe,
    "rlimit": rlimits.apply,
    "exec": _exec,
}


def execute(plan: Sequence[Step], endings: Mapping[str, Callable[..., None]] = _NO_ENDINGS) -> None:
    """Carry the steps out in order; returns only if the last one is neither an exec nor an ending."""
    for name, *arguments in plan:
        try:
            (endings.get(str(name)) or _step(str(name)))(*arguments)
        except StepFailed:
            raise
        except BaseException as error:
            raise StepFailed(label(str(name), arguments), error) from error


def _step(name: str) -> Callable[..., None]:
    if name not in STEPS:
        from ringfence.steps import linux_steps as linux_plan

        STEPS.update(linux_plan.STEPS)
    return STEPS[name]
