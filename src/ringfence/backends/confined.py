"""What is left of STRICT without user namespaces: Landlock, seccomp, limits. Only with allow_partial.

The job runs on the host's own root: it reads system directories and what the policy names, writes its working directory
and a private one, and has no socket. It deliberately promises no absence: names, sizes and other processes
can be seen, and the working directory is written directly, without a layer.
"""

from __future__ import annotations

from ringfence.backends import groups, tables, walls
from ringfence.backends.facts import Traits
from ringfence.backends.process import ProcessBox
from ringfence.backends.tables import Mechanisms
from ringfence.backends.walls import NO_FILTER, NO_LANDLOCK, TRUNCATE_ABI, Kernel, lack, lack_truncate
from ringfence.model.lack import Lack
from ringfence.model.limits import SyscallProfile
from ringfence.model.outcome import Enforcement, Mechanism
from ringfence.model.own import private_place
from ringfence.model.policy import SandboxPolicy
from ringfence.sandbox import host, networks

# What STRICT gives without being asked, beside what a policy can ask for.
NAMESPACES, ABSENCE, SIGNALS = "namespaces", "hidden_absence", "signals"
SCOPES_ABI = 6
_NO_SCOPES = ("Landlock ABI 6: the user's other processes can be signalled", "use Linux 6.12 or newer")
_MECHANISMS: Mechanisms = {
    **tables.PROCESS,
    **tables.GROUPED,
    SIGNALS: ("Landlock", "only the job's own processes can be signalled", Mechanism.LANDLOCK),
}


def lacks(policy: SandboxPolicy, blocked: tuple[str, str], found: Kernel) -> tuple[Lack, ...]:
    """What is not enforced of the policy and of what STRICT promises by itself.

    ``blocked``: why there are no user namespaces, and the command that would bring them."""
    missing = [lack(NAMESPACES, blocked), *tables.beyond_hard_limits(policy)]
    missing += groups.lacks(policy)
    missing += networks.lacks(policy)
    if not found.seccomp:
        missing += [lack("network", NO_FILTER), lack("syscalls", NO_FILTER)]
    if found.landlock_abi < SCOPES_ABI:
        missing.append(lack(SIGNALS, _NO_SCOPES))
    missing += [lack(ABSENCE, blocked)] if policy.hidden_paths else []
    return (*missing, *_lacking_files(policy, found))


def _lacking_files(policy: SandboxPolicy, found: Kernel) -> list[Lack]:
    if not found.landlock_abi:
        names = ("readable_paths", "writable_paths", *(("hidden_paths",) if policy.hidden_paths else ()))
        return [lack(name, NO_LANDLOCK) for name in names]
    return [lack_truncate(found.landlock_abi)] if found.landlock_abi < TRUNCATE_ABI else []


def enforcement(policy: SandboxPolicy, blocked: tuple[str, str], found: Kernel) -> dict[str, Enforcement]:
    """What becomes of everything that the policy asks for, and of what STRICT gives without being asked."""
    asked = policy.requested() | {name: getattr(policy, name) for name in ("readable_paths", "writable_paths")}
    asked |= {"syscalls": policy.syscall_profile or SyscallProfile.DEFAULT, SIGNALS: "own",
              NAMESPACES: "user mount pid net ipc uts"}  # fmt: skip
    if policy.hidden_paths:
        asked[ABSENCE] = policy.hidden_paths
    held = tables.of_version({**_MECHANISMS, **walls.mechanisms(found)}, found.landlock_abi)
    return tables.entries(asked, held, lacks(policy, blocked, found))


def open_box(policy: SandboxPolicy, blocked: tuple[str, str], traits: Traits) -> ProcessBox:
    """A directory, a control group where there is one, and walls; as root, an id of its own."""
    found, own_id = walls.look(), host.is_the_hosts_root()
    if own_id:
        private_place.let_others_through()
    built = walls.HostWalls(policy, found, own_id=own_id, no_namespaces=blocked[1])
    table = enforcement(policy, blocked, found)
    return ProcessBox(policy, table, group=groups.make(policy), walls=built, shares_group=True, traits=traits)
