"""The filter of system calls as an engine takes it: our own profiles (``kernel/seccomp/profiles``) as its JSON.

An engine puts the filter up before the program is executed, so ``execve`` has to be open in it. A process that runs
code itself closes ``execve`` afterwards by a second filter, ``closing()``: our ``tight`` profile (ADR 0100).

``python -m ringfence.container.seccomp_profile`` writes the shipped file anew.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator, Mapping

from ringfence.kernel.seccomp import profiles
from ringfence.kernel.seccomp.rules import Kind, Profile, Rule
from ringfence.model.limits import SyscallProfile

ARCHITECTURES = {"x86_64": "SCMP_ARCH_X86_64", "aarch64": "SCMP_ARCH_AARCH64"}
FILE = os.path.join(os.path.dirname(__file__), "seccomp_profile.json")
"""As shipped: ``tight``, for code that needs neither network nor other processes."""
_SETID = 0o6000
_MAKES = 0o100 | 0o20000000
_SOCKETS = (profiles.AF_UNIX, profiles.AF_INET, profiles.AF_INET6, profiles.AF_NETLINK)
_INT, _PID_BITS = 0xFFFFFFFF, 22
"""The kernel drops the upper half of an int; a pid has at most so many bits."""
_IOPRIO_WHO_PROCESS = 1
_NO_NEW_NAMESPACES = profiles.CLONE_NAMESPACES | profiles.CLONE_PARENT
Args = tuple[dict[str, object], ...]


def _masked(index: int, mask: int, value: int = 0) -> dict[str, object]:
    return {"index": index, "value": mask, "valueTwo": value, "op": "SCMP_CMP_MASKED_EQ"}


def _equal(index: int, value: int) -> dict[str, object]:
    return {"index": index, "value": value, "op": "SCMP_CMP_EQ"}


CONDITIONS: Mapping[str, tuple[Args, ...]] = {
    "clone": ((_masked(0, _NO_NEW_NAMESPACES),),),
    "unshare": (),
    "ptrace": (),
    "chmod": ((_masked(1, _SETID),),),
    "fchmod": ((_masked(1, _SETID),),),
    "fchmodat": ((_masked(2, _SETID),),),
    "fchmodat2": ((_masked(2, _SETID),),),
    "creat": ((_masked(1, _SETID),),),
    "mknod": ((_masked(1, 0o176000, 0o010000),), (_masked(1, 0o176000, 0o100000),), (_masked(1, 0o176000),)),
    "mknodat": ((_masked(2, 0o176000, 0o010000),), (_masked(2, 0o176000, 0o100000),), (_masked(2, 0o176000),)),
    "open": ((_masked(1, _MAKES),), (_masked(2, _SETID),)),
    "openat": ((_masked(2, _MAKES),), (_masked(3, _SETID),)),
    "socket": tuple((_equal(0, family),) for family in _SOCKETS),
    "socketpair": ((_equal(0, profiles.AF_UNIX),),),
    "personality": tuple((_equal(0, value),) for value in (0, 8, 0x20000, 0x20008, 0x40000, 0xFFFFFFFF)),
    "fallocate": ((_equal(1, 3),), (_equal(1, 8),)),
    "renameat2": ((_masked(4, 4),),),
    "sendto": ((_masked(3, 0x20000000),),),
    "sendmmsg": ((_masked(3, 0x20000000),),),
    "sendmsg": ((_masked(2, 0x20000000),),),
    "seccomp": ((_masked(1, 8),),),
    "mmap": ((_masked(3, 0x40000),),),
    "memfd_create": ((_masked(1, 4),),),
    "shmget": ((_masked(2, 0o4000),),),
}
"""Calls that our profile closes conditionally. A call is open if all conditions of any row hold; without rows never."""
_ITSELF: Args = (_masked(0, _INT),)
_OTHERS_THAN_PID_1 = tuple((_masked(0, 1 << bit, 1 << bit),) for bit in range(1, _PID_BITS))
"""One bit above the lowest is set: a number from 2 on. Programs bind their threads to processors by the thread's."""
PID_1_CONDITIONS: Mapping[str, tuple[Args, ...]] = {
    "sched_setscheduler": (_ITSELF,),
    "sched_setparam": (_ITSELF,),
    "sched_setattr": (_ITSELF,),
    "sched_setaffinity": (_ITSELF, *_OTHERS_THAN_PID_1),
    "setpriority": ((_masked(0, _INT), _masked(1, _INT)),),
    "ioprio_set": ((_masked(0, _INT, _IOPRIO_WHO_PROCESS), _masked(1, _INT)),),
    "prlimit64": (_ITSELF, (_equal(2, 0),)),
}
"""The same for calls by which a job could hold up or limit pid 1, which has its user and ends it."""
_CONNECTED_PAIRS = tuple((_equal(0, profiles.AF_UNIX), _masked(1, 0xF, kind))
                         for kind in (profiles.SOCK_STREAM, profiles.SOCK_SEQPACKET))  # fmt: skip
