"""Namespaces and identity: who the job is on the host, who it believes to be, and what it cannot see.

As root the job takes an unprivileged host id of its own before anything else; as a user it stays itself.
Either way one id is mapped, and nothing that happens from then on is done as the host's root.
"""

from __future__ import annotations

import os

from ringfence.linux import processes, syscalls

_FLAGS = {
    "user": 0x10000000, "mount": 0x00020000, "pid": 0x20000000, "net": 0x40000000,
    "ipc": 0x08000000, "uts": 0x04000000, "cgroup": 0x02000000, "time": 0x00000080,
}  # fmt: skip
# Far above what distributions and subordinate ranges hand out. A living leader's pid makes it the job's own.
FIRST_HOST_ID = 0x70000000
GUEST_ID = 1000
"""Who the job of a root caller believes to be."""


def host_id() -> int:
    """The id on the host of the sandbox that this process is about to enter."""
    return FIRST_HOST_ID + os.getppid()


def take_identity(host_id: int) -> None:
    """Give the host's root up: no groups, one unprivileged id. There is no way back."""
    os.setgroups([])
    os.setresgid(host_id, host_id, host_id)
    os.setresuid(host_id, host_id, host_id)


def unshare(names: list[str]) -> None:
    """Enter new namespaces; of a new pid namespace only the next child is a member."""
    flags = 0
    for name in names:
        flags |= _FLAGS[name]
    syscalls.call("unshare", flags)


def map_ids(inside_uid: int, inside_gid: int) -> None:
    """Map the one id that this process has on the host to the one that it has inside."""
    # After a change of identity the files below belong to root until the process is dumpable again.
    processes.show_memory()
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{inside_uid} {_before['uid']} 1"),
        ("gid_map", f"{inside_gid} {_before['gid']} 1"),
    ):
        _write(f"/proc/self/{name}", text)
    processes.hide_memory()


_before: dict[str, int] = {}


def remember_ids() -> None:
    """In a new user namespace without a map every id reads as the overflow id; so read them before."""
    _before.update(uid=os.getuid(), gid=os.getgid())


def _write(path: str, text: str) -> None:
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
    import _socket
    import fcntl
    from struct import pack

    get_flags, set_flags, up = 0x8913, 0x8914, 0x1
    link = _socket.socket(_socket.AF_INET, _socket.SOCK_DGRAM, 0)
    try:
        request = fcntl.ioctl(link.fileno(), get_flags, pack("16sh22x", b"lo", 0))
        flags = int.from_bytes(request[16:18], "little") | up
        fcntl.ioctl(link.fileno(), set_flags, pack("16sh22x", b"lo", flags))
    finally:
        link.close()


def mapping_namespace(on_disk_uid: int, on_disk_gid: int, host_id: int) -> int:
    """A user namespace that only carries a map, for an idmapped mount: files of the one id appear as the other's.

    Needs root. The descriptor keeps it alive; the process that made it is gone.
    """
    ready_read, ready_write = os.pipe()
    done_read, done_write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(done_write)
            syscalls.call("unshare", _FLAGS["user"])
            os.write(ready_write, b"r")
            os.read(done_read, 1)
        finally:
            os._exit(0)
    try:
        os.close(ready_write)
        os.close(done_read)
        if os.read(ready_read, 1) != b"r":
            raise OSError("no user namespace for an idmapped mount")
        _write(f"/proc/{child}/uid_map", f"{on_disk_uid} {host_id} 1")
        _write(f"/proc/{child}/gid_map", f"{on_disk_gid} {host_id} 1")
        return os.open(f"/proc/{child}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(ready_read)
        os.close(done_write)
        os.waitpid(child, 0)
