"""Finds directories of other proctored runs in what an agent would be shown: a run's output has what another agent
handed in, and perhaps a key; the private directory beside it has copies of everything that grades.

They are recognised by their content, so those of other users, other machines and earlier versions are found too. Runs
that begin after the search are not.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

from ringfence.errors import UsageError
from ringfence.evidence.keyfile import SEED_FILE
from ringfence.model.ways.walk import real
from ringfence.proctor.place.workplace import MARK, NAME_CHARS

_LEFT = frozenset({"bundle.json", "verdict.json", "final.diff"})
"""What every run leaves."""


def found_in(shown: Iterable[str]) -> tuple[str, ...]:
    """The directories of runs below these directories of the host; no link is followed, and the search does not go into
    what it found. A caller who names such a directory itself means it, but never a key in it."""
    return tuple(dict.fromkeys(each for top in shown for each in _below(real(top))))


def refuse_in(workspace: str) -> None:
    """UsageError where a workspace holds one: it would be copied, and may change meanwhile."""
    for path in found_in([workspace]) if workspace else ():
        raise UsageError(f"the workspace holds the directory of another proctored run, {path}",
                         hint="move it elsewhere: an agent could read another one's submission")  # fmt: skip


def _below(top: str) -> Iterator[str]:
    for place, folders, files in os.walk(top):
        if (SEED_FILE in files or _LEFT.issubset(files)) and place != top:
            folders.clear()
            yield place
            continue
        if SEED_FILE in files:
            yield os.path.join(place, SEED_FILE)
        ours = set(_of_runs_in(folders))
        folders[:] = [name for name in folders if name not in ours]
        yield from (os.path.join(place, name) for name in sorted(ours))


def _of_runs_in(folders: list[str]) -> Iterator[str]:
    """Private directories of runs that go on, or were killed, and the outputs beside them that they are named after."""
    for name in folders:
        start, mark, _ = name.partition(MARK)
        if mark and start.startswith("."):
            yield name
            yield from (other for other in folders if other[:NAME_CHARS] == start[1:])
