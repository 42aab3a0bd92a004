"""Files into and out of a living box: the last step of a visit that is not a program. Never opens what may block.

Runs inside, confined as any job: a link that the guest has put in the way leads no further than the guest could go.
"""

from __future__ import annotations

import os
import stat

_PIECE_BYTES = 1 << 20


def put(name: str) -> None:
    """What comes from standard input, as a new file in place of whatever has that name. Never returns."""
    if os.path.dirname(name):
        os.makedirs(os.path.dirname(name), exist_ok=True)
    new = f"{name}.{os.urandom(4).hex()}"
    file = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        while piece := os.read(0, _PIECE_BYTES):
            _write_all(file, piece)
        os.rename(new, name)
    except BaseException:
        os.unlink(new)
        raise
    os._exit(0)


def get(name: str) -> None:
    """A regular file's content to standard output. Never returns."""
    file = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        raise OSError(f"{name} is no regular file")
    while piece := os.read(file, _PIECE_BYTES):
        _write_all(1, piece)
    os._exit(0)


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
