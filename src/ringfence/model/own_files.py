"""Files and directories of ours: nothing is written through a link, and nobody else can write them, whatever the umask.

Knows nothing of what is in them. Standard library only, and cheap to import: every layer above uses it.
"""

from __future__ import annotations

import errno
import os
import stat

from ringfence.errors import UnavailableError, UsageError

FLAGS = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
PART = ".part"
"""Suffix of the name of a file that is not complete yet."""
NEW_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | FLAGS
_READ_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | FLAGS
FOLDER_FLAGS = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | FLAGS
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_REPARSE_POINT = 0x400
_NAME_CHARS = 50
"""How much of a name a temporary name keeps: a name has at most 255 bytes."""


def new_beside(path: str, *, mode: int = 0o600, dir_fd: int | None = None) -> tuple[int, str]:
    """(descriptor, path) of a new file in the same directory, under a name that nobody can have guessed."""
    folder, name = os.path.split(path)
    beside = os.path.join(folder, f"{name[:_NAME_CHARS]}.{os.urandom(8).hex()}{PART}")
    descriptor = os.open(beside, NEW_FLAGS, 0o600, dir_fd=dir_fd)
    set_mode(descriptor, mode)
    return descriptor, beside


def set_mode(descriptor: int, mode: int) -> None:
    """Whatever the umask, and never by a name: somebody may have put another file there. Python for Windows has no such
    call before 3.13. The mode of a new file stays there: Windows knows only whether a file may be written."""
    if hasattr(os, "fchmod"):
        os.fchmod(descriptor, mode)


def set_time(descriptor: int, path: str, time_ns: int) -> None:
    """When the file was changed last; by its ``path`` only where no descriptor can be used (Windows)."""
    os.utime(descriptor if os.utime in os.supports_fd else path, ns=(time_ns, time_ns))


def new_folder(above: str, prefix: str) -> str:
    """A new private directory in another one, under a name that nobody can have guessed. (``tempfile`` takes long to
    load.)"""
    made = os.path.join(above, f"{prefix}{os.urandom(8).hex()}")
    os.mkdir(made, 0o700)
    return made


def write_whole(path: str, data: bytes, *, mode: int = 0o600, dir_fd: int | None = None, sync: bool = False) -> None:
    """A reader finds the old file or the new one. A link at the path is replaced, never followed."""
    descriptor, beside = new_beside(path, mode=mode, dir_fd=dir_fd)
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
            if sync:
                file.flush()
                os.fsync(descriptor)
        os.replace(beside, path, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
    except BaseException:
        os.unlink(beside, dir_fd=dir_fd)
        raise


def read_regular(path: str, most_bytes: int, *, dir_fd: int | None = None) -> tuple[bytes, os.stat_result]:
    """Read at most one byte more than ``most_bytes``; and the file's status. Follows no link, waits for no FIFO."""
    with open(os.open(path, _READ_FLAGS, dir_fd=dir_fd), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise UsageError(f"{path} is not a regular file")
        return file.read(min(most_bytes, status.st_size) + 1), status


def lock(descriptor: int, *, wait: bool = True) -> None:
    """Take the exclusive lock of an open file or directory; it ends with its holder. BlockingIOError if another has it
    and we are not to wait."""
    try:
        import fcntl
    except ImportError:
        raise UnavailableError("this system can't lock a directory for one process", missing=("flock",),
                               hint="run on Linux or macOS") from None  # fmt: skip
    fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))


def make_private(path: str) -> None:
    """Make a directory, and those above it that are missing, each for us alone."""
    above = os.path.dirname(path)
    if above != path and not os.path.isdir(above):
        make_private(above)
    try:
        os.mkdir(path, 0o700)
    except FileExistsError as error:
        if os.path.isdir(path):
            return
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path) from error
    os.chmod(path, 0o700)


def open_private(path: str) -> int:
    """A descriptor of a directory of ours; UsageError where it is a link, another user's, or others can write it. On
    Windows directories have no descriptors: the directory is checked, and a stand-in is returned."""
    if os.name == "nt":
        if not _is_plain_folder(os.lstat(path)):
            raise UsageError(f"{path} is a link, a junction or a file, not a directory",
                             hint="give the directory itself")  # fmt: skip
        return os.open(os.devnull, os.O_RDONLY)
    try:
        descriptor = os.open(path, FOLDER_FLAGS)
    except NotADirectoryError:
        raise UsageError(f"{path} is a link or a file, not a directory", hint="give the directory itself") from None
    try:
        check_private(os.fstat(descriptor), path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _is_plain_folder(status: os.stat_result) -> bool:
    return stat.S_ISDIR(status.st_mode) and not getattr(status, "st_file_attributes", 0) & _REPARSE_POINT


def check_private(status: os.stat_result, path: str) -> None:
    """UsageError unless the directory is ours, and ours alone to write."""
    if not hasattr(os, "geteuid"):
        return
    if status.st_uid != os.geteuid():
        raise UsageError(f"{path} belongs to another user ({status.st_uid})", hint="use a directory of your own")
    if status.st_mode & _OTHERS_WRITE:
        raise UsageError(f"{path} can be written by other users", hint=f"look at what is in it, then chmod go-w {path}")


def check_shared(status: os.stat_result, path: str) -> None:
    """UsageError unless our files in the directory stay ours: nobody but us and root may rename or replace them."""
    if not hasattr(os, "geteuid"):
        return
    if status.st_uid not in (0, os.geteuid()):
        raise UsageError(f"{path} belongs to another user ({status.st_uid}), who could replace what is in it",
                         hint="use a directory of your own")  # fmt: skip
    if status.st_mode & _OTHERS_WRITE and not status.st_mode & stat.S_ISVTX:
        raise UsageError(f"{path} can be written by other users, who could replace what is in it",
                         hint=f"chmod go-w {path}, or chmod +t {path} where it is meant to be shared")  # fmt: skip
