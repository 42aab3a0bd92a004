"""Which mode a commit gives to a file or directory: what the program asked for, less what the caller's umask takes
away.

The umask applies as if the caller had made the file. Bits that the base had at this path stay. Set-user-id,
set-group-id and sticky bits are dropped, since the file may get another owner than its maker; a directory keeps those
that the base itself gave it, and may get set-group-id, which only says there whose group new files have. Changes
nothing.
"""

from __future__ import annotations

import os
from _collections_abc import Callable
from _thread import allocate_lock

from ringfence.checkpoint.entry import FOLDER, Entry

Noted = Callable[[str], int | None]
"""The mode that the base's directory had when it was first looked at; None: not known, or there was none."""
Grant = Callable[[str, Entry, Entry | None], int]
"""The mode for what the layer has at a path, given what the base has there."""
_PLAIN_BITS, _SET_GROUP_ID = 0o777, 0o2000
_PRIVATE = 0o077
_GROUP_BITS, _ALL = 0o070, 7
_OF_GROUP, _MASK = 4, 16
"""Which row of an access control list it is: what the file's group may, and what named users and groups may at most."""
_turn = allocate_lock()


def granted(entry: Entry, before: Entry | None, umask: int, noted: int | None = None) -> int:
    """``before``: what the base has there. Absent: nothing. ``noted``: the mode that the base's directory had at the
    first look: if the program left that alone, it stays as others have made it since."""
    if before is not None and before.kind == entry.kind == FOLDER and entry.mode == noted:
        return before.mode
    had = before.mode if before is not None and before.kind == entry.kind else 0
    kept = had | _SET_GROUP_ID if entry.kind == FOLDER else had & _PLAIN_BITS
    return entry.mode & (_PLAIN_BITS & ~umask | kept)


def without_list(mode: int, access_list: bytes) -> int:
    """The mode of a file once it is written anew without its access control list.

    With a list the group's bits are its mask, which is there for named users; what the group may is in a row.
    """
    rows = _rows(access_list)
    if _OF_GROUP not in rows:
        return mode
    return mode & ~_GROUP_BITS | (rows[_OF_GROUP] & rows.get(_MASK, _ALL)) << 3


def _rows(access_list: bytes) -> dict[int, int]:
    """What each kind may; of the rows of named users and groups, one."""
    starts = range(4, len(access_list) - 7, 8)
    return {_number(access_list, start): _number(access_list, start + 2) & _ALL for start in starts}


def _number(data: bytes, start: int) -> int:
    return int.from_bytes(data[start : start + 2], "little")


def grants(noted: Noted) -> Grant:
    """With the caller's umask of now."""
    umask = callers_umask()
    return lambda path, entry, before: granted(entry, before, umask, noted(path))


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
