"""Mounts by descriptor: a source is cloned before the way to it is gone, and attached where it is wanted.

Targets are opened inside the new root with ``openat2`` and never through a link, so no link on the host
can send a mount elsewhere. Deliberately knows nothing of what a sandbox should contain (``rootfs``).
"""

from __future__ import annotations

import os
import stat
from struct import pack

from ringfence.kernel import syscalls

_AT_FDCWD, _AT_EMPTY_PATH, _AT_RECURSIVE = -100, 0x1000, 0x8000
_AT_SYMLINK_NOFOLLOW, _AT_NO_AUTOMOUNT = 0x100, 0x800
_OPEN_TREE_CLONE, _OPEN_TREE_CLOEXEC = 1, os.O_CLOEXEC if hasattr(os, "O_CLOEXEC") else 0
_MOVE_FROM_EMPTY, _MOVE_TO_EMPTY = 0x4, 0x40
_RESOLVE_NO_SYMLINKS, _RESOLVE_IN_ROOT, _RESOLVE_NO_MAGICLINKS = 0x04, 0x10, 0x02
_ATTR_RDONLY, _ATTR_NOSUID, _ATTR_NODEV, _ATTR_NOEXEC, _ATTR_IDMAP = 0x1, 0x2, 0x4, 0x8, 0x100000
_MS_REC, _MS_PRIVATE = 0x4000, 0x40000
_MNT_DETACH, _REMOVE_FOLDER = 2, 0x200
_FSOPEN_CLOEXEC, _FSMOUNT_CLOEXEC, _FSCONFIG_CMD_CREATE = 1, 1, 6

READ_ONLY = _ATTR_RDONLY | _ATTR_NOSUID | _ATTR_NODEV
WRITABLE = _ATTR_NOSUID | _ATTR_NODEV
# Read-only: the device itself can be written all the same, its times and mode on the host can't.
DEVICE = _ATTR_RDONLY | _ATTR_NOSUID | _ATTR_NOEXEC

REAL = "real "
"""Prefix of the mode of a source that is taken by a path without links."""
FLAGS = {"nosuid": 2, "nodev": 4, "noexec": 8, "ro": 1}


def clone(path: str, *, alone: bool = False) -> int:
    """A detached copy of the mount at ``path``, with everything mounted below it or ``alone``. No link is followed at
    its end, and nothing is mounted by looking at it."""
    flags = _OPEN_TREE_CLONE | _OPEN_TREE_CLOEXEC | _AT_SYMLINK_NOFOLLOW | _AT_NO_AUTOMOUNT
    flags |= 0 if alone else _AT_RECURSIVE
    return syscalls.call("open_tree", _AT_FDCWD, os.fsencode(path), flags)


def clone_opened(descriptor: int, *, alone: bool = True) -> int:
    """A detached copy of the mount that a descriptor leads to, ``alone`` or with everything mounted below it."""
    flags = _OPEN_TREE_CLONE | _OPEN_TREE_CLOEXEC | _AT_EMPTY_PATH | (0 if alone else _AT_RECURSIVE)
    return syscalls.call("open_tree", descriptor, b"", flags)


def clone_real(path: str, *, alone: bool = True) -> int:
    """The same for a path without links: a link on the way is an error. A link at its end is cloned as itself."""
    how = pack("QQQ", os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, 0, _RESOLVE_NO_SYMLINKS | _RESOLVE_NO_MAGICLINKS)
    found = syscalls.call("openat2", _AT_FDCWD, os.fsencode(path), how, len(how))
    try:
        return clone_opened(found, alone=alone)
    finally:
        os.close(found)


def set_attributes(tree: int, attributes: int, *, idmap: int = -1) -> None:
    """For the whole cloned tree, submounts too; ``idmap`` is a user namespace that carries a map."""
    if idmap >= 0:
        _set(tree, _ATTR_IDMAP, idmap, _AT_EMPTY_PATH)
    _set(tree, attributes, 0, _AT_EMPTY_PATH | _AT_RECURSIVE)


def _set(tree: int, attributes: int, namespace: int, flags: int) -> None:
    structure = pack("QQQQ", attributes, 0, 0, namespace)
    syscalls.call("mount_setattr", tree, b"", flags, structure, len(structure))


def attach(tree: int, root: int, target: str, *, folder: bool, is_there: bool = False) -> None:
    """Attach a cloned tree at ``target`` inside the new root, which is made where it is missing. ``is_there``: an error
    where it is missing."""
    place = open_inside(root, target.strip("/") or ".") if is_there else open_target(root, target, folder=folder)
    try:
        syscalls.call("move_mount", tree, b"", place, b"", _MOVE_FROM_EMPTY | _MOVE_TO_EMPTY)
    finally:
        os.close(place)


