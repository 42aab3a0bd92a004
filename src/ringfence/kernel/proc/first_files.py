"""Files of pid 1 of a sandbox, the one process of ours in there: which of them are wired, and who only walks past.

The kernel refuses all of them. This module says which openings are recorded; how grave one is, other layers decide
(docs/adr/0145).
"""

from __future__ import annotations

import os

from ringfence.kernel.opened import opened

FOLDER = "/proc/1"
"""Stands in for a hidden path in the record when somebody asks for one of these."""
MEMORY = (f"{FOLDER}/mem", f"{FOLDER}/task/1/mem")
VARIABLES = (f"{FOLDER}/environ", f"{FOLDER}/task/1/environ")
AREAS = f"{FOLDER}/smaps"
"""A table without contents, which nobody wants alone: a process that asks for it as well takes whatever it finds."""
FILES = (*MEMORY, *VARIABLES, AREAS)
OPEN, WALK = "open", "walk"
"""What is recorded: a process opens one of these files; it opens variables while it reads the list of processes."""

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
