"""Which system-call filter a policy means."""

from __future__ import annotations

from _collections_abc import Mapping

from ringfence.kernel.seccomp import programs
from ringfence.kernel.seccomp.programs import Which
from ringfence.model.limits import SyscallProfile
from ringfence.model.outcome import Enforcement, Mechanism
from ringfence.model.policy import HOST_NETWORK, SandboxPolicy
from ringfence.model.record import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.transport.request import Step

NO_IDS = (programs.ANY_UID, programs.ANY_GID)
"""Stands for the ids of a filter that contains none."""


def profile_name(policy: SandboxPolicy, landlock_abi: int) -> str:
    if policy.syscall_profile is SyscallProfile.TIGHT:
        return "tight_exec"
    if _closes_unix_sockets(policy, landlock_abi):
        return "unix_pairs"
    return "default" if policy.writable_paths else "layered"


def _closes_unix_sockets(policy: SandboxPolicy, landlock_abi: int) -> bool:
    """Whether only the filter can keep the job from sockets of the host: a writable path is the host's own directory,
    the host's network has its abstract sockets, and if the kernel can't tell a job's sockets from others all are
    closed."""
    from ringfence.sandbox import networks

    if networks.is_hosts(policy) and not networks.landlock_holds_abstract(landlock_abi):
        return True
    return bool(policy.writable_paths) and not networks.landlock_holds_unix_sockets(landlock_abi)


def step(
    name: str, ids: tuple[int, int], watched: bool, wired: bool, witness: Mapping[str, int], *, below_another: bool
) -> Step:
    """The step that installs the filter of a profile; below another filter, with the same one without a listener."""
    which = Which(name=name, watched=watched, wired=wired, witness=True, memory=bool(witness["memory"]),
                  sockets=bool(witness.get("sockets")), alone=True, notify=True)  # fmt: skip
    unheard = _program(replace(which, notify=False, sockets=False), ids) if below_another else b""
    return ("seccomp", _program(which, ids), True, unheard)


def is_filtered() -> bool:
    """Whether this process is under a filter itself, and perhaps has a listener."""
    with open("/proc/self/status", "rb") as file:
        return b"\nSeccomp:\t2" in file.read()


def _program(which: Which, ids: tuple[int, int]) -> bytes:
    from ringfence.kernel import syscall_numbers

    return programs.program(which, syscall_numbers.architecture(), ids)


def witnessed(policy: SandboxPolicy, enforced: Mapping[str, Enforcement]) -> dict[str, int]:
    """The limits of each process that a witness compares with; 0: it has none, or a group holds it. A sandbox with a
    network that is used again adds ``sockets``."""
    held = {name for name, entry in enforced.items() if entry.applied and Mechanism.CGROUP not in entry.by}
    numbers = policy.numbers()
    return {name: int(numbers[name]) if name in held else 0 for name in ("memory", "nofile")}


def witness_alone(witness: Mapping[str, int]) -> bytes:
    """A filter that closes nothing and tells what a witness wants to see."""
    return _program(Which(name=programs.WITNESS, memory=bool(witness["memory"]), notify=True), NO_IDS)


def behind_walls(policy: SandboxPolicy) -> bytes:
    """The filter of a job without namespaces, which reports to nobody."""
    name = "confined_tight" if policy.syscall_profile is SyscallProfile.TIGHT else "confined"
    if policy.network_rule == HOST_NETWORK and name == "confined":
        name = "walled"
    return _program(Which(name=name), NO_IDS)