UNNAMED_CONDITIONS: Mapping[str, tuple[Args, ...]] = {
    "socket": tuple((_equal(0, family),) for family in _SOCKETS if family != profiles.AF_UNIX),
    "socketpair": _CONNECTED_PAIRS,
}
"""The same where something of the host is shown: a Unix socket in it answers whoever reaches its path (ADR 0041)."""
TIGHT_CONDITIONS: Mapping[str, tuple[Args, ...]] = {
    "clone": ((_masked(0, _NO_NEW_NAMESPACES | profiles.CLONE_THREAD, profiles.CLONE_THREAD),),),
    "sendto": ((_equal(4, 0),),),
    "socketpair": _CONNECTED_PAIRS,
}
"""The same where there is no network and no other process."""
LEFT_OPEN = {
    "ioctl": "an engine can't say «none of these»; a container has a terminal of its own, or none",
    "fcntl": "as ioctl; what can be written is the container's own",
    "prctl": "as ioctl",
    "prlimit64": "as ioctl; hard limits hold in any case, and no process has another's",
    "setrlimit": "as ioctl; hard limits hold in any case",
    "sync": "said to be done where nothing is; an engine can't say that",
}
"""Calls that our profile closes on a condition and this one does not, with the reason."""


def text(which: SyscallProfile, *, unix_names: bool = True) -> str:
    """Return the profile as an engine takes it. ``unix_names``: Unix sockets may be connected to a path."""
    return json.dumps(as_data(which, unix_names=unix_names), separators=(",", ":"))


def as_data(which: SyscallProfile, *, guards_pid_1: bool = True, unix_names: bool = True) -> dict[str, object]:
    """``guards_pid_1``: the job is in the container's own pid namespace."""
    tight = which is SyscallProfile.TIGHT
    profile = profiles.TIGHT_EXEC if tight else profiles.DEFAULT
    conditions = {**CONDITIONS, **(PID_1_CONDITIONS if guards_pid_1 else {}),
                  **({} if unix_names else UNNAMED_CONDITIONS), **(TIGHT_CONDITIONS if tight else {})}  # fmt: skip
    closed = {call: rule for rule in reversed(profile.closed) if not rule.when for call in rule.calls}
    calls = [call for rule in profile.open for call in rule.calls if call not in closed or call in LEFT_OPEN]
    rows: list[dict[str, object]] = [{"names": sorted(set(calls) - conditions.keys()), "action": "SCMP_ACT_ALLOW"}]
    rows += [{"names": [call], "action": "SCMP_ACT_ALLOW", "args": list(args)}
             for call in sorted(set(calls) & conditions.keys()) for args in conditions[call]]  # fmt: skip
    rows += _refusals(profile, closed)
    return {"defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": errno.EPERM,
            "architectures": [*ARCHITECTURES.values()], "syscalls": rows}  # fmt: skip


def _refusals(profile: Profile, closed: Mapping[str, Rule]) -> Iterator[dict[str, object]]:
    """Calls that programs try at their start and can do without: they are told that the call does not exist."""
    by_errno: dict[int, list[str]] = {}
    for call, rule in closed.items():
        if rule.action.kind is not Kind.FORBID and rule.action.errno not in (0, errno.EPERM):
            by_errno.setdefault(rule.action.errno, []).append(call)
    for code, calls in sorted(by_errno.items()):
        yield {"names": sorted(calls), "action": "SCMP_ACT_ERRNO", "errnoRet": code}


_CLOSING = """\
def close_the_rest():
    import ctypes, struct
    libc = ctypes.CDLL(None, use_errno=True)
    code = bytes.fromhex({code!r})
    kept = ctypes.create_string_buffer(code)
    program = struct.pack("@HP", len(code) // 8, ctypes.addressof(kept))
    if libc.prctl(38, 1, 0, 0, 0) or libc.syscall({number}, 1, 1, program):
        raise OSError(ctypes.get_errno(), "the second filter can't be put up")
"""


def closing(architecture: str) -> str:
    """Return Python source of a function ``close_the_rest`` that closes execve, process creation and sockets for its
    process and all its threads. ``architecture``: of the container, such as ``x86_64``. It needs ctypes inside."""
    from ringfence.kernel.seccomp.compile import compile
    from ringfence.kernel.syscall_numbers import NUMBERS

    code = compile(profiles.TIGHT, architecture)
    return _CLOSING.format(code=code.hex(), number=NUMBERS[architecture]["seccomp"])


def shipped() -> str:
    """Return what the shipped file holds: the same for people."""
    return json.dumps(as_data(SyscallProfile.TIGHT), indent=1) + "\n"


if __name__ == "__main__":
    with open(FILE, "w", encoding="ascii") as file:
        file.write(shipped())
