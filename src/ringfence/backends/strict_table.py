"""What STRICT promises of a policy, by which mechanism, where no control group holds it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from ringfence.backends import groups, process
from ringfence.backends.facts import Lack
from ringfence.backends.process import entries
from ringfence.model.limits import SyscallProfile
from ringfence.model.outcome import Enforcement
from ringfence.model.policy import SandboxPolicy
from ringfence.model.record import replace

MECHANISMS: Mapping[str, tuple[str, str]] = {
    **process.MECHANISMS,
    **process.FILTERED,
    **groups.MECHANISMS,
    "wall_time": ("deadline", "the whole sandbox is killed at the deadline"),
    "network": ("network namespace", "empty but for its own loopback"),
    "readable_paths": ("mount namespace", "shown read-only; what is not shown is not there"),
    "writable_paths": ("mount namespace", "shown writable"),
    "hidden_paths": ("mount namespace", "absent"),
    "syscalls": ("seccomp", "a filter that the job can't take off"),
}
_BY_LANDLOCK = "of the Unix sockets in a writable path it reaches its own only"
_BY_FILTER = "no Unix sockets but connected pairs, for one of the host could lie in a writable path"


def landlock_abi() -> int:
    """Which Landlock this kernel has; asked once."""
    if not _abi:
        from ringfence.linux import landlock

        _abi.append(landlock.abi())
    return _abi[0]


_abi: list[int] = []


def landlock_holds_unix_sockets() -> bool:
    """Whether Landlock keeps a job from sockets that were not made under its own rules."""
    from ringfence.linux import landlock

    return landlock_abi() >= landlock.FILE_RIGHTS["resolve_unix"][1]


@lru_cache(maxsize=8)
def promises(policy: SandboxPolicy, lacks: tuple[Lack, ...]) -> dict[str, Enforcement]:
    """What becomes of the policy where no control group holds it; read only, for the same question gets the same."""
    asked = policy.requested() | {"syscalls": policy.syscall_profile or SyscallProfile.DEFAULT}
    table = _with_landlock(entries(asked, MECHANISMS, {lack.capability: lack for lack in lacks}))
    return _with_sockets(table) if policy.writable_paths else table


def _with_sockets(table: dict[str, Enforcement]) -> dict[str, Enforcement]:
    """A writable path is the host's own directory, and may hold a socket of the host's."""
    network = table["network"]
    if not network.applied:
        return table
    by_landlock = landlock_holds_unix_sockets()
    second, details = ("Landlock", _BY_LANDLOCK) if by_landlock else ("seccomp", _BY_FILTER)
    mechanism = f"{network.mechanism} and {second}"
    return {**table, "network": replace(network, mechanism=mechanism, details=f"{network.details}; {details}")}


def _with_landlock(table: dict[str, Enforcement]) -> dict[str, Enforcement]:
    """The second wall stands behind the mounts, where the kernel has it."""
    if not landlock_abi():
        return table
    second = f"mount namespace and Landlock (ABI {landlock_abi()})"
    return {
        name: replace(entry, mechanism=second) if entry.mechanism == "mount namespace" else entry
        for name, entry in table.items()
    }
