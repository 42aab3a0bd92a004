"""What a commit does to the base: what it finds there, what it changes, and what others have changed.

Pure planning and checks; ``apply`` carries out, ``modes`` says which mode is given. Sockets, FIFOs and devices stay
in the layer.
"""

from __future__ import annotations

import os
import stat
from _collections_abc import Callable

from ringfence.checkpoint import content
from ringfence.checkpoint.entry import (
    DELETED,
    FOLDER,
    GONE,
    SPECIAL,
    Entry,
    Manifest,
    Seen,
    ancestors,
    fingerprint,
    ordered,
    shown,
)
from ringfence.checkpoint.merge import is_below
from ringfence.checkpoint.modes import Grant, Noted
from ringfence.checkpoint.scan import OF_BASE, Reading, Scan
from ringfence.errors import CheckpointError, ConflictError
from ringfence.model.record import record, replace

Foreign = Callable[[str, Seen | None, Entry | None], bool]
"""Whether somebody else changed what the base has at a path, given what the layer has there."""


@record
class CommitPlan:
    """The base as it is at the paths concerned, and as it is to be."""

    now: dict[str, Seen]
    target: dict[str, Entry]


def plan(layer: Manifest, base: Scan, hidden: frozenset[str], grant: Grant) -> CommitPlan:
    """What the layer makes of the base; what is hidden from the job stays, and the directories above with their
    modes."""
    found = CommitPlan(now={}, target={})
    ways = frozenset(above for secret in hidden for above in ancestors(secret))
    for path in ordered(layer):
        if not is_below(path, hidden):
            _plan_one(path, layer[path], base, found, ways, grant)
    return found


def outside(old: CommitPlan, hidden: frozenset[str]) -> CommitPlan:
    """The same without what has been hidden since: an operation that was broken off must not reach it either."""
    now = {path: seen for path, seen in old.now.items() if not is_below(path, hidden)}
    return CommitPlan(now=now, target={path: each for path, each in old.target.items() if not is_below(path, hidden)})


def _plan_one(path: str, entry: Entry, base: Scan, found: CommitPlan, ways: frozenset[str], grant: Grant) -> None:
    """``ways``: the directories that lead to something hidden."""
    for above in ancestors(path):
        _stays(above, base, found)
    seen = base.one(path, OF_BASE)
    if seen is not None:
        found.now[path] = seen
    if seen is not None and seen.entry.kind == FOLDER and (entry.kind != FOLDER or entry.opaque):
        below = base.below(path, OF_BASE)
        found.now.update(below)
        found.target.update((name, below[name].entry) for name in ways & below.keys())
    if seen is not None and entry.kind != FOLDER and path in ways:
        found.target[path] = seen.entry
    elif entry.kind != DELETED and entry.kind not in SPECIAL:
        twin = found.target.get(entry.twin)  # the same file has the same mode
        same = twin is not None and twin.kind == entry.kind
        mode = twin.mode if twin and same else grant(path, entry, seen.entry if seen else None)
        if path in ways and seen is not None and seen.entry.kind == FOLDER:
            mode = seen.entry.mode  # or a guest could close the way to what it may not touch
        found.target[path] = replace(entry, mode=mode, opaque=False, copied=False)


def _stays(path: str, base: Scan, found: CommitPlan) -> None:
    if path in found.target:
        return
    seen = base.one(path, OF_BASE)
    if seen is not None:
        found.now[path] = seen
        found.target[path] = seen.entry


def conflicts(commit: CommitPlan, layer: Manifest, foreign: Foreign) -> list[str]:
    """What others wrote and this commit would overwrite or remove."""
    losing = {above for path in commit.now.keys() - commit.target.keys() for above in (path, *ancestors(path))}
    concerned = [path for path, seen in commit.now.items() if seen.entry.kind != FOLDER or path in losing]
    paths = [path for path in concerned if changes(commit, path) and foreign(path, commit.now[path], layer.get(path))]
    paths += [path for path in commit.target if path not in commit.now and foreign(path, None, layer.get(path))]
    # Something is to be written below a path that is not a directory any more: somebody replaced the directory.
    passed = {above for path in commit.target for above in ancestors(path)}
    paths += [path for path in passed & commit.target.keys() if commit.target[path].kind != FOLDER]
    return ordered(set(paths))


def modes_in_conflict(commit: CommitPlan, layer: Manifest, noted: Noted) -> list[str]:
    """Directories that stay, and whose modes both sides have changed, each in its way."""
    both = [path for path in layer.keys() & commit.now.keys() & commit.target.keys() if noted(path) is not None]
    return [path for path in both if commit.now[path].entry.kind == commit.target[path].kind == FOLDER
            and noted(path) not in (commit.now[path].entry.mode, layer[path].mode)
            and commit.now[path].entry.mode != commit.target[path].mode]  # fmt: skip


def changes(commit: CommitPlan, path: str) -> bool:
    seen = commit.now.get(path)
    return commit.target.get(path) != (seen.entry if seen else None)


def is_told(commit: CommitPlan, path: str) -> bool:
    """Whether the commit of a path is reported: not that of a directory where only the time differs."""
    seen, wanted = commit.now.get(path), commit.target.get(path)
    if seen is None or wanted is None or seen.entry.kind != FOLDER:
        return True
    return replace(seen.entry, mtime_ns=wanted.mtime_ns) != wanted


