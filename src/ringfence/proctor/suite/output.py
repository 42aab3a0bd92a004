"""The directory of a suite: who works in it, which run of the suite it belongs to, and where things lie.

One bench at a time works in it. What an earlier one left half done is removed first.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

from ringfence.errors import UsageError
from ringfence.evidence.schema import HEX64
from ringfence.model import own_files
from ringfence.model.own_files import FLAGS, make_private, open_private, read_regular, write_whole
from ringfence.model.ways.walk import absolute, itself
from ringfence.roles.removal import remove_tree

TASKS, SUITE = "tasks", "suite.json"
_LOCK = ".lock"
_MOST_BYTES = 4096
_WAIT_S, _LOOK_S = 60.0, 0.2
"""Workers of a killed bench clean up first, and hold the directory until they are done."""


@contextmanager
def held(path: str, on_wait: Callable[[], None] = lambda: None) -> Iterator[str]:
    """The absolute path of the directory, made where it is missing, and ours until the end."""
    folder = itself(absolute(path))
    try:
        make_private(folder)
        os.close(open_private(folder))
        lock = os.open(os.path.join(folder, _LOCK), os.O_RDWR | os.O_CREAT | FLAGS, 0o600)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}", hint="name a directory that you may write") from error
    try:
        _take(lock, path, on_wait)
        make_private(os.path.join(folder, TASKS))
        os.close(open_private(os.path.join(folder, TASKS)))
        _sweep(os.path.join(folder, TASKS))
        yield folder
    finally:
        os.close(lock)


def refuse_others(folder: str, names: Collection[str]) -> None:
    """UsageError where there are results of tasks that were not chosen: a directory belongs to one choice of tasks."""
    others = [name for name in sorted(os.listdir(os.path.join(folder, TASKS))) if name not in names]
    if others:
        raise UsageError(f"{os.path.join(folder, TASKS, others[0])} does not belong to a selected task",
                         hint="name another output directory, or remove it")  # fmt: skip


def suite_number(folder: str) -> str:
    """The number of the run that this directory belongs to; a new one if none can be read: then all tasks run anew."""
    path = os.path.join(folder, SUITE)
    try:
        found = json.loads(read_regular(path, _MOST_BYTES)[0])["suite"]
        if HEX64.accepts(found):
            return str(found)
    except (OSError, ValueError, KeyError, TypeError, UsageError):
        pass
    number = secrets.token_hex(32)
    write_whole(path, json.dumps({"suite": number}).encode() + b"\n", sync=True)
    return number


def _take(lock: int, path: str, on_wait: Callable[[], None]) -> None:
    patience = time.monotonic() + _WAIT_S
    while True:
        try:
            own_files.lock(lock, wait=False)
            return
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise
        if time.monotonic() > patience:
            raise UsageError(f"{path}: another bench is using it", hint="name another directory, or wait for its end")
        on_wait()
        time.sleep(_LOOK_S)


def _sweep(tasks: str) -> None:
    """Remove what unfinished workers left."""
    for name in os.listdir(tasks):
        if name.startswith("."):
            remove_tree(os.path.join(tasks, name))
