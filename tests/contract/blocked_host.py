"""Becomes a host without user namespaces, in a way in which they are really missing, and goes on with a command.

``python blocked_host.py HOW COMMAND…``. Both ways hold for this process and its children only, and need no root.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from ringfence.kernel import syscalls
from ringfence.kernel.seccomp import compile as seccomp
from ringfence.kernel.seccomp.profiles import CLONE_NAMESPACES
from ringfence.kernel.seccomp.rules import Action, Kind, Profile, Rule, any_bit
from ringfence.kernel.syscall_numbers import AARCH64, NUMBERS, X86_64, architecture

_CLONE_NEWUSER = 0x10000000
_EPERM, _ENOSYS = 1, 38
_ALLOW = Action(kind=Kind.ALLOW)


def _denied(calls: str, code: int, *when: object) -> Rule:
    action = Action(kind=Kind.DENY, errno=code)
    return Rule(calls=tuple(calls.split()), action=action, reason="a container's default", when=when)  # type: ignore[arg-type]


def by_filter() -> None:
    """What the usual container engines close for a container without CAP_SYS_ADMIN."""
    everything = tuple(NUMBERS[X86_64].keys() | NUMBERS[AARCH64].keys())
    profile = Profile(
        name="container",
        closed=(
            _denied("unshare setns mount umount2 pivot_root move_mount open_tree fsopen mount_setattr", _EPERM),
            _denied("clone", _EPERM, any_bit(0, CLONE_NAMESPACES)),
            _denied("clone3", _ENOSYS),
            _denied("keyctl add_key request_key", _EPERM),
        ),
        open=(Rule(calls=everything, action=_ALLOW, reason="the rest"),),
        unknown=Rule(calls=(), action=_ALLOW, reason="the rest"),
        foreign=Rule(calls=(), action=_ALLOW, reason="the rest"),
    )
    seccomp.install(seccomp.compile(profile, architecture()))


def by_limit() -> None:
    """user.max_user_namespaces = 0, in a user namespace of its own."""
    user, group = os.geteuid(), os.getegid()
    syscalls.call("unshare", _CLONE_NEWUSER)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    Path("/proc/sys/user/max_user_namespaces").write_text("0")


WAYS = {"filter": by_filter, "limit": by_limit, "open": lambda: None}

if __name__ == "__main__":
    WAYS[sys.argv[1]]()
    os.execv(sys.argv[2], sys.argv[2:])
