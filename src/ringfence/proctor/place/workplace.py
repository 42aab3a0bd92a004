"""The private directory of a run, beside its output and on the same disk. The running process holds a lock on it.

It is removed at the end, whatever an agent has left in it. A killed run can't do that: the next run that writes beside
it does, and the lock tells it that nobody works there any more.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from ringfence.errors import SandboxError
from ringfence.model import own_files, state_folder
from ringfence.model.ways.walk import real
from ringfence.roles.removal import remove_tree

MARK = ".proctor-run-"
NAME_CHARS = 50
"""How much of the output's name goes into the private directory's: the result must not be longer than a name may be."""
_SAYS_SO = "run-folder"
"""A file in it that names the directory by its inode, so that no other directory of ours can pass for one of these."""


@contextmanager
def workplace(out: str) -> Iterator[str]:
    """Make a new directory for one run, and remove those of killed runs beside it."""
    above = os.path.dirname(out)
    remove_abandoned(above)
    # It gets its name later: before it is locked, another run would take it for one that was left behind.
    made = own_files.new_folder(above, f".{os.path.basename(out)[:NAME_CHARS]}.new-")
    held = os.open(made, own_files.FOLDER_FLAGS)
    place = f"{made.rpartition('.new-')[0]}{MARK}{made.rpartition('.new-')[2]}"
    try:
        own_files.lock(held, wait=False)
        _sign(held)
        os.rename(made, place)
        yield place
    finally:
        _remove(place)
        remove_tree(made)
        os.close(held)


def remove_abandoned(above: str) -> list[str]:
    """Remove the private directories in this one whose runs were killed, and return their paths."""
    gone = []
    with os.scandir(above) as found:
        names = [entry.name for entry in found if entry.name.startswith(".") and MARK in entry.name]
    for name in names:
        path = os.path.join(above, name)
        if _is_abandoned(path):
            _remove(path)
            gone.append(path)
    return gone


def _remove(place: str) -> None:
    """Transactions of the run were in it and noted as ours; no sandbox is given a directory that holds a noted one."""
    led = real(place)
    remove_tree(place)
    with suppress(OSError, SandboxError):  # then it stays noted, and a directory that holds it is refused as before
        state_folder.forget_in(led)


def _name_of(folder: int) -> bytes:
    status = os.fstat(folder)
    return b"%d:%d\n" % (status.st_dev, status.st_ino)


def _sign(folder: int) -> None:
    file = os.open(_SAYS_SO, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=folder)
    try:
        os.write(file, _name_of(folder))
    finally:
        os.close(file)


def _is_signed(folder: int) -> bool:
    file = os.open(_SAYS_SO, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    try:
        return os.read(file, 100) == _name_of(folder)
    finally:
        os.close(file)


def _is_abandoned(path: str) -> bool:
    """Whether it is a directory of ours that nobody holds."""
    try:
        place = os.open(path, own_files.FOLDER_FLAGS)
    except OSError:
        return False  # gone meanwhile, or no directory of ours
    try:
        status = os.fstat(place)
        if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077 or not _is_signed(place):
            return False
        own_files.lock(place, wait=False)
    except OSError:
        return False
    finally:
        os.close(place)
    return True
