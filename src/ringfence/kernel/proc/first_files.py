"""Files of pid 1 of a sandbox, the one process in there that is ours: which of them are wired, and who only walks.

The kernel refuses all of them. Here stands whose opening is recorded; how grave that is, is no matter of the kernel's
(docs/adr/0145).
"""

from __future__ import annotations

import os

from ringfence.kernel.opened import opened

FOLDER = "/proc/1"
"""Stands in the place of a hidden path in the record of who asks for one of these."""
MEMORY = (f"{FOLDER}/mem", f"{FOLDER}/task/1/mem")
VARIABLES = (f"{FOLDER}/environ", f"{FOLDER}/task/1/environ")
AREAS = f"{FOLDER}/smaps"
"""A table without contents, which nobody means alone: whoever asks for it too takes whatever it finds."""
FILES = (*MEMORY, *VARIABLES, AREAS)
OPEN, WALK = "open", "walk"
"""What is recorded: somebody opens a file of these; opens variables while it reads the list of all processes."""

_LIST = "/proc"
_MOST_DESCRIPTORS = 64


def way_of(file: str, tid: int, proc: int = -1) -> str:
    """How a task opens one of these; ``proc`` is the /proc in which it has that number, -1: our own.

    ``ps`` opens the variables of every process while it reads the list of them, and holds a descriptor of that list.
    """
    if file not in VARIABLES:
        return OPEN
    path, folder = (f"{tid}/fd", proc) if proc >= 0 else (f"/proc/{tid}/fd", None)
    try:
        with opened(path, os.O_RDONLY | os.O_DIRECTORY, folder) as place, os.scandir(place) as held:
            first = (each.name for each, _ in zip(held, range(_MOST_DESCRIPTORS), strict=False))
            return WALK if any(os.readlink(name, dir_fd=place) == _LIST for name in first) else OPEN
    except OSError:
        return OPEN
