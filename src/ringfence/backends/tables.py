"""What holds each capability of a policy, level by level, and what the table of a box says of it.

Every row has a text for people and the mechanisms as a closed set; what is decided is decided by the set.
"""

from __future__ import annotations

import sys
from _collections_abc import Iterable, Mapping

from ringfence.kernel import rlimits
from ringfence.model.lack import Lack
from ringfence.model.limits import LIMIT_OF, SyscallProfile
from ringfence.model.outcome import Enforcement, Mechanism
from ringfence.model.policy import SandboxPolicy
from ringfence.model.record import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeAlias

    from ringfence.kernel.cgroup.group import Cgroup

Mechanisms: TypeAlias = "Mapping[str, tuple[str, str, *tuple[Mechanism, ...]]]"

PLAIN: Mechanisms = {
    "wall_time": ("deadline", "the whole tree is killed at the deadline", Mechanism.DEADLINE),
    "output": ("pipe reader", "each stream", Mechanism.PIPE_READER),
}
"""What any level holds."""
ON_LINUX: Mechanisms = {
    **PLAIN,
    "cpu_time": ("RLIMIT_CPU and watchdog", "a process by the kernel; the tree, checked every 25 ms, a second later",
                 Mechanism.RLIMIT, Mechanism.WATCHDOG),
    "memory": (f"{rlimits.MEMORY} and watchdog",
               "private memory of a process; resident memory of the tree, checked every 25 ms",
               Mechanism.RLIMIT, Mechanism.WATCHDOG),
    "pids": ("watchdog", "tasks of the tree, checked every 25 ms; RLIMIT_NPROC as a net under it",
             Mechanism.WATCHDOG),
    "nofile": ("RLIMIT_NOFILE", "per process", Mechanism.RLIMIT),
    "disk": ("watchdog", "bytes written to storage by the tree, checked every 25 ms; not what fallocate reserves",
             Mechanism.WATCHDOG),
    "file_size": ("RLIMIT_FSIZE", "each file; not what fallocate reserves behind its end", Mechanism.RLIMIT),
}  # fmt: skip
ON_MACOS: Mechanisms = {
    **ON_LINUX,
    "memory": ("watchdog", "resident memory of the tree as ps reports it; best effort, the kernel enforces no limit",
               Mechanism.WATCHDOG),
    "pids": ("watchdog", "processes of the tree as ps reports them, no threads; RLIMIT_NPROC as a net under it",
             Mechanism.WATCHDOG),
    "file_size": ("RLIMIT_FSIZE", "each file", Mechanism.RLIMIT),
}  # fmt: skip
"""And on any other system that has POSIX and no /proc."""
ON_WINDOWS: Mechanisms = {
    **PLAIN,
    "cpu_time": ("watchdog and job object", "user and kernel time of the tree; user time by the job object too",
                 Mechanism.WATCHDOG, Mechanism.JOB_OBJECT),
    "memory": ("job object", "committed memory of a process and of the tree; what is beyond it is refused",
               Mechanism.JOB_OBJECT),
    "pids": ("job object", "processes of the tree, no threads", Mechanism.JOB_OBJECT),
    "nofile": ("watchdog", "open handles of each process, of files and all else, checked every 25 ms",
               Mechanism.WATCHDOG),
    "disk": ("watchdog", "bytes that the tree gives to write calls, to pipes too; not what is written through mappings",
             Mechanism.WATCHDOG),
    "cpu_share": ("job object", "CPU rate control, a hard cap of the tree", Mechanism.JOB_OBJECT),
}  # fmt: skip
UNHELD_ON_WINDOWS: Mechanisms = {
    "cpu_time": ("watchdog", "user and kernel time of the tree, checked every 25 ms", Mechanism.WATCHDOG),
    "memory": ("watchdog", "committed memory of the tree, checked every 25 ms; the job object accepts a limit but "
               "does not enforce it here", Mechanism.WATCHDOG),
    "pids": ("watchdog", "processes of the tree, checked every 25 ms; the job object accepts a limit but does "
             "not enforce it here", Mechanism.WATCHDOG),
}  # fmt: skip
"""Where the job object was tried and held nothing: Wine."""
LOW_INTEGRITY: Mechanisms = {
    "writable_paths": ("low integrity", "of a job without privileges: nothing can be written that is not labelled low",
                       Mechanism.LOW_INTEGRITY),
}  # fmt: skip
"""Where a token of low integrity was tried: an extra, for policies that name what may be written."""
PROCESS = ON_LINUX if sys.platform == "linux" else ON_MACOS
"""What the process level holds here, of the systems with POSIX."""
FILTERED: Mechanisms = {
    "disk": ("watchdog", "bytes written to storage by the tree, checked every 25 ms; none can be reserved unwritten",
             Mechanism.WATCHDOG),
    "file_size": ("RLIMIT_FSIZE", "each file; nothing can be reserved behind its end", Mechanism.RLIMIT),
}  # fmt: skip
"""What a filter makes of them."""
GROUPED: Mechanisms = {
    "cpu_share": ("cgroup", "a share of the processors' time", Mechanism.CGROUP),
    "io": ("cgroup", "bytes a second of reads, and of writes", Mechanism.CGROUP),
}
"""What nothing but a control group can hold."""
WALLS: Mechanisms = {
    "network": ("seccomp", "no socket can be made, not even a local one; pairs can", Mechanism.SECCOMP),
    "readable_paths": ("Landlock", "what is not granted is refused; names, sizes and owners can be seen",
                       Mechanism.LANDLOCK),
    "writable_paths": ("Landlock", "contents elsewhere can't be changed; modes and times of the user's own files can",
                       Mechanism.LANDLOCK),
    "hidden_paths": ("Landlock", "refused with EACCES, not absent; in a directory that holds something hidden nothing "
                     "new can be made", Mechanism.LANDLOCK),
    "syscalls": ("seccomp", "a filter that the job can't remove; refused calls are not recorded",
                 Mechanism.SECCOMP),
}  # fmt: skip
"""What walls on the host's own root hold."""
STRICT: Mechanisms = {
    **PROCESS,
    **FILTERED,
    **GROUPED,
    "disk": ("watchdog", "bytes written to storage by the tree, and room that its layers take, checked every 25 ms; "
             "none can be reserved unwritten", Mechanism.WATCHDOG),
    "wall_time": ("deadline", "the whole sandbox is killed at the deadline", Mechanism.DEADLINE),
    "network": ("network namespace", "empty but for its own loopback", Mechanism.NETWORK_NAMESPACE),
    "readable_paths": ("mount namespace", "shown read-only; what is not shown is not there", Mechanism.MOUNT_NAMESPACE),
    "writable_paths": ("mount namespace", "shown writable", Mechanism.MOUNT_NAMESPACE),
    "hidden_paths": ("mount namespace", "absent", Mechanism.MOUNT_NAMESPACE),
    "syscalls": ("seccomp", "a filter that the job can't remove", Mechanism.SECCOMP),
}  # fmt: skip


