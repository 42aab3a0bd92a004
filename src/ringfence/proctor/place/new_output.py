"""Where a run writes whose caller named no folder: ``proctor-out/TASK-TIME``, below the current one."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from ringfence.errors import UsageError
from ringfence.model import own_files
from ringfence.proctor.suite.entry import folder_name

FOLDER = "proctor-out"
_TIME = "%Y%m%dT%H%M%SZ"


@contextmanager
def new_output(task_id: str) -> Iterator[str]:
    """A new folder that no other run has. It goes again where nothing was written into it.

    UsageError where somebody else could exchange what lies in ``proctor-out``: the verdict would be theirs.
    """
    path = _made(f"{folder_name(task_id)}-{time.strftime(_TIME, time.gmtime())}")
    try:
        yield path
    finally:
        for left in (path, os.path.dirname(path)):
            with suppress(OSError):  # there is something in it
                os.rmdir(left)


def _made(name: str) -> str:
    """Make the folder and return its path."""
    try:
        above = os.path.join(os.getcwd(), FOLDER)
        own_files.make_private(above)
        place = own_files.open_private(above)
    except OSError as error:
        raise UsageError(f"{FOLDER}: {error.strerror}", hint="name an output folder with --out") from error
    try:
        return os.path.join(above, _made_in(place, name))
    finally:
        os.close(place)


def _made_in(place: int, name: str) -> str:
    """The name that is wanted, or with a number behind it where another run has that."""
    number, free = 1, name
    while True:
        try:
            os.mkdir(free, 0o700, dir_fd=place)
            return free
        except FileExistsError:
            number += 1
            free = f"{name}-{number}"