def attach_at(tree: int, path: str) -> None:
    """Attach a cloned tree at a place that is there, by its path."""
    syscalls.call("move_mount", tree, b"", _AT_FDCWD, os.fsencode(path), _MOVE_FROM_EMPTY)


def new_tmpfs() -> int:
    """A detached tmpfs, by its descriptor."""
    return _new(b"tmpfs")


def new_proc() -> int:
    """A detached file system of /proc, by its descriptor; -1: this process may have none."""
    try:
        return _new(b"proc")
    except OSError:
        return -1


def _new(kind: bytes) -> int:
    context = syscalls.call("fsopen", kind, _FSOPEN_CLOEXEC)
    try:
        syscalls.call("fsconfig", context, _FSCONFIG_CMD_CREATE, None, None, 0)
        return syscalls.call("fsmount", context, _FSMOUNT_CLOEXEC, 0)
    finally:
        os.close(context)


def open_target(root: int, target: str, *, folder: bool) -> int:
    """A mount point inside the root, made with its parents where it is missing; a link in the way is an error."""
    relative = target.strip("/") or "."
    try:
        return open_inside(root, relative)
    except FileNotFoundError:
        parent, _, name = relative.rpartition("/")
        within = open_target(root, parent, folder=True)
    try:
        if folder:
            os.mkdir(name, 0o755, dir_fd=within)
        else:
            os.mknod(name, stat.S_IFREG | 0o644, dir_fd=within)
    finally:
        os.close(within)
    return open_inside(root, relative)


def open_inside(root: int, relative: str) -> int:
    """An O_PATH descriptor below the root, whatever links stand there."""
    how = pack("QQQ", os.O_PATH | os.O_CLOEXEC, 0, _RESOLVE_NO_SYMLINKS | _RESOLVE_IN_ROOT | _RESOLVE_NO_MAGICLINKS)
    return syscalls.call("openat2", root, os.fsencode(relative), how, len(how))


def open_in_root(root: int, path: str) -> int:
    """The same with links followed as a process with that root would follow them: no link leads out of it."""
    how = pack("QQQ", os.O_PATH | os.O_CLOEXEC, 0, _RESOLVE_IN_ROOT | _RESOLVE_NO_MAGICLINKS)
    return syscalls.call("openat2", root, os.fsencode(path), how, len(how))


def mount(kind: str, target: str, flags: list[str], options: str, source: str = "none") -> None:
    """mount(2) of a new file system."""
    number = 0
    for name in flags:
        number |= FLAGS[name]
    syscalls.call("mount", source.encode(), os.fsencode(target), kind.encode(), number, os.fsencode(options))


def mount_as(source: bytes, target: bytes, kind: bytes, flags: int, options: bytes) -> None:
    """mount(2), plainly."""
    syscalls.call("mount", source, target, kind, flags, options)


def volatile_marks(work: str) -> list[tuple[str, int]]:
    """What overlayfs leaves in the work directory of a volatile mount: a path, and the flag that removes a
    directory."""
    folder = os.path.join(work, "work", "incompat")
    return [(f"{folder}/volatile/dirty", 0), (f"{folder}/volatile", _REMOVE_FOLDER), (folder, _REMOVE_FOLDER)]


def unmount(target: bytes, flags: int) -> None:
    syscalls.call("umount2", target, flags)


def mount_inside(root: int, target: str, kind: str, flags: list[str], options: str, source: str = "none") -> None:
    """The same, with the target resolved inside the root."""
    place = open_target(root, target, folder=True)
    try:
        mount(kind, f"/proc/self/fd/{place}", flags, options, source)
    finally:
        os.close(place)


def make_private() -> None:
    """Nothing that is mounted from here on reaches the host, and nothing from there reaches us."""
    syscalls.call("mount", b"none", b"/", None, _MS_REC | _MS_PRIVATE, None)


def pivot(new_root: str) -> None:
    """Make the new root the root, and let go of the old one for good."""
    os.chdir(new_root)
    syscalls.call("pivot_root", b".", b".")
    # The old root now lies over the new one at the same place; detaching uncovers the new.
    syscalls.call("umount2", b".", _MNT_DETACH)
    os.chdir("/")


def make_read_only(tree: int) -> None:
    """The one mount that the descriptor lies on."""
    _set(tree, _ATTR_RDONLY, 0, _AT_EMPTY_PATH)


def detach(path: str) -> None:
    syscalls.call("umount2", os.fsencode(path), _MNT_DETACH)


def is_folder(path: str) -> bool:
    return stat.S_ISDIR(os.lstat(path).st_mode)
