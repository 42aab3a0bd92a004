"""Whether we may write into a directory, and replace or remove what stands in it: asked before the first change, since
a commit that is refused in the middle gets stuck there.

Only asks. The calls themselves report what it does not foresee.
"""

from __future__ import annotations

import errno
import os
import stat

from ringfence.checkpoint import content
from ringfence.checkpoint.entry import parent
from ringfence.checkpoint.tree import FILE_FLAGS, Tree


def check_writable(tree: Tree, folder: str) -> None:
    """PermissionError if we may not. Our own directory passes: its mode is opened for that time."""
    status = tree.status(folder) if folder else None
    if status is None or not hasattr(os, "geteuid") or status.st_uid == os.geteuid():
        return
    name, where = tree.at(folder)
    if not os.access(name, os.W_OK | os.X_OK, effective_ids=True, **where):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def check_replaceable(tree: Tree, path: str) -> None:
    """PermissionError for somebody else's file in a sticky directory, and for an immutable one."""
    status = tree.status(path)
    if status is None or not hasattr(os, "geteuid"):
        return
    folder = tree.status(parent(path))
    if folder is not None and folder.st_mode & stat.S_ISVTX and os.geteuid() not in (0, folder.st_uid, status.st_uid):
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
    if stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode):
        _check_mutable(tree, path)


def _check_mutable(tree: Tree, path: str) -> None:
    name, where = tree.at(path)
    try:
        descriptor = os.open(name, FILE_FLAGS, **where)
    except OSError:
        return  # we may replace what we may not read
    try:
        if content.is_immutable(descriptor):
            raise PermissionError(errno.EPERM, f"{os.strerror(errno.EPERM)} (it is immutable; chattr -i removes that)")
    finally:
        os.close(descriptor)
