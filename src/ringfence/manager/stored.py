"""How much of a stored sandbox's config is trusted when it is opened again: nothing weaker than the manager's own.

Also which sandboxes lie where earlier versions kept them. Opens nothing.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

from ringfence.errors import UsageError
from ringfence.manager.config import SandboxConfig
from ringfence.manager.registry import METADATA, Metadata
from ringfence.model.limits import is_weaker
from ringfence.model.paths import lies_in
from ringfence.model.record import replace
from ringfence.model.ways.walk import real

OLD_ROOT = "sandboxes"
# field: what the stored config has that the manager's own does not allow; empty where nothing.
_WEAKER: dict[str, Callable[[SandboxConfig, SandboxConfig], object]] = {
    "isolation_level": lambda stored, own: (
        stored.isolation_level if is_weaker(stored.isolation_level, own.isolation_level) else ""
    ),
    "allow_network": lambda stored, own: stored.allow_network and not own.allow_network,
    "allowed_hosts": lambda stored, own: ", ".join(_hosts_beyond(stored, own)),
    "allow_partial": lambda stored, own: stored.allow_partial and not own.allow_partial,
    "enable_auto_rollback": lambda stored, own: not stored.enable_auto_rollback and own.enable_auto_rollback,
    "checkpoint_before_execution": lambda stored, own: (
        not stored.checkpoint_before_execution and own.checkpoint_before_execution
    ),
    "environment_vars": lambda stored, own: ", ".join(
        name for name, value in stored.environment_vars.items() if own.environment_vars.get(name) != value
    ),
    "readable_paths": lambda stored, own: ", ".join(_not_below(stored.readable_paths, own.readable_paths)),
}


def _not_below(paths: list[Path], tops: list[Path]) -> Iterator[str]:
    allowed = [real(top) for top in tops]
    return (str(path) for path in paths if not any(lies_in(real(path), top) for top in allowed))


def _hosts_beyond(stored: SandboxConfig, own: SandboxConfig) -> list[str]:
    """Without a list of its own all hosts are allowed, or none, and there is nothing to compare."""
    if not own.allowed_hosts or not stored.allow_network:
        return []
    return [str(host) for host in stored.allowed_hosts or ["all"] if host not in own.allowed_hosts]


def config_of(metadata: Metadata) -> SandboxConfig:
    """The config it was made with; a sandbox of another door has only its level and its directories."""
    if metadata.config:
        return SandboxConfig.from_dict(metadata.config)
    return SandboxConfig(isolation_level=metadata.isolation, allowed_paths=list(metadata.bases))  # type: ignore[arg-type]


def believed(metadata: Metadata, own: SandboxConfig) -> SandboxConfig:
    """The stored config, with everything that the manager's own blocks; UsageError if it is weaker than that."""
    stored = config_of(metadata)
    weaker = {name: found for name, find in _WEAKER.items() if (found := find(stored, own))}
    if weaker:
        told = "; ".join(name if found is True else f"{name} {found}" for name, found in weaker.items())
        raise UsageError(f"the sandbox {metadata.sandbox_id} was made with less protection than this manager's config "
                         f"has: {told}", hint="if you mean that, give the config: attach(id, config)")  # fmt: skip
    return replace(stored, blocked_paths=[*stored.blocked_paths, *own.blocked_paths])


def given(metadata: Metadata, config: SandboxConfig) -> SandboxConfig:
    """The caller's config for the directories that the sandbox is based on, which stay the same."""
    bases = tuple(real(path) for path in config.allowed_paths)
    if bases and bases != metadata.bases:
        raise UsageError(f"the sandbox {metadata.sandbox_id} is based on "
                         f"{', '.join(metadata.bases) or 'its own directory'}",
                         hint="give a config with these allowed_paths, or with none")  # fmt: skip
    return replace(config, allowed_paths=[Path(base) for base in metadata.bases])


def tell_of_old_ones(root: str) -> None:
    """Earlier versions kept sandboxes in the current directory, where a repository or a guest can put some too."""
    if old_ones(root):
        warnings.warn(f"./{OLD_ROOT} holds sandboxes of an earlier version, or of somebody else; they are left alone. "
                      f"If they are yours: SandboxManager(sandbox_root={OLD_ROOT!r}).attach(id, trust=True)",
                      stacklevel=3)  # fmt: skip


def old_ones(root: str) -> list[str]:
    """Names in the directory that used to be the root; empty if it is still the root."""
    try:
        names = [] if real(OLD_ROOT) == root else sorted(os.listdir(OLD_ROOT))
    except OSError:
        return []
    return [name for name in names if os.path.lexists(os.path.join(OLD_ROOT, name, METADATA))]
