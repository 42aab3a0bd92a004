"""Files into and out of a living box: the last step of a visit that is not a program. Never opens what may block.

Part of: job

Runs inside, confined as any job: a link that the guest has put in the way leads no further than the guest could go. Its
time counts like a program's, and it says on standard error why it fails; its exit code is the errno, or 1.
"""

from __future__ import annotations

import errno
import os
import stat
from _collections_abc import Callable

from ringfence.steps import executor as plan

_PIECE_BYTES = 1 << 20
_LARGEST_STATUS = 120  # from 126 on an exit code has another meaning
NO_REGULAR_FILE = min(errno.EOPNOTSUPP, 95)
"""Linux's number, used if the system's own number does not fit into an exit code."""


def put(name: str) -> None:
    """What comes from standard input, as a new file in place of whatever has that name. Never returns."""
    _as_program(lambda: _put(name))


def get(name: str, most_bytes: int) -> None:
    """Write a regular file's content to standard output, up to this many bytes. Never returns."""
    _as_program(lambda: _get(name, most_bytes))


def _as_program(work: Callable[[], None]) -> None:
    plan.close_from(3)  # as an exec would: the leader takes that for the start, and counts the time from there
    status = 1
    try:
        work()
        status = 0
    except Exception as error:
        status = min(getattr(error, "errno", None) or 1, _LARGEST_STATUS)
        os.write(2, (getattr(error, "strerror", None) or str(error)).encode("utf-8", "backslashreplace"))
    finally:
        os._exit(status)


def _put(name: str) -> None:
    folder = os.path.dirname(name)
    if folder:
        os.makedirs(folder, exist_ok=True)
    new = os.path.join(folder, f".{os.urandom(8).hex()}")  # not made of the name, which may be as long as names may be
    file = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        while piece := os.read(0, _PIECE_BYTES):
            _write_all(file, piece)
        os.rename(new, name)
    except BaseException:
        os.unlink(new)
        raise


def _get(name: str, most_bytes: int) -> None:
    file = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        raise OSError(NO_REGULAR_FILE, "it is not a regular file")
    # A guest can make a file without an end, or one that takes for ever to read.
    while most_bytes and (piece := os.read(file, min(most_bytes, _PIECE_BYTES))):
        _write_all(1, piece)
        most_bytes -= len(piece)


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
