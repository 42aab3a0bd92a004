"""Namespaces and identity: who the job is on the host, who it believes it is, and what it cannot see.

As root the job gets an unprivileged host id of its own; as a user it stays itself. Either way one id is mapped,
by the leader, and nothing that happens inside from then on is done as the host's root.
"""

from __future__ import annotations

import os
from _collections_abc import Iterable
from struct import pack

from ringfence.kernel import syscalls
from ringfence.kernel.calls import native
from ringfence.transport import passing

_FLAGS = {
    "user": 0x10000000, "mount": 0x00020000, "pid": 0x20000000, "net": 0x40000000,
    "ipc": 0x08000000, "uts": 0x04000000, "cgroup": 0x02000000, "time": 0x00000080,
}  # fmt: skip
# Far above what distributions and subordinate ranges hand out; a process id has at most 22 bits.
FIRST_HOST_ID, IDS_PER_PROCESS = 0x70000000, 512
DATAGRAMS = (2, 2 | 0o2000000, 0)
"""Arguments of socket: AF_INET, SOCK_DGRAM | SOCK_CLOEXEC."""
SET_FLAGS = 0x8914
LOOPBACK_UP = pack("16sh22x", b"lo", 0x1 | 0x8)
"""A struct ifreq for that, with IFF_UP and IFF_LOOPBACK."""
_SIGKILL = 9
GUEST_ID = 1000
"""Who the job of a root caller believes it is."""


def host_id(owner: int, place: int = IDS_PER_PROCESS - 1) -> int:
    """An id on the host for a sandbox whose caller is root: every living process has its own ids to give."""
    return FIRST_HOST_ID + owner * IDS_PER_PROCESS + place


def flags(names: list[str]) -> int:
    number = 0
    for name in names:
        number |= _FLAGS[name]
    return number


def unshare(names: list[str]) -> None:
    """Enter new namespaces; of a new pid namespace only the next child is a member."""
    syscalls.call("unshare", flags(names))


def can_be_made(names: list[str]) -> bool:
    """Whether this process may make such namespaces: a child of it tries."""
    child = os.fork()
    if child == 0:
        try:
            unshare(names)
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitpid(child, 0)[1] == 0


def map_ids(pid: int | str, outside: tuple[int, int], inside: tuple[int, int]) -> None:
    """Map the one (uid, gid) that a child in a new user namespace has on the host to the one that it has inside.

    The child must be dumpable: else the files below belong to root.
    """
    uid_map, gid_map = map_lines(outside, inside)
    for name, text in (("setgroups", "deny"), ("uid_map", uid_map), ("gid_map", gid_map)):
        write(f"/proc/{pid}/{name}", text)


def map_lines(outside: tuple[int | str, int | str], inside: tuple[int, int]) -> tuple[str, str]:
    """What uid_map and gid_map say; an id outside may be a word for readers."""
    return f"{inside[0]} {outside[0]} 1", f"{inside[1]} {outside[1]} 1"


def outside(identity: int) -> tuple[int, int]:
    """The (uid, gid) of a sandbox on the host: the one that it is given by root, or its user's."""
    return (identity, identity) if os.geteuid() == 0 else (os.geteuid(), os.getegid())


def take_identity(uid: int, gid: int) -> None:
    """Become the one id that is mapped; where root is the caller, that ends being the host's root for good."""
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)


def write(path: str, text: str) -> None:
    """Write a setting of the kernel, in one call as it wants it."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode("ascii"))
    finally:
        os.close(descriptor)


def name_host(name: str) -> None:
    """The host name that the job sees."""
    encoded = name.encode("ascii")
    syscalls.call("sethostname", encoded, len(encoded))


def loopback_up() -> None:
    """A new network namespace has a loopback that is down; programs expect it up."""
    link = syscalls.call("socket", *DATAGRAMS)
    try:
        syscalls.call("ioctl", link, SET_FLAGS, LOOPBACK_UP)
    finally:
        os.close(link)


def enter_new_network(settings: Iterable[tuple[str, str]] = ()) -> int:
    """Be in an empty network namespace with a loopback that is up and these (name below /proc/sys, value). The
    descriptor keeps it alive."""
    unshare(["net"])
    loopback_up()
    for name, value in settings:
        write(f"/proc/sys/{name}", value)
    return os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def network_namespace() -> int:
    """The same, but the process that made it is gone."""
    ours, theirs = passing.channel()
    child = os.fork()
    if child == 0:
        try:
            passing.send(theirs, b"n", [enter_new_network()])
        finally:
            os._exit(0)
    os.close(theirs)
    try:
        _, found = passing.receive(ours)
    finally:
        os.close(ours)
        os.waitpid(child, 0)
    if not found:
        raise OSError("no network namespace can be made")
    return found[0]


def enter_network(namespace: int) -> None:
    """What this process forks from now on is born in it."""
    syscalls.call("setns", namespace, _FLAGS["net"])


def mapping_namespace(on_disk_uid: int, on_disk_gid: int, host_id: int) -> int:
    """A user namespace that only carries a map, for an idmapped mount: files of the one id appear as the other's.

    Needs root. The descriptor keeps it alive; the process that made it is gone.
    """
    lines = map_lines((host_id, host_id), (on_disk_uid, on_disk_gid))
    library = native.library()
    if library is None:
        return _mapped_by_python(lines)
    child = library.idle_clone(_FLAGS["user"])
    try:
        return _mapped(child, lines)
    finally:
        os.kill(child, _SIGKILL)  # our child, and not collected yet
        os.waitpid(child, 0)


def _mapped(child: int, lines: tuple[str, str]) -> int:
    for name, line in zip(("uid_map", "gid_map"), lines, strict=True):
        write(f"/proc/{child}/{name}", line)
    return os.open(f"/proc/{child}/ns/user", os.O_RDONLY | os.O_CLOEXEC)


def _mapped_by_python(lines: tuple[str, str]) -> int:
    ours, theirs = passing.channel()
    child = 0
    try:
        child = os.fork()
        if child == 0:
            os.close(ours)
            _hold_user_namespace(theirs)
        os.close(theirs)
        theirs = -1
        if os.read(ours, 1) != b"r":
            raise OSError("no user namespace for an idmapped mount")
        return _mapped(child, lines)
    finally:
        for descriptor in (ours, theirs) if theirs >= 0 else (ours,):
            os.close(descriptor)
        if child:
            os.waitpid(child, 0)


def _hold_user_namespace(door: int) -> None:
    """Never returns: the process ends when the other end of its door is closed."""
    try:
        unshare(["user"])
        os.write(door, b"r")
        os.read(door, 1)
    finally:
        os._exit(0)