def lacks_of_none(policy: SandboxPolicy, fix: str) -> tuple[Lack, ...]:
    """What the level NONE lacks: all but what any level holds."""
    lacking = (name for name in policy.requested() if name not in PLAIN)
    return tuple(Lack(capability=name, missing="any isolation", fix=fix, by_level=True) for name in lacking)


def of_version(mechanisms: Mechanisms, landlock_abi: int) -> Mechanisms:
    """The same rows; those that Landlock alone holds name its version."""
    alone, name = (Mechanism.LANDLOCK,), f"Landlock (ABI {landlock_abi})"
    return {key: (name, *row[1:]) if row[2:] == alone else row for key, row in mechanisms.items()}


def entries(asked: Mapping[str, object], mechanisms: Mechanisms, lacks: Iterable[Lack]) -> dict[str, Enforcement]:
    """What becomes of each of these capabilities."""
    lacking = {lack.capability: lack for lack in lacks}
    return {
        name: not_applied(requested, f"missing: {lacking[name].missing}; to enable it: {lacking[name].fix}")
        if name in lacking else _applied(requested, *mechanisms[name])
        for name, requested in asked.items()
    }  # fmt: skip


def _applied(requested: object, mechanism: str, details: str, *by: Mechanism) -> Enforcement:
    return Enforcement(requested=requested, applied=True, mechanism=mechanism, details=details, by=by)


def not_applied(requested: object, details: str) -> Enforcement:
    return Enforcement(requested=requested, applied=False, mechanism="none", details=details)


def with_group(table: Mapping[str, Enforcement], group: Cgroup | None) -> dict[str, Enforcement]:
    """The table with what a group holds, in the policy's own terms for what was asked."""
    applied = group.applied if group is not None else {}
    by_group = {name: entry for name, entry in applied.items() if entry.applied and name in table}
    return {**table, **{name: replace(entry, requested=table[name].requested) for name, entry in by_group.items()}}


def beyond_hard_limits(policy: SandboxPolicy) -> tuple[Lack, ...]:
    """Limits that this process itself may not grant."""
    return tuple(_over(*row) for row in rlimits.beyond_hard_limit(policy.numbers()))


def _over(capability: str, name: str, hard: int) -> Lack:
    flag = LIMIT_OF[capability].flag
    return Lack(
        capability=capability,
        missing=f"room under this process' hard {name} of {hard}",
        fix=f"ask for less with {flag}, or raise the hard limit before starting (ulimit -H)",
    )


# ---- strict

_BY_LANDLOCK = "of the Unix sockets in a writable path, the job reaches only its own"
_BY_FILTER = "no Unix sockets but connected pairs, because a writable path could contain one of the host"


def of_strict(policy: SandboxPolicy, lacks: Iterable[Lack]) -> dict[str, Enforcement]:
    """What becomes of the policy under strict where no control group holds it."""
    from ringfence.sandbox import networks

    abi = networks.landlock_abi()
    asked = policy.requested() | {"syscalls": policy.syscall_profile or SyscallProfile.DEFAULT}
    table = {name: _with_landlock(entry, abi) for name, entry in entries(asked, STRICT, lacks).items()}
    table |= {name: entry for name, entry in networks.enforced(policy, abi).items()
              if name not in table or table[name].applied}  # fmt: skip
    if policy.writable_paths:
        table["network"] = _with_sockets(table["network"], networks.landlock_holds_unix_sockets(abi))
    return table


def _with_sockets(network: Enforcement, by_landlock: bool) -> Enforcement:
    """A writable path is the host's own directory, and may hold a socket of the host's."""
    if not network.applied:
        return network
    second, details = ("Landlock", _BY_LANDLOCK) if by_landlock else ("seccomp", _BY_FILTER)
    by = (*network.by, Mechanism.LANDLOCK if by_landlock else Mechanism.SECCOMP)
    return replace(
        network, mechanism=f"{network.mechanism} and {second}", details=f"{network.details}; {details}", by=by
    )


def _with_landlock(entry: Enforcement, abi: int) -> Enforcement:
    """The second wall stands behind the mounts, where the kernel has it."""
    if not abi or Mechanism.MOUNT_NAMESPACE not in entry.by:
        return entry
    return replace(entry, mechanism=f"mount namespace and Landlock (ABI {abi})", by=(*entry.by, Mechanism.LANDLOCK))
