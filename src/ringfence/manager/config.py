"""``SandboxConfig``: what a caller asks of a sandbox, checked when it is made, and its plain form for metadata.json.

It decides nothing: what it means for the engine is in ``manager/permissions.py``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path, PureWindowsPath
from typing import Any

from ringfence.errors import PolicyError, UsageError
from ringfence.model.limits import IsolationLevel, not_one_of
from ringfence.model.record import field_names, made_by, record
from ringfence.model.state_folder import sandboxes_folder
from ringfence.model.str_enum import StrEnum
from ringfence.model.ways.walk import absolute
from ringfence.monitor.limits import ResourceLimits, is_figure, shown_figure


class SandboxMode(StrEnum):
    """When an agent puts a tool into a sandbox."""

    ALWAYS = "always"
    AUTO = "auto"
    NEVER = "never"


def _blocked_by_default() -> list[Path]:
    return [Path("/etc"), Path("/sys"), Path("/boot"), Path("C:\\Windows"), Path("C:\\Program Files")]


def _accepts_less() -> bool:
    return os.name == "nt"


def _root_by_default() -> Path:
    """Never below the current directory: others who can write there could put records of their own."""
    try:
        return Path(sandboxes_folder())
    except UsageError:
        return Path("~")  # the home is unknown; the first use reports that


@record(kw_only=False)
class SandboxConfig:
    """How a sandbox is made, what it may do, and what becomes of it.

    >>> SandboxConfig().isolation_level is IsolationLevel.PROCESS
    True
    """

    enable_sandboxing: bool = True
    """For agents, as is ``sandbox_mode``; a manager always sandboxes."""
    sandbox_mode: SandboxMode = SandboxMode.AUTO
    isolation_level: IsolationLevel = IsolationLevel.PROCESS
    resource_limits: ResourceLimits = made_by(default_factory=ResourceLimits)
    sandbox_root: Path = made_by(default_factory=_root_by_default)
    """Where sandboxes are kept; absent: in the state directory, which no guest sees."""
    allowed_paths: list[Path] = made_by(default_factory=list)
    """Directories to work on, through a layer; the first is where jobs start. Empty: a private directory."""
    blocked_paths: list[Path] = made_by(default_factory=_blocked_by_default)
    """Never accessible, even inside allowed paths. Paths of another operating system are ignored."""
    allow_network: bool = False
    allowed_hosts: list[str | dict[str, object]] = made_by(default_factory=list)
    """Like a policy's network list, each in its one spelling. Empty: all hosts, if the network is allowed."""
    enable_auto_rollback: bool = True
    checkpoint_before_execution: bool = True
    auto_cleanup: bool = True
    cleanup_age_hours: int = 24

    readable_paths: list[Path] = made_by(default_factory=list)
    """Readable, beside the system's own; never written."""
    environment_vars: dict[str, str] = made_by(default_factory=dict)
    """Set over the small clean environment that every job gets."""
    allowed_imports: list[str] | None = None
    """Top-level modules that a called function's own code may import; None: all. Advice, not the boundary."""
    max_processes: int = 128
    """Processes and threads at one time."""
    allow_partial: bool = made_by(default_factory=_accepts_less)
    """Accept what this host can't enforce; results then say so. Absent: yes on Windows, where no level hides a path."""

    def __post_init__(self) -> None:
        for name, make in _COERCIONS.items():
            object.__setattr__(self, name, make(name, getattr(self, name)))
        if self.allowed_hosts and not self.allow_network:
            raise PolicyError("allowed_hosts", "hosts are named, but allow_network is false")

    def to_dict(self) -> dict[str, Any]:
        """Plain data: ``from_dict`` makes an equal config of it."""
        return {name: _plain(getattr(self, name)) for name in field_names(self)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> SandboxConfig:
        known = field_names(cls)
        for name in values:
            if name not in known:
                raise PolicyError(name, "unknown key")
        read = dict(values)
        if "resource_limits" in read:
            read["resource_limits"] = _limits_of(read["resource_limits"])
        return cls(**read)


def of_this_system(path: Path) -> bool:
    """Whether a path can mean anything here: ``C:\\Windows`` is no place on Linux, and ``/etc`` none on Windows."""
    foreign = bool(PureWindowsPath(path).drive)
    return foreign == (os.name == "nt")


def _limits_of(values: object) -> ResourceLimits:
    if not isinstance(values, Mapping):
        raise PolicyError("resource_limits", f"{values!r} must be a mapping of limits")
    try:
        return ResourceLimits(**values)
    except TypeError as error:
        raise PolicyError("resource_limits", str(error)) from None


def _plain(value: object) -> object:
    if isinstance(value, ResourceLimits):
        return {name: getattr(value, name) for name in field_names(value)}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return str(value) if isinstance(value, StrEnum) else value


# ---- made uniform and checked


def _member(kind: type[SandboxMode] | type[IsolationLevel]) -> Callable[[str, object], object]:
    def make(name: str, value: object) -> object:
        try:
            return kind(str(value))
        except ValueError:
            raise PolicyError(name, not_one_of(value, kind)) from None

    return make


def _switch(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise PolicyError(name, f"{value!r} is not true or false")
    return value


def _path(name: str, value: object) -> Path:
    if not isinstance(value, str | os.PathLike) or "\0" in os.fspath(value):
        raise PolicyError(name, f"{value!r} is not a path")
    return Path(value)


def _paths(name: str, value: object) -> list[Path]:
    """Absolute, each once."""
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise PolicyError(name, f"{value!r} is not a list of paths")
    listed = [_path(name, item) for item in value]
    return list(dict.fromkeys(Path(absolute(path)) if of_this_system(path) else path for path in listed))


def _texts(name: str, value: object) -> list[str]:
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise PolicyError(name, f"{value!r} must be a list of non-empty strings")
    listed = list(value)
    if not all(isinstance(item, str) and item for item in listed):
        raise PolicyError(name, f"{listed!r} must be a list of non-empty strings")
    return listed


def _hosts(name: str, value: object) -> list[str | dict[str, object]]:
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise PolicyError(name, f"{value!r} is not a list of hosts")
    listed = list(value)
    if not listed:
        return []
    from ringfence.model.network_list import read_rules

    return [rule.plain() for rule in read_rules(listed, name)]


def _texts_or_all(name: str, value: object) -> list[str] | None:
    return None if value is None else _texts(name, value)


def _variables(name: str, value: object) -> dict[str, str]:
    if not isinstance(value, Mapping) or not all(isinstance(part, str) for pair in value.items() for part in pair):
        raise PolicyError(name, f"{value!r} must be a mapping of strings to strings")
    return dict(value)


def _hours(name: str, value: object) -> object:
    if not is_figure(value):
        raise PolicyError(name, f"{shown_figure(value)} is not a number of hours")
    return value


def _count(name: str, value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise PolicyError(name, f"{shown_figure(value)} must be an integer ≥ 1")
    return value


def _limits(name: str, value: object) -> object:
    if not isinstance(value, ResourceLimits):
        raise PolicyError(name, f"{value!r} is not ResourceLimits")
    return value


_COERCIONS: dict[str, Callable[[str, object], object]] = {
    **dict.fromkeys(("enable_sandboxing", "allow_network", "enable_auto_rollback", "checkpoint_before_execution",
                     "auto_cleanup", "allow_partial"), _switch),
    **dict.fromkeys(("allowed_paths", "blocked_paths", "readable_paths"), _paths),
    "sandbox_mode": _member(SandboxMode),
    "isolation_level": _member(IsolationLevel),
    "resource_limits": _limits,
    "sandbox_root": _path,
    "allowed_hosts": _hosts,
    "allowed_imports": _texts_or_all,
    "environment_vars": _variables,
    "cleanup_age_hours": _hours,
    "max_processes": _count,
}  # fmt: skip
