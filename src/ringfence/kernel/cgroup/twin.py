"""A group beside the caller's own, for a caller whose own group holds processes of others (cgroup v2).

Such a group can't pass controllers on, and its processes are not ours to move. The nearest group above that can is
often ours as well: root's always is. There the twin is made: it takes over every limit of the group that it stands
beside, so that no job escapes a limit of its caller. The groups of jobs are made in it. It exists as
long as one of them does. ``find`` only looks; ``make`` is called before each group, since another caller that uses
the same twin may have removed it.
"""

from __future__ import annotations

import os

from ringfence.errors import SetupError
from ringfence.kernel.cgroup import tree as cgroup_tree
from ringfence.model.paths import within

_LIMITS = (".max", ".high", "cpuset.cpus", "cpuset.mems")
"""Suffixes of the names of files that hold limits."""
_OF_JOBS = "ringfence-"
"""Prefix of the name of a job's group: what is started in it stays in it."""


def find(own: str, mountpoint: str) -> tuple[str, str]:
    """Return (the twin, the group that it stands beside), or ("", why there can be none)."""
    beside, place = own, os.path.dirname(own)
    while within(place, mountpoint) and _holds_processes(place):
        beside, place = place, os.path.dirname(place)
    if not within(place, mountpoint):
        return "", "no group above it is free of processes"
    if any(part.startswith(_OF_JOBS) for part in own[len(place) :].split("/")):
        return "", "it is the group of a job, which its processes must not leave"
    if not _ours(place, mountpoint):
        return "", f"{place}, the first group above it that is free of processes, is not this user's alone"
    return f"{place}/{prefix()}{os.stat(beside).st_ino}", beside


def prefix() -> str:
    """Return the prefix of the names of this user's twins."""
    return f"{cgroup_tree.TWIN}{os.geteuid()}."


def make(group: str, beside: str, controllers: frozenset[str]) -> None:
    """Make a group in a twin, and the twin if it is not there, with these controllers and the limits of ``beside``.

    A controller that the group above does not pass on yet is switched on there, and stays on: somebody else may use it
    by the time we end. While the twin passes it on, nobody can switch it off above.
    """
    twin = os.path.dirname(group)
    _make_both(twin, group)
    if os.stat(twin).st_uid != os.geteuid():
        raise SetupError("create cgroup", f"{twin} is not this user's")
    for each in (os.path.dirname(twin), twin):
        enable(each, controllers)
    for name in sorted(os.listdir(beside)):
        if name.endswith(_LIMITS):
            _take_over(f"{beside}/{name}", f"{twin}/{name}")


def _make_both(twin: str, group: str) -> None:
    """Another caller may remove the twin, but only while it is empty."""
    for _ in range(100):
        try:
            os.mkdir(twin, 0o755)
        except FileExistsError:
            pass
        try:
            return os.mkdir(group, 0o755)
        except FileNotFoundError:
            continue
    raise SetupError("create cgroup", f"{twin} is removed again and again")


def enable(group: str, controllers: frozenset[str]) -> None:
    """Let the children of a group have these controllers."""
    control = f"{group}/cgroup.subtree_control"
    absent = controllers - set((cgroup_tree.read(control) or "").split())
    if absent:
        cgroup_tree.write(control, " ".join(f"+{name}" for name in sorted(absent)))


def _take_over(source: str, target: str) -> None:
    """A limit that is set per device has a line for each device."""
    lines = (cgroup_tree.read(source) or "").splitlines()
    for line in lines:
        if line not in _lines(target):
            cgroup_tree.write(target, line)
    absent = set(lines) - _lines(target)
    if absent:
        raise SetupError("limit cgroup", f"{target} does not take over {absent.pop()!r} of {source}")


def _lines(path: str) -> set[str]:
    return set((cgroup_tree.read(path) or "").splitlines())


def _holds_processes(directory: str) -> bool:
    """Whether processes keep it from passing controllers on; at the root of the tree they do not."""
    return os.path.exists(f"{directory}/cgroup.type") and bool(cgroup_tree.read(f"{directory}/cgroup.procs"))


def _ours(place: str, mountpoint: str) -> bool:
    """Whether nobody but this user and root can move processes out of groups that are made here."""
    if os.stat(place).st_uid != os.geteuid():
        return False
    trusted = (0, os.geteuid())
    while within(place, mountpoint):
        if os.stat(place).st_uid not in trusted:
            return False
        place = os.path.dirname(place)
    return True
