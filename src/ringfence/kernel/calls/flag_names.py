"""The names of flags among the arguments of system calls, for readers of a table. Pure data, nothing is executed.

An argument that is not listed here is shown as a number. Names are the kernel's own.
"""

from __future__ import annotations

import os
from _collections_abc import Mapping
from struct import unpack_from

_AT_FDCWD = {-100: "AT_FDCWD"}
_SPACES = {
    0x10000000: "CLONE_NEWUSER", 0x00020000: "CLONE_NEWNS", 0x20000000: "CLONE_NEWPID", 0x40000000: "CLONE_NEWNET",
    0x08000000: "CLONE_NEWIPC", 0x04000000: "CLONE_NEWUTS", 0x02000000: "CLONE_NEWCGROUP", 0x00000080: "CLONE_NEWTIME",
}  # fmt: skip
_OPTIONS = {
    1: "PR_SET_PDEATHSIG", 4: "PR_SET_DUMPABLE", 15: "PR_SET_NAME", 24: "PR_CAPBSET_DROP", 28: "PR_SET_SECUREBITS",
    36: "PR_SET_CHILD_SUBREAPER", 38: "PR_SET_NO_NEW_PRIVS", 47: "PR_CAP_AMBIENT",
}  # fmt: skip
_MOUNT = {
    0x1: "MS_RDONLY", 0x2: "MS_NOSUID", 0x4: "MS_NODEV", 0x8: "MS_NOEXEC", 0x20: "MS_REMOUNT", 0x1000: "MS_BIND",
    0x4000: "MS_REC", 0x40000: "MS_PRIVATE",
}  # fmt: skip
_UNMOUNT = {0x1: "MNT_FORCE", 0x2: "MNT_DETACH", 0x8: "UMOUNT_NOFOLLOW"}
_AT = {
    0x100: "AT_SYMLINK_NOFOLLOW", 0x200: "AT_REMOVEDIR", 0x800: "AT_NO_AUTOMOUNT", 0x1000: "AT_EMPTY_PATH",
    0x8000: "AT_RECURSIVE",
}  # fmt: skip
_CLONE_TREE = {**_AT, 0x1: "OPEN_TREE_CLONE", 0o2000000: "OPEN_TREE_CLOEXEC"}
_MOVE = {0x4: "MOVE_MOUNT_F_EMPTY_PATH", 0x40: "MOVE_MOUNT_T_EMPTY_PATH"}
_ATTRIBUTES = {
    0x1: "MOUNT_ATTR_RDONLY", 0x2: "MOUNT_ATTR_NOSUID", 0x4: "MOUNT_ATTR_NODEV", 0x8: "MOUNT_ATTR_NOEXEC",
    0x100000: "MOUNT_ATTR_IDMAP",
}  # fmt: skip
_OPEN_NAMES = ("O_WRONLY", "O_RDWR", "O_CREAT", "O_EXCL", "O_TRUNC", "O_APPEND", "O_NONBLOCK", "O_DIRECTORY",
               "O_NOFOLLOW", "O_PATH", "O_CLOEXEC")  # fmt: skip
_OPEN = {getattr(os, name): name for name in _OPEN_NAMES if hasattr(os, name)}
"""They differ by architecture."""
_FILTER_MODE = {1: "SECCOMP_SET_MODE_FILTER"}
_FILTER = {0x8: "SECCOMP_FILTER_FLAG_NEW_LISTENER", 0x20: "SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV"}

WORDS: dict[str, dict[int, Mapping[int, str]]] = {
    "prctl": {0: _OPTIONS},
    "seccomp": {0: _FILTER_MODE},
    "move_mount": {0: _AT_FDCWD, 2: _AT_FDCWD},
    **{name: {0: _AT_FDCWD} for name in ("openat", "openat2", "open_tree", "mkdirat", "mknodat", "fchmodat",
                                         "unlinkat", "statx")},
}  # fmt: skip
"""By call and place: arguments that are one word."""

BITS: dict[str, dict[int, Mapping[int, str]]] = {
    "unshare": {0: _SPACES}, "setns": {1: _SPACES},
    "mount": {3: _MOUNT}, "umount2": {1: _UNMOUNT}, "open_tree": {2: _CLONE_TREE}, "move_mount": {4: _MOVE},
    "mount_setattr": {2: _AT, 3: _ATTRIBUTES},
    "openat": {2: _OPEN}, "unlinkat": {2: _AT}, "seccomp": {1: _FILTER},
}  # fmt: skip
"""By call and place: arguments that are put together; of a structure, its first 64 bits are (struct mount_attr)."""


def names(call: str, place: int, argument: object) -> list[str]:
    """Return the names that an argument is made of; empty: it has none, or an unknown bit besides."""
    if isinstance(argument, bytes) and len(argument) >= 8:
        argument = unpack_from("=Q", argument)[0]
    if type(argument) is not int:
        return []
    word = WORDS.get(call, {}).get(place, {}).get(argument)
    return [word] if word else _split(argument, BITS.get(call, {}).get(place, {}))


def _split(number: int, bits: Mapping[int, str]) -> list[str]:
    found = [bit for bit in bits if number & bit == bit]
    return [bits[bit] for bit in found] if sum(found) == number else []
