"""Which mode a commit gives to a file or directory: what the program asked for, less what the caller's umask takes
away.

The umask applies as if the caller had made the file. Bits that the base had at this path stay. Set-user-id,
set-group-id and sticky bits are dropped, since the file may get another owner than its maker; a directory keeps those
that the base itself gave it, and may get set-group-id, which only says there whose group new files have. Changes
nothing.
"""

from __future__ import annotations

import os
from _thread import allocate_lock

from ringfence.checkpoint.entry import FOLDER, Entry

_PLAIN_BITS, _SET_GROUP_ID = 0o777, 0o2000
_PRIVATE = 0o077
_turn = allocate_lock()


def granted(entry: Entry, before: Entry | None, umask: int) -> int:
    """``before``: what the base has there. Absent: nothing."""
    had = before.mode if before is not None and before.kind == entry.kind else 0
    kept = had | _SET_GROUP_ID if entry.kind == FOLDER else had & _PLAIN_BITS
    return entry.mode & (_PLAIN_BITS & ~umask | kept)


def callers_umask() -> int:
    """The umask of this process. Only Linux tells it without changing it, which other threads would notice."""
    try:
        with open("/proc/self/status", "rb") as file:
            return next(int(line.split()[1], 8) for line in file if line.startswith(b"Umask:"))
    except (OSError, StopIteration):
        with _turn:
            found = os.umask(_PRIVATE)
            os.umask(found)
        return found
