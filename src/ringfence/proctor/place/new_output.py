"""Where a run writes: a directory that is removed again if the run writes nothing into it. If the caller names no
directory, it is ``proctor-out/TASK-TIME`` below the current one."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

from ringfence.errors import UsageError
from ringfence.evidence.keyfile import SEED_FILE
from ringfence.model import own_files
from ringfence.model.ways.walk import absolute, itself
from ringfence.proctor.staging import fresh_output
from ringfence.proctor.suite.entry import folder_name

FOLDER = "proctor-out"
_TIME = "%Y%m%dT%H%M%SZ"


@contextmanager
def output_of_run(path: str) -> Iterator[str]:
    """``fresh_output`` for one run. A run that is refused later, and left nothing but a new key there, removes the key,
    which has signed nothing, and every directory that was made for it."""
    made = _missing(itself(absolute(path)))
    try:
        folder = fresh_output(path)
        try:
            yield folder
        except BaseException:
            _drop_unused_key(folder)
            raise
    except BaseException:
        _remove_empty(made)
        raise


def _missing(path: str) -> list[str]:
    """The missing ones among this directory and those above it, the innermost first."""
    found = []
    while not os.path.lexists(path):
        found.append(path)
        path = os.path.dirname(path)
    return found


def _drop_unused_key(folder: str) -> None:
    if os.listdir(folder) == [SEED_FILE]:  # it was empty, so this one is new
        os.unlink(os.path.join(folder, SEED_FILE))


def _remove_empty(folders: Iterable[str]) -> None:
    for folder in folders:
        with suppress(OSError):  # there is something in it
            os.rmdir(folder)


@contextmanager
def new_output(task_id: str) -> Iterator[str]:
    """A new directory that no other run has. It is removed again if nothing was written into it.

    UsageError where somebody else could replace files in ``proctor-out``: they would control the verdict.
    """
    path = _made(f"{folder_name(task_id)}-{time.strftime(_TIME, time.gmtime())}")
    try:
        yield path
    finally:
        _remove_empty((path, os.path.dirname(path)))


def _made(name: str) -> str:
    """Make the directory and return its path."""
    try:
        above = os.path.join(os.getcwd(), FOLDER)
        own_files.make_private(above)
        place = own_files.open_private(above)
    except OSError as error:
        raise UsageError(f"{FOLDER}: {error.strerror}", hint="name an output directory with --out") from error
    try:
        return os.path.join(above, _made_in(place, name))
    finally:
        os.close(place)


def _made_in(place: int, name: str) -> str:
    """Make a directory of this name, with a number appended if another run has it."""
    number, free = 1, name
    while True:
        try:
            os.mkdir(free, 0o700, dir_fd=place)
            return free
        except FileExistsError:
            number += 1
            free = f"{name}-{number}"
