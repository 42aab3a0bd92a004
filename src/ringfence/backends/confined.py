"""What is left of STRICT where user namespaces are not to be had: Landlock, seccomp, limits. Only with allow_partial.

The job runs on the host's own root: it reads system folders and what the policy names, writes its working folder
and a private one, and has no socket. It deliberately promises no absence: names, sizes and other processes
can be seen, and the working folder is written directly, without a layer.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from ringfence.backends import groups, process, walled
from ringfence.backends.facts import NO_EGRESS, Lack
from ringfence.backends.forkers import SPAWNER
from ringfence.backends.led_visit import LedVisit, PythonJobs
from ringfence.backends.process import beyond_hard_limits, entries
from ringfence.backends.walled import NO_FILTER, NO_LANDLOCK, TRUNCATE_ABI, WalledBox, lack_truncate
from ringfence.errors import UnavailableError
from ringfence.linux import confinement, host, landlock
from ringfence.model.job import Job
from ringfence.model.limits import SyscallProfile
from ringfence.model.outcome import Enforcement
from ringfence.model.policy import NO_NETWORK, SandboxPolicy
from ringfence.model.record import record, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.monitor.source import Source

# What STRICT gives unasked, beside what a policy can ask for.
NAMESPACES, ABSENCE, SIGNALS = "namespaces", "hidden_absence", "signals"
SCOPES_ABI = 6
_NO_SCOPES = ("Landlock ABI 6: the user's other processes can be signalled", "use Linux 6.12 or newer")
_MECHANISMS: Mapping[str, tuple[str, str]] = {
    **process.MECHANISMS,
    **groups.MECHANISMS,
    **walled.WALLS,
    SIGNALS: ("Landlock", "only the job's own processes can be signalled"),
}


@record
class Host:
    """What this kernel has of what is needed here."""

    blocked: tuple[str, str]
    """Why there are no user namespaces, and the command that would bring them."""
    landlock_abi: int
    seccomp: bool


def look(blocked: tuple[str, str]) -> Host:
    return Host(blocked=blocked, landlock_abi=landlock.abi(), seccomp=host.has_seccomp())


def lacks(policy: SandboxPolicy, found: Host) -> tuple[Lack, ...]:
    """What is not held of the policy and of what STRICT promises by itself."""
    missing = [_lack(NAMESPACES, found.blocked), *beyond_hard_limits(policy)]
    missing += groups.lacks(policy)
    if policy.network_rule != NO_NETWORK:
        missing.append(NO_EGRESS)
    if not found.seccomp:
        missing += [_lack("network", NO_FILTER), _lack("syscalls", NO_FILTER)]
    if found.landlock_abi < SCOPES_ABI:
        missing.append(_lack(SIGNALS, _NO_SCOPES))
    return (*missing, *_lacking_files(policy, found))


def _lacking_files(policy: SandboxPolicy, found: Host) -> list[Lack]:
    missing = [_lack(ABSENCE, found.blocked)] if policy.hidden_paths else []
    if not found.landlock_abi:
        names = ("readable_paths", "writable_paths", *(("hidden_paths",) if policy.hidden_paths else ()))
        return missing + [_lack(name, NO_LANDLOCK) for name in names]
    return missing + ([lack_truncate(found.landlock_abi)] if found.landlock_abi < TRUNCATE_ABI else [])


def _lack(capability: str, missing: tuple[str, str]) -> Lack:
    return Lack(capability=capability, missing=missing[0], fix=missing[1])


def enforcement(policy: SandboxPolicy, found: Host) -> dict[str, Enforcement]:
    """What becomes of everything that the policy asks for, and of what STRICT gives unasked."""
    asked = policy.requested() | {name: getattr(policy, name) for name in ("readable_paths", "writable_paths")}
    asked |= {"syscalls": policy.syscall_profile or SyscallProfile.DEFAULT, SIGNALS: "own",
              NAMESPACES: "user mount pid net ipc uts"}  # fmt: skip
    if policy.hidden_paths:
        asked[ABSENCE] = policy.hidden_paths
    held = {**_MECHANISMS, **(process.FILTERED if found.seccomp else {})}
    table = entries(asked, held, {lack.capability: lack for lack in lacks(policy, found)})
    return walled.named(table, found.landlock_abi)


class ConfinedBox(WalledBox):
    """A folder, a control group where there is one, and walls; as root, an id of its own."""

    def __init__(self, policy: SandboxPolicy, found: Host) -> None:
        self._blocked = found.blocked
        self._cgroup = groups.make(policy)
        held = self._cgroup.applied if self._cgroup else {}
        table = enforcement(policy, found)
        by_group = {name: entry for name, entry in held.items() if entry.applied}
        table |= {name: replace(entry, requested=table[name].requested) for name, entry in by_group.items()}
        kernel = walled.Kernel(landlock_abi=found.landlock_abi, seccomp=found.seccomp)
        super().__init__(policy, table, kernel, own_id=host.is_the_hosts_root())

    def start(self, job: Job, streams: tuple[int, ...]) -> LedVisit:
        if job.cwd:
            held = groups.throttle_folders(self._cgroup, self.policy, self.enforced, (job.cwd,))
            self.enforced = {**self.enforced, **held}
        if self._own_id:
            _refuse_unreachable(job)
        return super().start(job, streams)

    def _lead(self, steps: list[tuple[object, ...]], streams: tuple[int, ...]) -> groups.GroupVisit:
        living = self._keeper is not None
        visit = groups.GroupVisit(self._request(steps), streams, SPAWNER, self._cgroup, in_living_box=living)
        self._keep(visit)
        return visit

    def _cleared(self) -> dict[str, object]:
        return super()._cleared() | {"cgroups": list(self._cgroup.directories) if self._cgroup else []}

    def source(self) -> Source:
        return replace(super().source(), groups=self._cgroup.places if self._cgroup else {})

    def stand_by(self, python: PythonJobs) -> LedVisit:
        """Not here: what is granted depends on the job."""
        raise UnavailableError(
            "a sandbox can't stand by without user namespaces", missing=(NAMESPACES,), hint=self._blocked[1]
        )

    def _walled(self, job: Job, folder: str) -> list[tuple[object, ...]]:
        entered = [("join groups", list(self._cgroup.enter_paths))] if self._cgroup is not None else []
        return [*entered, *super()._walled(job, folder)]

    def _limits(self) -> list[tuple[object, ...]]:
        """An address-space limit breaks programs that reserve much and use little; a cgroup needs none."""
        return [step for step in super()._limits() if step[1] != "RLIMIT_AS" or not self._by_group("memory")]

    def _watched(self) -> dict[str, float]:
        return {name: float("inf") if self._by_group(name) else value for name, value in super()._watched().items()}

    def _by_group(self, name: str) -> bool:
        return name in self.enforced and "cgroup" in self.enforced[name].mechanism

    def close(self) -> str:
        if self._cgroup is not None:
            self._cgroup.remove()
        return super().close()


def _refuse_unreachable(job: Job) -> None:
    """Root's job has an id of its own, and without mounts nothing can be shown to it that is closed to others."""
    for path in filter(None, (host.which(job.argv[0]), job.cwd)):
        closed = confinement.closed_to_others(path) if os.path.exists(path) else ""
        if closed:
            raise UnavailableError(
                f"{path} is out of reach for the id that the job of a root caller gets ({closed} is closed to others)",
                missing=("readable_paths",),
                hint=f"chmod o+x {closed}, or run ringfence as the ordinary user whom it belongs to",
            )

