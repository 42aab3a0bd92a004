"""Takes a process of ours, root on the host, into a living sandbox: its namespaces, its id, every capability there.

What enters has power over the sandbox and none over the host: a capability counts in the user namespace that it was
got in. It deliberately starts nothing and confines nothing.
"""

from __future__ import annotations

import os
from struct import pack

from ringfence.kernel import syscalls
from ringfence.kernel.mount import namespaces

_NAMESPACES = ("user", "mount", "net", "ipc", "uts", "cgroup", "time")
_CAPABILITY_VERSION_3 = 0x20080522
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE = 47, 2
_LOW_32 = 0xFFFFFFFF


def let_children_enter(pidfd: int) -> None:
    """Children that are forked from now on are born in the pid namespace of this process."""
    syscalls.call("setns", pidfd, namespaces.flags(["pid"]))


def enter(pidfd: int, uid: int, gid: int) -> None:
    """Enter all its other namespaces, as this id, with capabilities that survive an exec."""
    os.setgroups([])
    here = [name for name in _NAMESPACES if name != "time" or os.path.exists("/proc/self/ns/time")]
    syscalls.call("setns", pidfd, namespaces.flags(here))
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    _keep_capabilities()


def _keep_capabilities() -> None:
    """For an exec: the sandbox has no id 0, so only ambient capabilities survive."""
    with open("/proc/sys/kernel/cap_last_cap", encoding="ascii") as file:
        count = int(file.read()) + 1
    low, high = ((1 << count) - 1) & _LOW_32, ((1 << count) - 1) >> 32
    syscalls.call("capset", pack("Ii", _CAPABILITY_VERSION_3, 0), pack("6I", low, low, low, high, high, high))
    for number in range(count):
        syscalls.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, number)


def set_last_pid(number: int) -> None:
    """The next process of this pid namespace gets the number after this one, if free. For a process born there."""
    with open("/proc/sys/kernel/ns_last_pid", "w", encoding="ascii") as file:
        file.write(str(number))
