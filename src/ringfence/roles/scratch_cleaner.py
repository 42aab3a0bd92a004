"""The process that clears up after a living box of the process level whose caller was killed.

Runs as: scratch cleaner, one for each living box of the process level, and one where others left something behind.
Parent: spawner
Holds: the path of the box's directory, the paths of its control groups, a pipe from the caller, a pidfd of the caller.
Must not have: a job, its streams or its limits; a process to end.

Such a box is a directory, and between visits nobody else is there to remove it. It waits for one of two things: word
from a caller that has removed the directory, or the caller's end; it holds no limit and ends no process (``visit``
does).

A guest of that level can kill it, and a caller can be killed before anybody else knows of a directory. So at its start
it also clears directories of boxes that no caller locks any more; each caller that finds some starts one for that. """

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # loads nothing, see ADR 0003
import os
import select
import stat
import sys
import time

from ringfence.model.own.private_place import BOX
from ringfence.transport import wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.transport.request import ClearRequest

# Longer than the leaders of its visits need to end them.
_CLEAR_WAIT_S = 15.0
# A younger directory may not be locked yet, or its cleaner may be at work.
_ORPHAN_AGE_S = 60.0


def clean(commands: int, reports: int, owner: int) -> None:
    """Runs until the caller has no more use for it. ``owner`` becomes readable when the caller ends."""
    try:
        request = wire.read_clear(commands)
    except EOFError:
        return
    wire.say(reports, wire.started_frame(os.getpid()))
    _clear_orphans_beside(os.path.dirname(request["scratch"]), (commands, reports))
    if _outlives_caller(commands, owner):
        _clear(request)


def _clear_orphans_beside(place: str, ours: tuple[int, ...]) -> None:
    """In a process of its own, which nobody waits for: there may be much to remove."""
    found = orphans(place)
    if not found:
        return
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        child = os.fork()
    except OSError:
        return  # no room for a process: what we are here for comes first
    if child:
        return
    try:
        for descriptor in ours:
            os.close(descriptor)
        _clear_all(found)
    finally:
        os._exit(0)


def _clear_all(found: list[str]) -> None:
    """Those that nobody locks; not before what ran there has been ended by its leader."""
    orphans = {path: folder for path in found if (folder := _locked_alone(path)) >= 0}
    if orphans:
        time.sleep(_CLEAR_WAIT_S)
    for path, folder in orphans.items():
        _clear_orphan(path)
        os.close(folder)


def orphans(place: str) -> list[str]:
    """Directories of such boxes that are old enough and our user's own. For root some belong to the job's id."""
    youngest_s = time.time() - _ORPHAN_AGE_S
    try:
        with os.scandir(place) as entries:
            named = [entry for entry in entries if entry.name.startswith(BOX)]
            looks = [(entry.path, entry.stat(follow_symlinks=False)) for entry in named]
    except OSError:
        return []  # it is not there yet, or one of them not any more
    me = os.geteuid()
    ours = ((path, look) for path, look in looks if stat.S_ISDIR(look.st_mode) and me in (0, look.st_uid))
    return [path for path, look in ours if look.st_mtime < youngest_s]


def _locked_alone(path: str) -> int:
    """A descriptor that holds the lock; -1: its caller lives, or somebody else clears it."""
    import fcntl

    try:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return -1
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(folder)
        return -1
    return folder


def _clear_orphan(path: str) -> None:
    from ringfence.roles.removal import remove_tree

    try:
        remove_tree(path)
    except OSError:
        pass  # the next one tries again


def _outlives_caller(commands: int, owner: int) -> bool:
    poller = select.poll()
    poller.register(commands, select.POLLIN)
    if sys.platform == "linux":  # elsewhere there is no such descriptor, and the end of the pipe must do
        poller.register(owner, select.POLLIN)
    poller.poll()
    return not (wire.is_readable(commands) and os.read(commands, 1))


def _clear(request: ClearRequest) -> None:
    from ringfence.roles.removal import remove_tree

    if request["cgroups"]:
        from ringfence.kernel.cgroup import tree as cgroup_tree

        cgroup_tree.remove(request["cgroups"])
    give_up = time.monotonic() + _CLEAR_WAIT_S
    while True:
        try:
            return remove_tree(request["scratch"])
        except OSError:  # what runs in there is being ended at this moment, and may write until then
            if time.monotonic() > give_up:
                raise
