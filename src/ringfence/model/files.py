"""Reads a file that somebody named: a regular one, up to a bound. A pipe in its place is never waited for."""

from __future__ import annotations

import os
import stat

from ringfence.errors import UsageError

_FLAGS = os.O_RDONLY | sum(getattr(os, name, 0) for name in ("O_NONBLOCK", "O_CLOEXEC", "O_NOCTTY"))


def read_file(path: str, max_bytes: int, *, hint: str = "name an existing file") -> bytes:
    """The whole content; UsageError if it can't be read, is not a regular file or has more than ``max_bytes``."""
    try:
        with open(os.open(path, _FLAGS), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise UsageError(f"{path}: not a regular file", hint="a pipe, a device or a directory is not read")
            data = file.read(max_bytes + 1)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}", hint=hint) from error
    except ValueError as error:
        raise UsageError(f"{path!r}: {error}", hint=hint) from error
    if len(data) > max_bytes:
        raise UsageError(f"{path}: larger than {max_bytes} bytes", hint=hint)
    return data
