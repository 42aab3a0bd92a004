"""What the level container promises, and which parts of a policy it can't hold on this host."""

from __future__ import annotations

import os
from collections.abc import Mapping

from ringfence.backends.tables import PLAIN, Mechanisms
from ringfence.container import applied, job_spec, network_holder, visits
from ringfence.errors import UnavailableError
from ringfence.model.lack import Lack
from ringfence.model.limits import SyscallProfile
from ringfence.model.outcome import Enforcement, Mechanism
from ringfence.model.policy import HOST_NETWORK, SandboxPolicy
from ringfence.model.record import replace
from ringfence.sandbox import networks, showing

RUNTIME_VARIABLE = "RINGFENCE_RUNTIME"
"""Names the engine's runtime, such as ``runsc``; absent: the engine's default."""
FIX = "use isolation strict"
ENGINE = "engine"
"""The capability that is lacking if no engine answers: then nothing is held."""

_SHARED = "their Unix sockets answer no job, their FIFOs do"
CONTAINER: Mechanisms = {
    **PLAIN,
    "wall_time": ("deadline", "at the deadline the engine kills the container, and ringfence all in its control group",
                  Mechanism.DEADLINE),
    "cpu_time": ("RLIMIT_CPU and watchdog", "a process by the kernel, the container by its control group's account",
                 Mechanism.RLIMIT, Mechanism.WATCHDOG),
    "memory": ("cgroup", "of all its processes and of what it writes; no swap", Mechanism.CGROUP),
    "pids": ("cgroup", "tasks of the container, and one for its first process", Mechanism.CGROUP),
    "nofile": ("RLIMIT_NOFILE", "per process", Mechanism.RLIMIT),
    "file_size": ("RLIMIT_FSIZE", "each file", Mechanism.RLIMIT),
    "disk": ("tmpfs", "all that can be written is in memory, and no larger than that", Mechanism.MOUNT_NAMESPACE),
    "cpu_share": ("cgroup", "a share of the processors' time", Mechanism.CGROUP),
    "network": ("network namespace", "empty but for its own loopback", Mechanism.NETWORK_NAMESPACE),
    "readable_paths": ("mount namespace", f"shown read-only; beside them only the workspace is there; {_SHARED}",
                       Mechanism.MOUNT_NAMESPACE),
    "writable_paths": ("mount namespace", f"shown writable; the workspace too, where it is in one of them; {_SHARED}",
                       Mechanism.MOUNT_NAMESPACE),
    "hidden_paths": ("mount namespace", "empty, or absent; a job that runs while one is created or replaced can see it",
                     Mechanism.MOUNT_NAMESPACE),
    "syscalls": ("seccomp", "a filter that the job can't remove; refused calls are not recorded",
                 Mechanism.SECCOMP),
}  # fmt: skip


def asked_of(policy: SandboxPolicy) -> dict[str, object]:
    return policy.requested() | {"syscalls": policy.syscall_profile or SyscallProfile.DEFAULT}


def no_engine(error: UnavailableError) -> Lack:
    return Lack(capability=ENGINE, missing=f"a container engine ({error})", fix=f"{error.hint}; or {FIX}", whole=True)


def lacks_of_groups(asked: Mapping[str, object], info: Mapping[str, object]) -> list[Lack]:
    why = applied.ignores_groups(info)
    fix = "run the engine as root, or with control groups of version 2"
    named = [name for name in ("memory", "pids", "cpu_share") if name in asked and why]
    return [Lack(capability=name, missing=f"an engine that holds it: {why}", fix=fix) for name in named]


def lacks_of_level(policy: SandboxPolicy, asked: Mapping[str, object]) -> list[Lack]:
    found = []
    if "io" in asked:
        found.append(Lack(capability="io", missing="a limit of bytes per second", fix=FIX, by_level=True))
    if policy.network_rule == HOST_NETWORK:
        found.append(Lack(capability="network", missing="a container with the host's network, which would be none",
                          fix="omit network, or use isolation process or strict", by_level=True))  # fmt: skip
    if policy.disk_bytes is not None and policy.writable_paths:
        found.append(Lack(capability="disk", missing="a limit for what is written on the host itself", fix=FIX,
                          by_level=True))  # fmt: skip
    found += showing.lacks(policy)
    if job_spec.is_gvisor(runtime()):
        found.append(Lack(capability="pids", missing="a runtime that counts the job's tasks alone: those of gVisor's "
                          f"kernel are among them, so {job_spec.GVISOR_TASKS} more are let in",
                          fix=f"unset {RUNTIME_VARIABLE}"))  # fmt: skip
    if policy.mem_bytes < job_spec.LEAST_MEMORY:
        found.append(Lack(capability="memory", missing="an engine that takes less than 6 MiB",
                          fix="ask for 6 MiB or more"))  # fmt: skip
    return found


def lacks_of_list(policy: SandboxPolicy, info: Mapping[str, object], *, is_local: bool) -> list[Lack]:
    """The gateway takes a list where we can enter the container's network."""
    missing, fix = network_holder.why_not(info, runtime(), is_local=is_local)
    return [Lack(capability="network", missing=missing, fix=fix)] if missing else networks.lacks(policy)


def runtime() -> str:
    return os.environ.get(RUNTIME_VARIABLE, "")


def refuse_without_visits(*, is_local: bool) -> None:
    """Raise an error if no container of this engine can take visits."""
    missing, fix = visits.why_not(runtime(), is_local=is_local)
    if missing:
        raise UnavailableError(f"a container that takes visits requires {missing}", missing=("visits",),
                               fixes=(fix, f"or {FIX}"))  # fmt: skip


def told(enforced: Mapping[str, Enforcement], found: Mapping[str, Enforcement]) -> dict[str, Enforcement]:
    """The group's limits as read back, in the policy's own terms for what was asked."""
    both = ((name, enforced[name], entry) for name, entry in found.items() if name in enforced)
    return {name: replace(ours, details=f"{CONTAINER[name][1]}; {entry.details}") for name, ours, entry in both
            if ours.applied and entry.applied and entry.by == (Mechanism.CGROUP,)}  # fmt: skip
