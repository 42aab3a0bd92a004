"""Directories of ours that lie where a caller put them, as the state directory remembers them: no guest sees one, no
matter who made it or who runs the guest.

One is forgotten once it is gone from a file system that is still there, or another directory is in its place. What lies
on a disk that is not mounted at the moment stays noted, and is hidden when it comes back. Makes no directory. """

from __future__ import annotations

import os
from _collections_abc import Callable, Collection
from stat import S_ISDIR

from ringfence.errors import UsageError
from ringfence.model import own_files
from ringfence.model.paths import lies_in

_FILE, _MOST_BYTES = "roots", 1 << 20
Rows = dict[str, tuple[int, int]]
"""Path of a directory: the device that it lies on, and its inode."""


def noted(top: str) -> list[str]:
    """The directories that the state directory ``top`` knows; none if it can't be read."""
    return list(_read(top))


def stamp(top: str) -> tuple[int, ...]:
    """A stamp that differs when something was noted since; empty: nothing ever was."""
    try:
        found = os.stat(os.path.join(top, _FILE))
    except OSError:
        return ()
    return found.st_ino, found.st_mtime_ns, found.st_size


def note(top: str, path: str) -> None:
    """Remember a directory that is there, and nothing in it yet. Those that are gone are forgotten."""
    if _covers(_read(top), path):
        return

    def added(rows: Rows) -> Rows:
        known = {each: mark for each, mark in rows.items() if not _is_gone(each, *mark)}
        return known if _covers(known, path) else {**known, path: _mark_of(path)}

    _change(top, added)


def forget(top: str, paths: Collection[str]) -> None:
    """Forget these directories; for a caller that knows that they hold nothing that a guest must not see."""
    _change(top, lambda rows: {each: mark for each, mark in rows.items() if each not in paths})


def _covers(known: Rows, path: str) -> bool:
    """Whether one of them is this directory, or contains it. A new directory in the place of one that is gone is a
    different one: the row of the old one will be forgotten, and the new one would be lost with it."""
    return any(lies_in(path, each) and not _is_gone(each, *mark) for each, mark in known.items())


def _mark_of(path: str) -> tuple[int, int]:
    """Return the mark of a directory. UsageError for anything else (``/dev/null``): no guest could be given what it
    needs from then on."""
    status = os.stat(path)
    if not S_ISDIR(status.st_mode):
        raise UsageError(f"{path} is not a directory", hint="name a directory for what ringfence keeps")
    return _mark(status)


def _mark(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _is_gone(path: str, device: int, inode: int) -> bool:
    """Whether it was removed, and is not just out of reach: what is there now, or the nearest directory above it, is on
    the same disk as it was."""
    try:
        found = os.lstat(path)
        return found.st_dev == device and (found.st_ino != inode or not S_ISDIR(found.st_mode))
    except (FileNotFoundError, NotADirectoryError):
        above = os.path.dirname(path)
    except OSError:
        return False
    while not os.path.isdir(above):
        above = os.path.dirname(above)
    return os.stat(above).st_dev == device


def _read(top: str) -> Rows:
    try:
        found, _ = own_files.read_regular(os.path.join(top, _FILE), _MOST_BYTES)
    except (OSError, UsageError):
        return {}
    rows = (os.fsdecode(row).split(" ", 2) for row in found.split(b"\0") if row)
    return {row[2]: (int(row[0]), int(row[1])) for row in rows if _is_row(row)}


def _is_row(row: list[str]) -> bool:
    return len(row) == 3 and row[0].isdecimal() and row[1].isdecimal() and os.path.isabs(row[2])


def _write(top: str, rows: Rows) -> None:
    data = b"".join(b"%d %d %s\0" % (*mark, os.fsencode(path)) for path, mark in rows.items())
    if len(data) > _MOST_BYTES:
        raise UsageError(f"{top}: {len(rows)} directories of ringfence's own are elsewhere, too many to remember",
                         hint="remove those that nobody needs")  # fmt: skip
    own_files.write_whole(os.path.join(top, _FILE), data)


def _change(top: str, change: Callable[[Rows], Rows]) -> None:
    descriptor = own_files.open_private(top)
    try:
        _lock(descriptor)
        before = _read(top)
        after = change(before)
        if after != before:
            _write(top, after)
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> None:
    """A lock, so that two processes that note directories at the same time lose nothing; it ends with the
    descriptor."""
    try:
        import fcntl
    except ImportError:
        return  # not POSIX
    fcntl.flock(descriptor, fcntl.LOCK_EX)
