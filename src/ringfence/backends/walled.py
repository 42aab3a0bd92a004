"""Walls on the host's own root, for levels without mounts: files by Landlock, network and calls by seccomp.

The job reads system folders and what the policy names, writes its own folders and those that the policy names, and has
no socket unless it may have the network. It deliberately promises no absence: names and sizes can be seen.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

import ringfence
from ringfence.backends import hiding
from ringfence.backends.facts import NO_EGRESS, Lack
from ringfence.backends.forkers import SPAWNER
from ringfence.backends.led_visit import LedVisit, PythonJobs
from ringfence.backends.process import FILTERED, MECHANISMS, ProcessBox, entries, plan_limits
from ringfence.errors import UnavailableError
from ringfence.linux import confinement, host, landlock, rootfs
from ringfence.model import state_folder
from ringfence.model.job import Job
from ringfence.model.limits import SyscallProfile
from ringfence.model.outcome import Enforcement
from ringfence.model.paths import within
from ringfence.model.policy import HOST_NETWORK, NO_NETWORK, SandboxPolicy
from ringfence.model.record import record, replace
from ringfence.posix import rlimits

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.checkpoint.transaction import Transaction

PATHS = ("readable_paths", "writable_paths", "hidden_paths")
TRUNCATE_ABI = 3
NO_LANDLOCK = ("a kernel with Landlock in force", "boot with lsm=landlock,… or use Linux 5.13 or newer; inside a "
               "container, allow the landlock calls")  # fmt: skip
NO_FILTER = ("seccomp", "use a kernel with CONFIG_SECCOMP_FILTER=y")
WALLS: Mapping[str, tuple[str, str]] = {
    "network": ("seccomp", "no socket can be made, not even a local one; pairs can"),
    "readable_paths": ("Landlock", "what is not granted is refused; names, sizes and owners can be seen"),
    "writable_paths": ("Landlock", "contents elsewhere can't be changed; modes and times of the user's own files can"),
    "hidden_paths": ("Landlock", "refused with EACCES, not absent; in a folder that holds something hidden nothing "
                     "new can be made"),
    "syscalls": ("seccomp", "a filter that the job can't take off; nobody is told of what it refuses"),
}  # fmt: skip


@record
class Kernel:
    """What this one has of what is needed here."""

    landlock_abi: int
    seccomp: bool


def look() -> Kernel:
    if sys.platform != "linux":
        return Kernel(landlock_abi=0, seccomp=False)
    return Kernel(landlock_abi=landlock.abi(), seccomp=host.has_seccomp())


def lacks(policy: SandboxPolicy, found: Kernel) -> tuple[Lack, ...]:
    """What of files, network and calls is not held behind walls here."""
    missing = [] if found.landlock_abi else [_lack(name, NO_LANDLOCK) for name in PATHS if getattr(policy, name)]
    if 0 < found.landlock_abi < TRUNCATE_ABI:
        missing.append(lack_truncate(found.landlock_abi))
    if policy.network_rule not in (NO_NETWORK, HOST_NETWORK):
        missing.append(NO_EGRESS)
    elif policy.network_rule == NO_NETWORK and not found.seccomp:
        missing.append(_lack("network", NO_FILTER))
    if policy.syscall_profile is not None and not found.seccomp:
        missing.append(_lack("syscalls", NO_FILTER))
    return tuple(missing)


def lack_truncate(abi: int) -> Lack:
    problem = f"Landlock ABI {TRUNCATE_ABI}, which closes truncate (this kernel has {abi})"
    return Lack(capability="writable_paths", missing=problem, fix="use Linux 6.2 or newer")


def _lack(capability: str, missing: tuple[str, str]) -> Lack:
    return Lack(capability=capability, missing=missing[0], fix=missing[1])


def open_box(policy: SandboxPolicy, lacking: Mapping[str, Lack]) -> WalledBox:
    """A box of the process level behind walls."""
    found = look()
    filtered = FILTERED if found.seccomp else {}
    table = entries(policy.requested(), {**MECHANISMS, **WALLS, **filtered}, lacking)
    return WalledBox(policy, named(table, found.landlock_abi), found)


def named(table: Mapping[str, Enforcement], abi: int) -> dict[str, Enforcement]:
    """With the version of Landlock that holds them."""
    return {
        name: replace(entry, mechanism=f"Landlock (ABI {abi})") if entry.mechanism == "Landlock" else entry
        for name, entry in table.items()
    }


class WalledBox(ProcessBox):
    """A folder, and a plan that closes what it can."""

    def __init__(
        self, policy: SandboxPolicy, enforced: Mapping[str, Enforcement], found: Kernel, *, own_id: bool = False
    ) -> None:
        self._kernel = found
        self._own_id = own_id
        super().__init__(policy, enforced, lambda _: [])  # the limits come after the walls, see _walled

    def work_on(self, transaction: Transaction) -> None:
        hiding.refuse_unhidden(transaction, host.every_name(self.policy.hidden_paths))
        super().work_on(transaction)

    def start(self, job: Job, streams: tuple[int, ...]) -> LedVisit:
        job, folder = self._placed(job)
        first: list[tuple[object, ...]] = [("terminal",)] if job.terminal else []
        run = ("exec", list(job.argv), self._environment(job))
        return self._lead([*first, *self._walled(job, folder), run], streams)

    def start_steps(self, steps: list[tuple[object, ...]], streams: tuple[int, ...]) -> LedVisit:
        self._scratch.prepare()
        return self._lead([*self._walled(Job(argv=(sys.executable,)), self._place), *steps], streams)

    def _lead(self, steps: list[tuple[object, ...]], streams: tuple[int, ...]) -> LedVisit:
        visit = LedVisit(self._request(steps), streams, SPAWNER)
        self._keep(visit)
        return visit

    def stand_by(self, python: PythonJobs) -> LedVisit:
        """Not here: what is granted depends on the job."""
        raise UnavailableError(
            "a sandbox can't stand by behind walls", missing=("standby",), hint="use isolation strict, or name no paths"
        )

    def _walled(self, job: Job, folder: str) -> list[tuple[object, ...]]:
        """The wall while its paths can still be reached, and the filter last: it closes what came before."""
        own = [os.path.join(self._scratch.path, name) for name in self._scratch.folders]
        steps: list[tuple[object, ...]] = [("folder", folder)]
        if self._kernel.landlock_abi:
            open_network = self.policy.network_rule == HOST_NETWORK
            ours, copies = self._ours(), self._copies()
            hiding.refuse_ours(ours, (), [] if any(within(folder, copy) for copy in copies) else [folder])
            steps.append(("wall in", self._granted(job, [*own, folder, *copies], ours), open_network))
        steps.append(("give up privileges", [self._scratch.path, *own], self._own_id))
        steps += self._limits()
        return [*steps, ("close calls", _filter(self.policy))] if self._kernel.seccomp else steps

    def _ours(self) -> tuple[str, ...]:
        """Our own folders, of which only this box's working copies are granted."""
        return self._transaction.ours if self._transaction else state_folder.own_places()

    def _copies(self) -> list[str]:
        return [self._transaction.place(base) for base in self._transaction.bases] if self._transaction else []

    def _granted(self, job: Job, own: list[str], ours: tuple[str, ...]) -> list[confinement.Grant]:
        hiding.refuse_ours(ours, self.policy.readable_paths, self.policy.writable_paths)
        search_path = (dict(self.policy.environment) | dict(job.environment)).get("PYTHONPATH", "")
        readable = [*rootfs.SYSTEM_FOLDERS, *(f"/etc/{name}" for name in rootfs.ETC_NAMES), *self.policy.readable_paths]
        readable += host.interpreter_folders(job.argv[0], search_path)
        # Steps that are no program load their part of it when their turn comes.
        readable.append(os.path.dirname(os.path.abspath(ringfence.__file__)))
        hidden = host.every_name(self.policy.hidden_paths)
        shown = confinement.grants(readable, self.policy.writable_paths, (*hidden, *ours))
        return list(dict.fromkeys((*shown, *confinement.grants((), own, hidden))))

    def _limits(self) -> list[tuple[object, ...]]:
        return [*(("rlimit", *row) for row in rlimits.shares()), *plan_limits(self.policy)]


_filters: dict[str, bytes] = {}


def _filter(policy: SandboxPolicy) -> bytes:
    """The compiled filter for the policy's profile, compiled once."""
    from ringfence.linux import seccomp, seccomp_profiles, syscall_numbers

    name = "confined_tight" if policy.syscall_profile is SyscallProfile.TIGHT else "confined"
    if policy.network_rule == HOST_NETWORK and name == "confined":
        name = "walled"
    if name not in _filters:
        profile = seccomp_profiles.PROFILES[name]
        _filters[name] = seccomp.compile(profile, syscall_numbers.architecture())
    return _filters[name]
