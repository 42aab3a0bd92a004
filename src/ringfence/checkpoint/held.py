"""One directory, held while its owner, mode, attributes and time are set.

Whoever may write into the directory above can put something else under its name at any moment: that must not get
what was meant for this one. Does not decide what is set.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from _collections_abc import Callable

from ringfence.checkpoint.entry import Entry, parent
from ringfence.checkpoint.tree import Tree

_HANDLE = getattr(os, "O_PATH", 0)
"""Opens also what we may not read. Elsewhere than on Linux a directory of ours is opened to us first."""
_FLAGS = _HANDLE | os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | (
    getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0))  # fmt: skip
_DEFAULT_LIST = "system.posix_acl_default"
_NOT_OURS_TO_GIVE = (errno.EPERM, errno.EINVAL)
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
"""Nothing is there, or no directory."""


class Held:
    """A directory of a tree, for the length of a ``with``."""

    def __init__(self, tree: Tree, path: str) -> None:
        """OSError if there is none."""
        name, where = tree.at(path)
        self._descriptor = _opened(tree, path) if where else -1
        self.place: int | str = self._descriptor if where else name
        """What the ``os`` functions take for it. On Windows its name, which nobody replaces meanwhile."""
        if _HANDLE and where:
            self.place = f"/proc/self/fd/{self._descriptor}"
        self.status = os.fstat(self._descriptor) if where else os.lstat(name)

    def __enter__(self) -> Held:
        return self

    def __exit__(self, *_: object) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)

    def is_just_made(self) -> bool:
        """Whether it can be the one that we have made: it is ours, and empty."""
        ours = not hasattr(os, "geteuid") or self.status.st_uid == os.geteuid()
        return ours and not os.listdir(self.place)

    def hand_down_nothing(self) -> None:
        """What is made in it gets no group and no access control list from it."""
        os.chmod(self.place, 0o700)  # without set-group-id
        if hasattr(os, "listxattr") and _DEFAULT_LIST in _names(self.place):
            os.removexattr(self.place, _DEFAULT_LIST)

    def set(self, entry: Entry, prefix: str) -> None:
        """Give it the attributes, the mode and the time of an entry."""
        mode = stat.S_IMODE(self.status.st_mode)
        if keeps_us_out(self.status):
            mode |= 0o700
            os.chmod(self.place, mode)
        set_attributes(self.place, entry, prefix)
        if mode != entry.mode:
            os.chmod(self.place, entry.mode)
        try:
            os.utime(self.place, ns=(entry.mtime_ns, entry.mtime_ns))
        except PermissionError:  # a directory that others share with us is its owner's
            if not hasattr(os, "geteuid") or self.status.st_uid == os.geteuid():
                raise


def held(tree: Tree, path: str) -> Held | None:
    """None if no directory is there."""
    try:
        return Held(tree, path)
    except OSError as error:
        if error.errno not in _GONE:
            raise
        return None


def give(tree: Tree, path: str, owner: tuple[int, int]) -> None:
    """Give away a link or a special file that we have just made, and no file or directory that is there instead."""
    name, where = tree.at(path)
    if not _HANDLE:
        os.chown(name, *owner, follow_symlinks=False, **where)
        return
    place = os.open(name, _FLAGS & ~os.O_DIRECTORY, **where)
    try:
        if stat.S_IFMT(os.fstat(place).st_mode) not in (stat.S_IFREG, stat.S_IFDIR):
            os.chown(f"/proc/self/fd/{place}", *owner)
    finally:
        os.close(place)


def group_at(tree: Tree, path: str) -> int | None:
    """The group that the system gives to what is made at a path; None: our own. Directories that are not there yet hand
    down that of the one above."""
    while path := parent(path):
        status = tree.status(path)
        if status is not None and stat.S_ISDIR(status.st_mode):
            return _handed_down(status)
    status = tree.status("")
    return None if status is None else _handed_down(status)


def _handed_down(status: os.stat_result) -> int | None:
    return status.st_gid if status.st_mode & stat.S_ISGID or sys.platform not in ("linux", "win32") else None


def give_group(give_to: Callable[[int], None], group: int | None) -> None:
    """Leave it where it is if we are not in that group."""
    try:
        if group is not None:
            give_to(group)
    except OSError as error:
        if error.errno not in _NOT_OURS_TO_GIVE:
            raise


def _opened(tree: Tree, path: str) -> int:
    name, where = tree.at(path)
    try:
        return os.open(name, _FLAGS, **where)
    except PermissionError:
        status = tree.status(path)
        if _HANDLE or status is None or not keeps_us_out(status):
            raise
    tree.allow(path, stat.S_IMODE(status.st_mode) | 0o700)
    name, where = tree.at(path)
    return os.open(name, _FLAGS, **where)


def keeps_us_out(status: os.stat_result) -> bool:
    """A directory of ours whose mode keeps us out."""
    return status.st_mode & 0o700 != 0o700 and os.name == "posix" and status.st_uid == os.geteuid() != 0


def set_attributes(place: int | str, entry: Entry, prefix: str) -> None:
    """Extended attributes; ``prefix``: of those that overlayfs reads, if it is to."""
    if not hasattr(os, "setxattr"):
        return
    wanted = {name: bytes.fromhex(value) for name, value in entry.attributes}
    if prefix and entry.opaque:
        wanted[prefix + "opaque"] = b"y"
    if prefix and entry.copied:
        wanted[prefix + "origin"] = b""
    there = _attributes(place)
    for name in there.keys() - wanted.keys():
        own = name.startswith("user.") and not name.startswith("user.overlay.")
        if own or (prefix and name == prefix + "opaque"):
            os.removexattr(place, name)
    for name, value in wanted.items():
        if there.get(name) != value:
            os.setxattr(place, name, value)


def _names(place: int | str) -> list[str]:
    try:
        return os.listxattr(place)
    except OSError:
        return []  # the file system has none


def _attributes(place: int | str) -> dict[str, bytes]:
    """Empty if the file system has none."""
    try:
        return {name: os.getxattr(place, name) for name in os.listxattr(place)}
    except PermissionError:
        raise
    except OSError:
        return {}
