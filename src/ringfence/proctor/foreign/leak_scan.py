"""Looks for the answer where an agent could read it: copies of the package under test, and files that have the fix.

Installed copies, wheels, source archives and pip's caches are found by their names, vendored copies by the lines that
the instance's own patch adds. The caller hides what is found from the agent, or refuses the run.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterator, Sequence

from ringfence.errors import UsageError
from ringfence.model.paths import within
from ringfence.model.record import record
from ringfence.model.ways.walk import absolute, real
from ringfence.proctor.foreign.patches import FilePatch, Hunk
from ringfence.proctor.foreign.repositories import TestedRepository
from ringfence.sandbox import programs
from ringfence.sandbox.root import SYSTEM_FOLDERS

MOST_HIDDEN = 100
"""More leaks than this are not hidden one by one: each costs a few mounts at every launch."""
MAX_FILE_BYTES = 4 << 20
_SITE = "site-packages"
_SITES = frozenset({_SITE, "dist-packages"})
_ARCHIVES = (".whl", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".zip", ".egg", ".conda", ".deb", ".rpm")
_CACHES = frozenset({"http", "http-v2", "wheels", "selfcheck"})
_ENOUGH_CHARS = 30
"""Added lines with fewer characters are looked for together with the lines around them."""
_NAMED = 10


@record
class Leak:
    """Something that would give the answer away."""

    path: str
    why: str


Mark = tuple[bytes, ...]
"""Adjacent lines in a file with the fix, without blanks around them."""


def marks_of(patches: Sequence[FilePatch]) -> tuple[Mark, ...]:
    """Return what to look for, of each hunk."""
    return tuple(dict.fromkeys(mark for patch in patches for hunk in patch.hunks for mark in _marks(hunk) if mark))


def _marks(hunk: Hunk) -> Iterator[Mark]:
    runs = [run for run in _runs(hunk) if sum(map(len, run)) >= _ENOUGH_CHARS]
    yield from runs or [_stripped(hunk.lines(b" +"))]


def _runs(hunk: Hunk) -> Iterator[Mark]:
    """Added lines that follow each other."""
    run: list[bytes] = []
    for sign, text in [*hunk.rows, (ord(" "), b"")]:
        if sign == ord("+"):
            run.append(text)
        elif sign == ord(" ") and run:
            yield _stripped(run)
            run = []


def _stripped(lines: Sequence[bytes]) -> Mark:
    return tuple(line for line in map(bytes.strip, lines) if line)


def has_fix(data: bytes, marks: Collection[Mark]) -> bool:
    """Whether the lines of one mark are in a file, one after the other."""
    near = [mark for mark in marks if all(line in data for line in mark)]
    if not near:
        return False
    lines = _stripped(data.split(b"\n"))
    return any(lines[place : place + len(mark)] == mark for mark in near
               for place in range(len(lines) - len(mark) + 1) if lines[place] == mark[0])  # fmt: skip


def scan(
    repository: TestedRepository, patches: Sequence[FilePatch], roots: Sequence[str], apart: Collection[str] = (),
    sites: Collection[str] = (),
) -> tuple[Leak, ...]:  # fmt: skip
    """Return what leaks below these directories. ``apart``: directories that are hidden anyway. ``sites``: further
    directories that packages are imported from."""
    finder = _Finder(repository, patches, sites)
    found: dict[str, Leak] = {}
    for root in _tops((*roots, *sites)):
        for leak in finder.below(root, apart):
            found[leak.path] = leak
    return tuple(found[path] for path in sorted(found))


class _Finder:
    """What is looked for."""

    def __init__(self, repository: TestedRepository, patches: Sequence[FilePatch], sites: Collection[str]) -> None:
        self._sites = frozenset(map(real, sites))
        self._marks = marks_of(patches)
        self._names = {os.path.basename(patch.path) for patch in patches}
        self._ends = tuple({end for patch in patches if (end := os.path.splitext(patch.path)[1])})
        self._distributions = {_normal(name) for name in repository.distributions}
        self._packages = set(repository.packages)

    def below(self, root: str, apart: Collection[str]) -> Iterator[Leak]:
        """No link is followed: what it leads to lies in a root itself, or is not seen."""
        waiting = [(root, not _SITES.isdisjoint(root.split("/")))]
        while waiting:
            folder, in_site = waiting.pop()
            above = os.path.basename(folder)
            if folder in apart:
                continue
            if folder in self._sites:
                above, in_site = _SITE, True
            for entry in _entries(folder):
                why = self._why(entry, above, in_site)
                if why:
                    yield Leak(path=entry.path, why=why)
                    yield from _compiled(folder, entry.name)
                elif entry.is_dir(follow_symlinks=False):
                    waiting.append((entry.path, in_site or entry.name in _SITES))

    def _why(self, entry: os.DirEntry[str], above: str, in_site: bool) -> str:
        """Why an entry leaks; empty: it does not."""
        name = entry.name
        if above in _SITES and name.removesuffix(".py") in self._packages:
            return "an installed copy of the package under test"
        if above == "pip" and name in _CACHES and entry.is_dir(follow_symlinks=False):
            return "a cache of pip"
        if name.endswith(_ARCHIVES) and _distribution(name) in self._distributions:
            return "an archive of the package under test"
        if (name in self._names or in_site) and name.endswith(self._ends) and self._has_fix(entry):
            return "it has lines of the instance's own patch"
        return ""

    def _has_fix(self, entry: os.DirEntry[str]) -> bool:
        try:
            if not entry.is_file(follow_symlinks=False) or entry.stat(follow_symlinks=False).st_size > MAX_FILE_BYTES:
                return False
            with open(entry.path, "rb") as file:
                return has_fix(file.read(), self._marks)
        except OSError:
            return False  # what we can't read, no agent of ours can


def _compiled(folder: str, name: str) -> Iterator[Leak]:
    """A compiled module reveals all that its source does."""
    module = f"{name.removesuffix('.py')}."
    for entry in _entries(os.path.join(folder, "__pycache__")) if name.endswith(".py") else ():
        if entry.name.startswith(module) and entry.name.endswith(".pyc"):
            yield Leak(path=entry.path, why=f"it is compiled of {name}, which leaks")


def _entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            return list(found)
    except OSError:
        return []


def _normal(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")


def _distribution(name: str) -> str:
    """The project's name out of that of an archive.

    >>> _distribution("Flask_Login-0.6.3-py3-none-any.whl")
    'flask-login'
    """
    for end in _ARCHIVES:
        name = name.removesuffix(end)
    parts = name.split("-")
    count = next((number for number, part in enumerate(parts) if number and part[:1].isdigit()), len(parts))
    return _normal("-".join(parts[:count])).removeprefix("python3-")


def _tops(roots: Sequence[str]) -> list[str]:
    places = sorted({real(root) for root in roots if os.path.isdir(root)})
    return [root for root in places if not any(root != other and within(root, other) for other in places)]


def host_roots(python: str) -> tuple[str, ...]:
    """Return what of the host an agent may read: the system, our interpreter, and the one that it works with."""
    prefix = os.path.dirname(os.path.dirname(absolute(python))) if os.path.isabs(python) else ""
    theirs = [prefix] if prefix and os.path.exists(os.path.join(prefix, "pyvenv.cfg")) else []
    return (*SYSTEM_FOLDERS, sys.prefix, sys.base_prefix, *theirs)


def host_sites() -> tuple[str, ...]:
    """Return the directories of our interpreter's packages, and where its editable installations lead: an agent sees
    those too."""
    return tuple(path for path in programs.own_folders("") if path not in (sys.prefix, sys.base_prefix))


def hidden_by(leaks: Sequence[Leak], mount_at: str) -> tuple[str, ...]:
    """Return the paths to hide; UsageError with their names where that can't be done."""
    bad = [leak for leak in leaks if within(leak.path, mount_at) or _is_needed(leak.path)]
    if bad or len(leaks) > MOST_HIDDEN:
        shown = bad or leaks
        named = ", ".join(f"{leak.path} ({leak.why})" for leak in shown[:_NAMED])
        raise UsageError(f"the agent could read the answer in {len(shown)} places that can't be hidden: {named}",
                         hint="remove them, or run on a host without them")  # fmt: skip
    return tuple(leak.path for leak in leaks)


def _is_needed(path: str) -> bool:
    """Whether Python itself would not start without it."""
    return within(real(sys.executable), path)
