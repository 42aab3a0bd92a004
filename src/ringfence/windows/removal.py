"""Removes a tree that a hostile program filled, by paths: no junction, link or mount point is followed.

No process works in the tree any more: the job object has ended them all.
"""

from __future__ import annotations

import os
import stat
import time

from ringfence.model.windows_paths import extended

_REPARSE_POINT, _DIRECTORY = 0x400, 0x10
_PAUSES_S = (0.0, 0.05, 0.2, 0.5, 1.0)
"""A scanner or indexer of the host may have a file open for a moment."""


def attributes(status: os.stat_result) -> int:
    """Return what Windows knows of a file; elsewhere what its mode says."""
    known = getattr(status, "st_file_attributes", None)
    if known is not None:
        return int(known)
    return {stat.S_IFDIR: _DIRECTORY, stat.S_IFLNK: _REPARSE_POINT}.get(stat.S_IFMT(status.st_mode), 0)


def is_reparse_point(status: os.stat_result) -> bool:
    """Whether it leads somewhere else: a link, a junction, a mount point."""
    return bool(attributes(status) & _REPARSE_POINT)


def is_real_folder(path: str) -> bool:
    """Whether it is a directory, and no link or junction to one."""
    found = attributes(os.lstat(path))
    return bool(found & _DIRECTORY) and not found & _REPARSE_POINT


def remove_tree(path: str) -> None:
    """Remove ``path`` with everything in it; what is gone already is no error."""
    path = extended(path)
    for pause_s in _PAUSES_S:
        try:
            _remove(path)
            return
        except OSError:
            time.sleep(pause_s)
    _remove(path)


def _remove(top: str) -> None:
    """Without recursion: a program may have made a tree of any depth. A directory is removed when it is met again."""
    if not os.path.lexists(top):
        return
    left = [(top, False)]
    while left:
        path, emptied = left.pop()
        if emptied:
            os.chmod(path, stat.S_IWRITE | stat.S_IREAD | stat.S_IEXEC)  # what is read-only can't be removed there
            os.rmdir(path)
        elif is_real_folder(path):
            left.append((path, True))
            left += [(os.path.join(path, name), False) for name in os.listdir(path)]
        else:
            _unlink(path)


def _unlink(path: str) -> None:
    status = os.lstat(path)
    if not is_reparse_point(status) and not status.st_mode & stat.S_IWRITE:
        os.chmod(path, stat.S_IWRITE | stat.S_IREAD)
    if attributes(status) & _DIRECTORY:
        os.rmdir(path)  # a junction: what it leads to stays
    else:
        os.unlink(path)
