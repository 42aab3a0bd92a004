"""Confines a job without namespaces: which places of the host it is granted, and the steps that enforce that.

Landlock closes everything that is not granted; the steps run in the job itself, before its program. It
deliberately hides nothing: a place that is not granted is still there, and answers EACCES.
"""

from __future__ import annotations

import os
import stat
from _collections_abc import Callable, Iterable, Iterator

from ringfence.kernel import landlock
from ringfence.kernel.mount import namespaces, privileges
from ringfence.kernel.proc import processes
from ringfence.kernel.seccomp import compile as seccomp
from ringfence.model.paths import within
from ringfence.model.ways.walk import real
from ringfence.transport import passing

Grant = tuple[str, str]
"""(path, key of RIGHTS)."""

RIGHTS: dict[str, tuple[str, ...]] = {
    "read": landlock.READ,
    "write": (*landlock.WRITE, "ioctl_dev", "resolve_unix"),
    "device": ("read_file", "write_file", "truncate", "ioctl_dev"),
    "look": ("read_file", "read_dir"),
}
# By name, and not the directory of terminals: the others in it belong to the user.
DEVICES = tuple(f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom", "tty"))
# Programs need their own entry, which has a new name in every process. Read-only: kernel settings below it check for
# root's id, not for a capability.
LOOKED_AT = ("/proc",)


def grants(
    readable: Iterable[str], writable: Iterable[str], hidden: tuple[str, ...], real: Callable[[str], str] = real
) -> list[Grant]:
    """What is granted, as real paths without anything hidden below them. ``real``: where a path leads, or led at the
    look on which a decision was based: a path that leads elsewhere by now is then refused."""
    wanted = [*((path, "read") for path in readable), *((path, "write") for path in writable)]
    wanted += [*((path, "device") for path in DEVICES), *((path, "look") for path in LOOKED_AT)]
    places = dict.fromkeys((real(path), kind) for path, kind in wanted)
    return [grant for path, kind in places for grant in _without(path, kind, hidden)]


def _without(path: str, kind: str, hidden: tuple[str, ...]) -> Iterator[Grant]:
    """The path, or what is in it now except hidden paths: a grant covers everything below it, without exceptions."""
    if any(within(path, name) for name in hidden):
        return
    if not any(within(name, path) for name in hidden):
        if os.path.lexists(path):
            yield path, kind
        return
    for name in _entries(path):
        yield from _without(os.path.join(path, name), kind, hidden)


def _entries(folder: str) -> list[str]:
    """Links are left out: reading one needs no grant, and what it leads to has its own."""
    try:
        with os.scandir(folder) as found:
            return sorted(entry.name for entry in found if not entry.is_symlink())
    except OSError:
        return []


def closed_to_others(path: str) -> str:
    """The first directory on the way to the path, or the path itself, that an unknown id can't enter; or nothing."""
    way = real(path).split("/")
    places = ["/".join(way[:depth]) or "/" for depth in range(1, len(way) + 1)]
    return next((place for place in places if not os.stat(place).st_mode & stat.S_IXOTH), "")


def landlock_files(granted: list[Grant], open_network: bool = False) -> None:
    """Close everything that this kernel's Landlock knows, except what is granted."""
    beneath = tuple((path, RIGHTS[kind]) for path, kind in granted if os.path.lexists(path))
    ports = () if open_network else tuple(landlock.PORT_RIGHTS)
    ruleset = landlock.Ruleset(
        files=tuple(landlock.FILE_RIGHTS), ports=ports, scopes=tuple(landlock.SCOPES), beneath=beneath
    )
    landlock.restrict(ruleset, allow_partial=True)


def drop_privileges(owned: list[str], own_id: bool) -> None:
    """No capability is left; with ``own_id``, root is given up for an id that nobody else has.

    The step needs no_new_privs: a capability set that can't be emptied here (root without CAP_SETPCAP) is then regained
    by no program.
    """
    import resource  # noqa: F401  (the two are for what comes after; then they may be out of reach)
    import warnings  # noqa: F401

    try:
        privileges.new_session_keyring()
    except PermissionError:
        pass  # an outer filter closes keyrings, and the job's own does too
    try:
        privileges.lock()
    except PermissionError:
        pass
    if own_id:
        _take_id(namespaces.FIRST_HOST_ID + os.getppid(), owned)
    privileges.clear()


def _take_id(identity: int, owned: list[str]) -> None:
    for path in owned:
        os.chown(path, identity, identity, follow_symlinks=False)
    passing.give_pipes((1, 2), identity)
    os.setgroups([])
    os.setresgid(identity, identity, identity)
    os.setresuid(identity, identity, identity)
    processes.die_with_parent()  # a change of id clears it
    if os.getppid() != identity - namespaces.FIRST_HOST_ID:
        raise ProcessLookupError("the leader is gone")


def seccomp_filter(program: bytes) -> None:
    """The filter, without a listener: it works even below an outer sandbox that has one."""
    seccomp.install(program)


STEPS: dict[str, Callable[..., None]] = {
    "landlock files": landlock_files,
    "drop privileges": drop_privileges,
    "seccomp filter": seccomp_filter,
}