def removes(commit: CommitPlan, path: str) -> bool:
    """Whether the base has something there that goes: also if what took its place stays in the layer."""
    return path in commit.now and path not in commit.target


def check_mounts(commit: CommitPlan, mounts: frozenset[str], *, shown: bool) -> None:
    """Refuse to change what another file system has, where the job was shown the bare directory below it.

    ``shown``: it saw a copy of what is mounted there; then only the mount point itself must stay.
    """
    paths = [path for path in {*commit.now, *commit.target} if changes(commit, path) and is_below(path, mounts)]
    if shown:
        paths = [path for path in paths if path in mounts and path not in commit.target]
    if paths:
        raise CheckpointError(
            f"something else is mounted there: {named(paths)}", hint="unmount it, or commit the other paths"
        )


CHANGED = "changed by somebody else since the layer was opened"


def refuse(paths: list[str], problem: str = CHANGED) -> None:
    """Raise an error that names what others changed, if anything."""
    if paths:
        raise ConflictError(
            f"{problem}: {named(paths)}",
            paths=tuple(ordered(paths)),
            hint="commit the other paths, or say who wins: on_conflict='theirs', 'mine' or 'merge'",
            problem=problem,
        )


def left_to_them(paths: list[str]) -> None:
    """The same for a commit that was broken off, and then finished without these paths."""
    paths = list(dict.fromkeys(paths))
    if paths:
        raise ConflictError(f"kept the directory's version: {named(paths)}", paths=tuple(paths))


def named(paths: list[str]) -> str:
    first = ", ".join(map(shown, ordered(paths)[:5]))
    return f"{first} and {len(paths) - 5} more" if len(paths) > 5 else first


def check_again(commit: CommitPlan, base: Scan) -> None:
    """Refuse if others have changed something since ``plan``. Directories that stay may contain other things by now."""
    moved = [path for path in {*commit.now, *commit.target} if _moved_on(base.tree.status(path), commit.now.get(path))]
    refuse([*moved, *_strangers(commit, base)])


def _moved_on(status: os.stat_result | None, before: Seen | None) -> bool:
    if status is None or before is None:
        return (status is None) != (before is None)
    folders = stat.S_ISDIR(status.st_mode), before.entry.kind == FOLDER
    if folders == (True, True):
        return status.st_mode != before.fingerprint[4]
    return fingerprint(status) != before.fingerprint


def _strangers(commit: CommitPlan, base: Scan) -> list[str]:
    """What others put into directories that are to be removed, since we looked at them."""
    inside = (f"{folder}/{name}" for folder in _going(commit) for name in _names(folder, base))
    return [path for path in inside if path not in commit.now]


def _going(commit: CommitPlan) -> list[str]:
    """Directories that are to be removed, or replaced by something else."""
    folders = (path for path, seen in commit.now.items() if seen.entry.kind == FOLDER)
    return [path for path in folders if path not in commit.target or commit.target[path].kind != FOLDER]


def _names(folder: str, base: Scan) -> list[str]:
    status = base.tree.status(folder)
    try:
        return base.tree.names(folder) if status is not None and stat.S_ISDIR(status.st_mode) else []
    except OSError:
        return []  # it is closed to us, or was just replaced: a directory that is not empty is not removed anyway


def resume(old: CommitPlan, base: Scan) -> tuple[CommitPlan, list[str]]:
    """The same plan after an interruption, without what others have changed meanwhile; return that too."""
    found = {path: base.one(path, Reading(content.digest)) for path in ordered({*old.now, *old.target})}
    theirs = [path for path, seen in found.items() if seen is not None and _is_theirs(path, seen, old)]
    used = {above for path in (*theirs, *_strangers(old, base)) for above in ancestors(path)} & set(_going(old))
    left = {*theirs, *used}
    now = {path: seen for path, seen in found.items() if seen is not None and path not in left}
    target = {path: entry for path, entry in old.target.items() if path not in left}
    # If a directory was to be removed and is in use again, its own path is enough.
    return CommitPlan(now=now, target=target), [path for path in ordered(left) if used.isdisjoint(ancestors(path))]


def left_over(old: CommitPlan, theirs: list[str]) -> dict[str, Entry]:
    """What these paths were to become, as part of a layer: it stays there, and is not lost."""
    found = {path: replace(old.target[path], twin="") if path in old.target else GONE for path in theirs}
    above = {path for each in theirs for path in ancestors(each)} - found.keys()
    folders = ((path, old.target.get(path) or old.now[path].entry) for path in above if path in old.now)
    return {**{path: entry for path, entry in folders if entry.kind == FOLDER}, **found}


def _is_theirs(path: str, seen: Seen, old: CommitPlan) -> bool:
    wanted = old.target.get(path)
    if seen.entry.kind == FOLDER or (wanted is not None and replace(wanted, twin="") == seen.entry):
        return False
    before = old.now.get(path)
    if before is None or before.fingerprint[:3] != seen.fingerprint[:3]:
        return True
    # If a file has several names, our own work on another name changed its ctime.
    one_name = before.fingerprint[5] == seen.fingerprint[5] == 1
    return one_name and before.fingerprint[3] != seen.fingerprint[3]
