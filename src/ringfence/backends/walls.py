"""Walls on the host's own root, for boxes without mounts: files by Landlock, network and calls by seccomp.

The job reads system directories and what the policy names, writes its own directories and those that the policy names,
and has no socket unless it may have the network. They deliberately promise no absence: names and sizes can be seen. """

from __future__ import annotations

import os
import sys
from _collections_abc import Mapping
from types import MappingProxyType

import ringfence
from ringfence.backends import own_paths
from ringfence.backends.tables import FILTERED, WALLS, of_version
from ringfence.errors import UnavailableError
from ringfence.kernel import landlock, rlimits
from ringfence.model import state_folder
from ringfence.model.job import Job
from ringfence.model.lack import NO_EGRESS, Lack
from ringfence.model.outcome import Enforcement
from ringfence.model.paths import within
from ringfence.model.policy import HOST_NETWORK, NO_NETWORK, SandboxPolicy
from ringfence.model.record import record
from ringfence.model.ways import led
from ringfence.model.ways.walk import real
from ringfence.sandbox import filters, hiding, host, showing, workplaces
from ringfence.sandbox import root as rootfs
from ringfence.steps import wall_steps as confinement

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.backends.contract import Steps
    from ringfence.backends.scratch import Scratch
    from ringfence.backends.tables import Mechanisms
    from ringfence.checkpoint.transaction import Transaction
    from ringfence.transport.request import Step

PATHS = ("readable_paths", "writable_paths", "hidden_paths")
TRUNCATE_ABI = 3
NO_LANDLOCK = ("a kernel with Landlock in force", "boot with lsm=landlock,… or use Linux 5.13 or newer; inside a "
               "container, allow the landlock calls")  # fmt: skip
NO_FILTER = ("seccomp", "use a kernel with CONFIG_SECCOMP_FILTER=y")


@record
class Kernel:
    """Which mechanisms for walls this kernel has."""

    landlock_abi: int
    seccomp: bool


def look() -> Kernel:
    if sys.platform != "linux":
        return Kernel(landlock_abi=0, seccomp=False)
    return Kernel(landlock_abi=landlock.abi(), seccomp=host.has_seccomp())


def mechanisms(found: Kernel) -> Mechanisms:
    return {**WALLS, **(FILTERED if found.seccomp else {})}


def rows(policy: SandboxPolicy) -> tuple[Mechanisms, tuple[Lack, ...]]:
    """What they enforce of a policy of the level process, and what they lack here."""
    found = look()
    return of_version(mechanisms(found), found.landlock_abi), lacks(policy, found)


def make(policy: SandboxPolicy) -> HostWalls:
    """Those of one box of the level process."""
    showing.refuse_absent(policy)
    return HostWalls(policy, look())


def lacks(policy: SandboxPolicy, found: Kernel) -> tuple[Lack, ...]:
    """Which promises on files, network and calls walls can't keep here."""
    missing = [] if found.landlock_abi else [lack(name, NO_LANDLOCK) for name in PATHS if getattr(policy, name)]
    if 0 < found.landlock_abi < TRUNCATE_ABI:
        missing.append(lack_truncate(found.landlock_abi))
    if policy.network_rule not in (NO_NETWORK, HOST_NETWORK):
        missing.append(NO_EGRESS)
    elif policy.network_rule == NO_NETWORK and not found.seccomp:
        missing.append(lack("network", NO_FILTER))
    if not found.seccomp:
        missing.append(lack("syscalls", NO_FILTER))
    return tuple(missing)


def lack_truncate(abi: int) -> Lack:
    problem = f"Landlock ABI {TRUNCATE_ABI}, which closes truncate (this kernel has {abi})"
    return Lack(capability="writable_paths", missing=problem, fix="use Linux 6.2 or newer")


def lack(capability: str, missing: tuple[str, str]) -> Lack:
    return Lack(capability=capability, missing=missing[0], fix=missing[1])


