"""What ties processes to each other: who adopts orphans, who dies with whom, who may look inside."""

from __future__ import annotations

import os

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 1, 4, 36, 38
_PR_SET_NAME = 15
_SIGKILL = 9


def _prctl(option: int, value: int) -> None:
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), f"prctl {option}")


def adopt_orphans() -> None:
    """Descendants whose parent dies become children of this process, also after setsid and two forks."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent() -> None:
    """Be killed when the parent ends; the caller then checks that it had not ended before."""
    _prctl(_PR_SET_PDEATHSIG, _SIGKILL)


def hide_memory() -> None:
    """No other process of the user may trace this one or read its memory, environment, descriptors."""
    _prctl(_PR_SET_DUMPABLE, 0)


def no_new_privileges() -> None:
    """No program started from here on gains anything by its set-user-id bit or file capabilities."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def show_memory() -> None:
    """Undo ``hide_memory``, for as long as the process must write its own files in /proc."""
    _prctl(_PR_SET_DUMPABLE, 1)


def forget_command_line(name: str) -> None:
    """Overwrite what /proc shows of this process: its arguments and its first environment tell of the host."""
    import ctypes

    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    arguments, arguments_end, environment, environment_end = (int(field) for field in fields[45:49])
    for start, end in ((arguments, arguments_end), (environment, environment_end)):
        if 0 < start < end:
            ctypes.memset(start, 0, end - start)
    if arguments:
        shown = name.encode()[: arguments_end - arguments - 1]
        ctypes.memmove(arguments, shown, len(shown))
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_NAME, name.encode()[:15], 0, 0, 0)

