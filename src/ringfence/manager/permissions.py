"""What a ``SandboxConfig`` means for the engine: the one place where it becomes a policy.

Allowed paths are not in the policy: they are the bases of the sandbox's transaction, whose layers the engine shows.
"""

from __future__ import annotations

import os

from ringfence.engine import boxed_call
from ringfence.engine.run import backend_for, refuse, traits_of
from ringfence.errors import PolicyError, UnavailableError
from ringfence.manager.config import SandboxConfig, of_this_system
from ringfence.model.events import QUIET
from ringfence.model.limits import TEN_YEARS_S
from ringfence.model.paths import lies_in
from ringfence.model.policy import HOST_NETWORK, NO_NETWORK, SandboxPolicy
from ringfence.model.ways.walk import real
from ringfence.sandbox import host

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.backends.contract import Backend

_MIB = 2**20
# A sandbox has its own of these, or nothing: hiding the name itself would keep programs from starting, and every start
# would look like an attempt. Below them we hide what only an attacker asks for, and what may hold passwords.
_OWN: dict[str, tuple[str, ...]] = {
    "/etc": ("/etc/gshadow", "/etc/shadow", "/etc/ssl/private", "/etc/sudoers", "/etc/sudoers.d", *QUIET),
    "/sys": ("/sys/firmware", "/sys/hypervisor", "/sys/module", "/sys/power"),
}


def to_policy(config: SandboxConfig) -> SandboxPolicy:
    """The policy of a sandbox."""
    limits = config.resource_limits
    for name in ("max_execution_time", "max_memory_mb", "max_disk_mb"):
        if not getattr(limits, name):
            raise PolicyError(name, "0 would leave nothing to run with; give more than 0")
    isolates = traits_of(config.isolation_level).isolates
    readable = (*(os.fspath(path) for path in config.readable_paths), *boxed_call.needed_paths())
    return SandboxPolicy(
        isolation=config.isolation_level,
        wall_time_s=limits.max_execution_time,
        cpu_time_s=TEN_YEARS_S,  # the limit is a share of the processor, not a sum: see the monitor
        mem_bytes=limits.max_memory_mb * _MIB,
        disk_bytes=limits.max_disk_mb * _MIB,
        pids_max=config.max_processes,
        network=_network(config),
        readable_paths=tuple(dict.fromkeys(readable)) if isolates else (),
        hidden_paths=hidden_paths(config) if isolates else (),
        environment=config.environment_vars,
        allow_partial=config.allow_partial,
    )


def policy_and_backend(config: SandboxConfig) -> tuple[SandboxPolicy, Backend]:
    """The policy and what enforces it; UnavailableError if part is not enforced, unless the config accepts that."""
    policy = to_policy(config)
    backend = backend_for(policy.isolation)
    refuse(backend, policy)
    missing = unheld(config)
    if missing and not policy.allow_partial:
        raise UnavailableError(missing, missing=("max_network_kb",), hint="accept that with allow_partial=True")
    return policy, backend


def unheld(config: SandboxConfig) -> str:
    """Which limit nothing here enforces, and why; empty: all are enforced."""
    on_host = config.allow_network and not config.allowed_hosts
    return "max_network_kb can't be enforced: the host's network is not counted per sandbox" if on_host else ""


def _network(config: SandboxConfig) -> str | tuple[str | dict[str, object], ...]:
    if not config.allow_network:
        return NO_NETWORK
    return tuple(config.allowed_hosts) or HOST_NETWORK


def hidden_paths(config: SandboxConfig) -> tuple[str, ...]:
    """The blocked paths that mean something here, for the policy, with the targets of links on their way: a working
    copy holds the targets under their own names."""
    named = [os.fspath(path) for path in config.blocked_paths if of_this_system(path)]
    _refuse_the_whole_system(config, named)
    _refuse_contradictions(config, named)
    if os.name == "nt":
        return tuple(dict.fromkeys((*named, *map(real, named))))
    names = dict.fromkeys((*named, *host.every_name(tuple(named))))
    return tuple(dict.fromkeys(path for name in names for path in _OWN.get(name, (name,))))


def _refuse_the_whole_system(config: SandboxConfig, blocked: list[str]) -> None:
    for field, paths in (("allowed_paths", config.allowed_paths), ("blocked_paths", blocked)):
        for path in map(real, paths):
            if os.path.dirname(path) == path:
                raise PolicyError(field, f"{path} is the whole system; name the directories that you mean")


def _refuse_contradictions(config: SandboxConfig, blocked: list[str]) -> None:
    for field in ("allowed_paths", "readable_paths"):
        for path in map(real, getattr(config, field)):
            for name in map(real, blocked):
                if lies_in(path, name):
                    raise PolicyError(field, f"{path} is in the blocked {name}")