class HostWalls:
    """The walls of one box."""

    shares: tuple[Step, ...] = tuple(("rlimit", *row) for row in rlimits.shares())
    before_transfer: tuple[Step, ...] = (("load transfers",),)
    # For git, a host configuration that exists but is closed is a fatal error; one that is absent is not.
    environment: Mapping[str, str] = MappingProxyType({"GIT_CONFIG_NOSYSTEM": "1"})

    def __init__(
        self, policy: SandboxPolicy, found: Kernel, *, own_id: bool = False, no_namespaces: str = ""
    ) -> None:
        """``own_id``: the job has an id that is not the caller's. ``no_namespaces``: the walls replace strict for lack
        of user namespaces; this is the fix that would bring them."""
        self._policy = policy
        self._kernel = found
        self._own_id = own_id
        self._no_namespaces = no_namespaces
        self._transaction: Transaction | None = None
        self._bound: tuple[tuple[str, str], ...] = ()
        """(working copy, the path that jobs find it at); empty: they find it where it is."""

    def work_on(self, transaction: Transaction) -> dict[str, Enforcement]:
        hiding.refuse_unhidden(transaction, host.every_name(self._policy.hidden_paths))
        self._transaction = transaction
        lacking = "an id that is the caller's" if self._own_id else own_paths.why_not(transaction)
        self._bound = () if lacking else tuple((transaction.place(base), base) for base in transaction.bases)
        return {own_paths.CAPABILITY: own_paths.enforcement(transaction, lacking)}

    def admit(self, job: Job) -> None:
        """Root's job has an id of its own, and without mounts it can't be shown anything that is closed to others."""
        for path in filter(None, (showing.program(self._policy, job), job.cwd)) if self._own_id else ():
            closed = confinement.closed_to_others(path) if os.path.exists(path) else ""
            if closed:
                raise UnavailableError(
                    f"the job runs as another user id and can't reach {path}: {closed} is closed to others",
                    missing=("readable_paths",),
                    hint=f"chmod o+x {closed}, or run ringfence as the ordinary user who owns it",
                )

    def refuse_standby(self) -> None:
        """What is granted depends on the job."""
        if self._no_namespaces:
            raise UnavailableError("there are no standby sandboxes without user namespaces", missing=("namespaces",),
                                   hint=self._no_namespaces)  # fmt: skip
        raise UnavailableError("there are no standby sandboxes under a policy that names paths", missing=("standby",),
                               hint="use isolation strict, or name no paths")  # fmt: skip

    def steps(self, job: Job, folder: str, scratch: Scratch, limits: Steps) -> Steps:
        """The wall while its paths can still be reached, and the filter last: it closes what came before."""
        own = [os.path.join(scratch.path, name) for name in scratch.folders]
        steps: Steps = [("bind in place", list(self._bound))] if self._bound else []
        steps.append(("chdir", self._shown(folder)))
        if self._kernel.landlock_abi:
            steps.append(self._wall(job, folder, own))
        steps.append(("drop privileges", [scratch.path, *own], self._own_id))
        steps += limits
        return [*steps, ("seccomp filter", filters.behind_walls(self._policy))] if self._kernel.seccomp else steps

    def through(self, last: Step, folder: str, scratch: Scratch) -> Step:
        return last

    def _wall(self, job: Job, folder: str, own: list[str]) -> Step:
        ours, copies = self._ours(), self.copies()
        # A directory in one of these has its grant, and where a link in it leads is the guest's choice.
        place = workplaces.led_to(folder, self._policy)
        tops = (*copies, *own, *workplaces.written(self._policy))
        has_grant = any(within(path, top) for path in (folder, place) for top in tops)
        other = [] if self._is_only_read(folder) or has_grant else [folder]
        state_folder.refuse_ours(ours, (), other)
        granted = self._granted(job, [*own, *other, *(() if self._bound else copies)], ours)
        return ("landlock files", self._in_place(granted), self._policy.network_rule == HOST_NETWORK)

    def _shown(self, folder: str) -> str:
        """The path by which jobs find a directory."""
        for copy, base in self._bound:
            if within(folder, copy):
                return base + folder[len(copy) :]
        return folder

    def _in_place(self, granted: list[confinement.Grant]) -> list[confinement.Grant]:
        """A bound directory is granted as a whole, and nothing by a path in it: there a guest chooses where links
        lead."""
        bases = [base for _, base in self._bound]
        kept = [grant for grant in granted if not any(within(grant[0], base) for base in bases)]
        return [*kept, *((base, "write") for base in bases)]

    def _is_only_read(self, folder: str) -> bool:
        """Whether the policy makes the working directory read-only. The job may write one that the policy does not
        name, as on a host without walls."""
        place = real(folder)
        tops = {name: [top for top in map(real, getattr(self._policy, name)) if within(place, top)]
                for name in ("readable_paths", "writable_paths")}  # fmt: skip
        return bool(tops["readable_paths"]) and not tops["writable_paths"]

    def _ours(self) -> tuple[str, ...]:
        """Our own directories; only this box's working copies among them are granted."""
        return self._transaction.ours if self._transaction else state_folder.own_places()

    def copies(self) -> list[str]:
        return [self._transaction.place(base) for base in self._transaction.bases] if self._transaction else []

    def _granted(self, job: Job, own: list[str], ours: tuple[str, ...]) -> list[confinement.Grant]:
        policy = self._policy
        state_folder.refuse_ours(ours, policy.readable_paths, policy.writable_paths)
        readable = [*rootfs.SYSTEM_FOLDERS, *(f"/etc/{name}" for name in rootfs.ETC_NAMES), *policy.readable_paths]
        readable += host.RESOLVER if policy.network_rule == HOST_NETWORK else ()
        bases = self._transaction.bases if self._transaction else ()
        way = showing.search(policy, job, bases if self._bound else (), () if self._bound else bases)
        led.refuse(policy, (*own, *bases), way.look)
        readable += showing.needed(policy, job, way)[0]
        # Steps that are no program load their part of it when their turn comes.
        readable.append(os.path.dirname(os.path.abspath(ringfence.__file__)))
        hidden = host.every_name(policy.hidden_paths)
        shown = confinement.grants(readable, policy.writable_paths, (*hidden, *ours), way.real)
        return list(dict.fromkeys((*shown, *confinement.grants((), own, hidden, way.real))))
