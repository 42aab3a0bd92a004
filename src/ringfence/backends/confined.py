"""What is left of STRICT where user namespaces are not to be had: Landlock, seccomp, limits. Only with allow_partial.

The job runs on the host's own root: it reads system folders and what the policy names, writes its working folder
and a private one, and has no socket. It deliberately promises no absence: names, sizes and other processes
can be seen, and the working folder is written directly, without a layer.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from ringfence.backends import groups, process
from ringfence.backends.facts import NO_EGRESS, Lack
from ringfence.backends.led_visit import SPAWNER, LedVisit, PythonJobs
from ringfence.backends.process import ProcessBox, beyond_hard_limits, entries, plan_limits
from ringfence.errors import UnavailableError
from ringfence.linux import confinement, host, landlock, rootfs
from ringfence.model.job import Job
from ringfence.model.limits import SyscallProfile
from ringfence.model.outcome import Enforcement
from ringfence.model.policy import NO_NETWORK, SandboxPolicy
from ringfence.model.record import record, replace

# What STRICT gives unasked, beside what a policy can ask for.
NAMESPACES, ABSENCE, SIGNALS = "namespaces", "hidden_absence", "signals"
TRUNCATE_ABI, SCOPES_ABI = 3, 6
NO_LANDLOCK = ("a kernel with Landlock in force", "boot with lsm=landlock,… or use Linux 5.13 or newer; inside a "
             "container, allow the landlock calls")  # fmt: skip
_NO_SCOPES = ("Landlock ABI 6: the user's other processes can be signalled", "use Linux 6.12 or newer")
NO_FILTER = ("seccomp", "use a kernel with CONFIG_SECCOMP_FILTER=y")
_MECHANISMS: Mapping[str, tuple[str, str]] = {
    **process.MECHANISMS,
    **groups.MECHANISMS,
    "network": ("seccomp", "no socket can be made, not even a local one; pairs can"),
    "readable_paths": ("Landlock", "what is not granted is refused; names, sizes and owners can be seen"),
    "writable_paths": ("Landlock", "contents elsewhere can't be changed; modes and times of the user's own files can"),
    "hidden_paths": ("Landlock", "refused with EACCES, not absent; in a folder that holds something hidden nothing "
                     "new can be made"),
    SIGNALS: ("Landlock", "only the job's own processes can be signalled"),
    "syscalls": ("seccomp", "a filter that the job can't take off; nobody is told of what it refuses"),
}  # fmt: skip


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
    if found.landlock_abi < TRUNCATE_ABI:
        problem = f"Landlock ABI {TRUNCATE_ABI}, which closes truncate (this kernel has {found.landlock_abi})"
        missing.append(_lack("writable_paths", (problem, "use Linux 6.2 or newer")))
    return missing


def _lack(capability: str, missing: tuple[str, str]) -> Lack:
    return Lack(capability=capability, missing=missing[0], fix=missing[1])


def enforcement(policy: SandboxPolicy, found: Host) -> dict[str, Enforcement]:
    """What becomes of everything that the policy asks for, and of what STRICT gives unasked."""
    asked = policy.requested() | {name: getattr(policy, name) for name in ("readable_paths", "writable_paths")}
    asked |= {"syscalls": policy.syscall_profile or SyscallProfile.DEFAULT, SIGNALS: "own",
              NAMESPACES: "user mount pid net ipc uts"}  # fmt: skip
    if policy.hidden_paths:
        asked[ABSENCE] = policy.hidden_paths
    table = entries(asked, _MECHANISMS, {lack.capability: lack for lack in lacks(policy, found)})
    return {name: _named(entry, found.landlock_abi) for name, entry in table.items()}


def _named(entry: Enforcement, abi: int) -> Enforcement:
    return replace(entry, mechanism=f"Landlock (ABI {abi})") if entry.mechanism == "Landlock" else entry


class ConfinedBox(ProcessBox):
    """A folder, a control group where there is one, and a plan that closes what it can."""

    def __init__(self, policy: SandboxPolicy, found: Host) -> None:
        self._found = found
        self._own_id = host.is_the_hosts_root()
        self._cgroup = groups.make(policy)
        held = self._cgroup.applied if self._cgroup else {}
        table = enforcement(policy, found)
        by_group = {name: entry for name, entry in held.items() if entry.applied}
        table |= {name: replace(entry, requested=table[name].requested) for name, entry in by_group.items()}
        super().__init__(policy, table, lambda _: [])  # the limits come after the walls, see start

    def start(self, job: Job, streams: tuple[int, ...]) -> groups.GroupVisit:
        folder = self._scratch.prepare(job)
        if job.cwd:
            held = groups.throttle_workspace(self._cgroup, self.policy, self.enforced, job.cwd)
            self.enforced = {**self.enforced, **held}
        if self._own_id:
            _refuse_unreachable(job)
        steps: list[tuple[object, ...]] = [("terminal",)] if job.terminal else []
        steps += [("folder", folder), *self._confinement(job, folder), *self._limits()]
        request = self._request([*steps, ("exec", list(job.argv), self._environment(job))])
        request["cgroups"] = list(self._cgroup.directories) if self._cgroup else []
        return groups.GroupVisit(request, streams, SPAWNER, self._cgroup)

    def stand_by(self, python: PythonJobs) -> LedVisit:
        """Not here: what is granted depends on the job."""
        raise UnavailableError(
            "a sandbox can't stand by without user namespaces", missing=(NAMESPACES,), hint=self._found.blocked[1]
        )

    def _confinement(self, job: Job, folder: str) -> list[tuple[object, ...]]:
        """The wall while its paths can still be reached, and the filter last: it closes what came before."""
        own = [os.path.join(self._scratch.path, name) for name in self._scratch.folders]
        steps: list[tuple[object, ...]] = []
        if self._cgroup is not None:
            steps.append(("join groups", list(self._cgroup.enter_paths)))
        if self._found.landlock_abi:
            steps.append(("wall in", self._granted(job, [*own, folder])))
        steps.append(("give up privileges", [self._scratch.path, *own], self._own_id))
        if self._found.seccomp:
            steps.append(("close calls", _filter(self.policy)))
        return steps

    def _granted(self, job: Job, own: list[str]) -> list[confinement.Grant]:
        search_path = (dict(self.policy.environment) | dict(job.environment)).get("PYTHONPATH", "")
        readable = [*rootfs.SYSTEM_FOLDERS, *(f"/etc/{name}" for name in rootfs.ETC_NAMES), *self.policy.readable_paths]
        readable += host.interpreter_folders(job.argv[0], search_path)
        writable = [*own, *self.policy.writable_paths]
        return confinement.grants(readable, writable, host.every_name(self.policy.hidden_paths))

    def _limits(self) -> list[tuple[object, ...]]:
        """An address-space limit breaks programs that reserve much and use little; a cgroup needs none."""
        steps = plan_limits(self.policy)
        return [step for step in steps if step[1] != "RLIMIT_AS" or not self._by_group("memory")]

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


_filters: dict[str, bytes] = {}


def _filter(policy: SandboxPolicy) -> bytes:
    """The compiled filter for the policy's profile, compiled once."""
    from ringfence.linux import seccomp, seccomp_profiles, syscall_numbers

    name = "confined_tight" if policy.syscall_profile is SyscallProfile.TIGHT else "confined"
    if name not in _filters:
        profile = seccomp_profiles.PROFILES[name]
        _filters[name] = seccomp.compile(profile, syscall_numbers.architecture())
    return _filters[name]
