r"""Low integrity: such a process can write only to what is labelled low, whatever rights its user has.

The label of a directory is an entry of its access control lists, which is made and read here as bytes. A directory
without one counts as medium. Only our own directories are ever labelled; the caller's labels are only read. """

from __future__ import annotations

import os
from ctypes import addressof, byref, c_void_p, create_string_buffer, sizeof, string_at

from ringfence.model.windows_paths import extended
from ringfence.windows.removal import is_real_folder
from ringfence.windows.structures import LabeledSid
from ringfence.windows.system import call, check, try_call

LOW, MEDIUM = 0x1000, 0x2000
_TOKEN_INTEGRITY, _GROUP_INTEGRITY = 25, 0x20
_FILE_OBJECT, _LABEL = 1, 0x10
_ACL_REVISION, _LABEL_ENTRY, _NO_WRITE_UP = 2, 0x11, 0x1
_FOR_FILES_AND_FOLDERS = 0x1 | 0x2
_HEAD, _ENTRY_HEAD, _SID_HEAD = 8, 8, 8
_AUTHORITY = bytes((0, 0, 0, 0, 0, 16))


def sid(level: int) -> bytes:
    """Return the security identifier of a level: S-1-16-…"""
    return bytes((1, 1)) + _AUTHORITY + level.to_bytes(4, "little")


def label(level: int, *, inherited: bool) -> bytes:
    """Return the list with the one entry that labels a file: lower processes may not write. ``inherited``: also for
    everything made in it."""
    name = sid(level)
    entry = bytes((_LABEL_ENTRY, _FOR_FILES_AND_FOLDERS if inherited else 0))
    entry += (_ENTRY_HEAD + len(name)).to_bytes(2, "little") + _NO_WRITE_UP.to_bytes(4, "little") + name
    head = bytes((_ACL_REVISION, 0)) + (_HEAD + len(entry)).to_bytes(2, "little") + (1).to_bytes(4, "little")
    return head + entry


def level_of(entries: bytes) -> tuple[int, bool]:
    """Return the level that a list says, and whether all that is made in there has it too. No entry means medium."""
    count, left = int.from_bytes(entries[4:6], "little"), entries[_HEAD:]
    while count and len(left) >= _ENTRY_HEAD:
        kind, flags, size = left[0], left[1], int.from_bytes(left[2:4], "little")
        name = left[_ENTRY_HEAD : min(size, len(left))]
        if kind == _LABEL_ENTRY and len(name) >= _SID_HEAD + 4:
            level = int.from_bytes(name[_SID_HEAD : _SID_HEAD + 4], "little")
            return level, flags & _FOR_FILES_AND_FOLDERS == _FOR_FILES_AND_FOLDERS
        count, left = count - 1, left[max(size, _ENTRY_HEAD) :]
    return MEDIUM, False


def lower(token: int) -> None:
    """Give a token low integrity; nobody can take that back."""
    name = create_string_buffer(sid(LOW), len(sid(LOW)))
    labeled = LabeledSid(addressof(name), _GROUP_INTEGRITY)
    call("SetTokenInformation", token, _TOKEN_INTEGRITY, byref(labeled), sizeof(labeled) + len(sid(LOW)))


def label_tree(path: str) -> None:
    """Label a directory of ours low, with all that is in it; what a junction or link leads to stays as it is."""
    left = [path]
    while left:
        place = left.pop()
        _set(place)
        if is_real_folder(place):
            left += [inner for name in os.listdir(place) if not os.path.islink(inner := os.path.join(place, name))
                     and not _leads_away(inner)]  # fmt: skip


def _leads_away(path: str) -> bool:
    return os.path.isdir(path) and not is_real_folder(path)


def _set(path: str) -> None:
    entries = label(LOW, inherited=is_real_folder(path))
    room = create_string_buffer(entries, len(entries))
    check("SetNamedSecurityInfoW", extended(path), _FILE_OBJECT, _LABEL, None, None, None, addressof(room))


def is_low(path: str) -> bool:
    """Whether a process with low integrity can write what lies there, and what will be made there."""
    descriptor, entries = c_void_p(), c_void_p()
    failed = try_call("GetNamedSecurityInfoW", extended(path), _FILE_OBJECT, _LABEL, None, None, None, byref(entries),
                      byref(descriptor))  # fmt: skip
    try:
        if failed or not entries.value:
            return False
        head: bytes = string_at(entries.value, _HEAD)
        return level_of(string_at(entries.value, int.from_bytes(head[2:4], "little"))) == (LOW, True)
    finally:
        try_call("LocalFree", descriptor)

