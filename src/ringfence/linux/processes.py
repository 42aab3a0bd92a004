"""What ties processes to each other: who adopts orphans, who dies with whom, who may look inside."""

from __future__ import annotations

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 1, 4, 36, 38
_SIGKILL = 9


def _prctl(option: int, value: int) -> None:
    import ctypes
    import os

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
