"""``DockerConfig``: what containers of strategies are made with. From a file, then the environment, then arguments.

Defaults are the safe ones. Every value is checked by its row in ``config_keys``; errors name the key and its place.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from ringfence.docker_sandbox.config_keys import BY_FIELD, BY_PATH, KEYS, PREFIX, TEXTS, Key
from ringfence.docker_sandbox.config_values import size_bytes
from ringfence.errors import PolicyError, UsageError
from ringfence.model.policy_file import parse_policy, policy_bytes
from ringfence.model.record import record, replace
from ringfence.model.ways.walk import absolute

DEFAULT, ARGUMENT = "default", "argument"
EMERGENCY = BY_FIELD["enabled"].variable
"""The one switch: ``false`` here stops all containers of strategies, whatever files and arguments say."""
_SECTIONS = ("docker", "monitoring")
_STARTS = tuple(f"{PREFIX}{section.upper()}__" for section in _SECTIONS)


@record(kw_only=False)
class DockerConfig:
    """All settings; docs/how-to/containers/configuration.md explains each."""

    image: str = "python:3.10-slim"
    memory_limit: str = "2g"
    cpu_limit: float = 0.5
    timeout_seconds: int = 600
    network_mode: str = "none"
    read_only: bool = True
    tmpfs_size: str = "1g"
    seccomp_profile: str = "default"
    enabled: bool = True
    memory_swap_limit: str = ""
    tmpfs_path: str = "/tmp"
    tmpfs_options: str = "rw,noexec,nosuid"
    output_dir: str = "sandbox_output"
    cleanup_on_exit: bool = True
    fallback_to_direct: bool = False
    fallback_level: str = "strict"
    engine: str = ""
    runtime: str = ""
    user: str = "65534:65534"
    pids_limit: int = 64
    nofile_limit: int = 1024
    log_size: str = "1m"
    data_limit: str = "64m"
    result_limit: str = "16m"
    max_containers: int = 10
    warm_containers: int = 2
    pull: bool = True
    validate: bool = True
    validator_rules: str = ""
    export_container_stats: bool = True
    alert_on_orphaned_containers: int = 3
    prometheus_port: int = 8000
    origins: Mapping[str, str] = MappingProxyType({})
    """The origin of each value that is not a default: the file with its name, the variable, or ``argument``."""

    def __post_init__(self) -> None:
        checked = _all_checked({key.path: (getattr(self, key.field), "") for key in KEYS})
        self.__dict__.update(checked)
        _agree(self)

    @staticmethod
    def __unknown__(values: Mapping[str, object]) -> PolicyError:
        return _unknown(next(iter(values)), "")

    @classmethod
    def from_yaml(cls, path: str | os.PathLike[str], **arguments: object) -> DockerConfig:
        """Read the file, then the environment over it, then arguments over both. A missing file means the defaults."""
        return cls.load(path if os.path.exists(path) else None, None, **arguments)

    @classmethod
    def load(
        cls, path: str | os.PathLike[str] | None = None, environment: Mapping[str, str] | None = None,
        **arguments: object,
    ) -> DockerConfig:  # fmt: skip
        """The same, but a file that is named must exist."""
        found = _of_file(os.fspath(path)) if path is not None else {}
        found |= _of_environment(os.environ if environment is None else environment)
        found |= _of_arguments(arguments)
        origins = {BY_PATH[name].field: origin for name, (_, origin) in found.items()}
        values = {BY_PATH[name].field: value for name, (value, _) in found.items()}
        return cls(**values, origins=MappingProxyType(origins))  # type: ignore[arg-type]

    def origin(self, field: str) -> str:
        """Where the value of a field comes from."""
        if field not in BY_FIELD:
            raise _unknown(field, "")
        changed = getattr(self, field) != getattr(DockerConfig, field)
        return self.origins.get(field, ARGUMENT if changed else DEFAULT)

    def with_arguments(self, **arguments: object) -> DockerConfig:
        """The same with some values changed by name."""
        found = _of_arguments(arguments)
        values = {BY_PATH[path].field: value for path, (value, _) in found.items()}
        origins = {**self.origins, **dict.fromkeys(values, ARGUMENT)}
        return replace(self, **values, origins=MappingProxyType(origins))  # type: ignore[arg-type]

    @property
    def memory_bytes(self) -> int:
        return size_bytes(self.memory_limit)

    @property
    def memory_swap_bytes(self) -> int:
        return size_bytes(self.memory_swap_limit or self.memory_limit)

    def bytes_of(self, field: str) -> int:
        """The size in a field, as a number of bytes."""
        return size_bytes(getattr(self, field))


Found = dict[str, tuple[object, str]]
"""By path in the file: the value, and where it comes from."""


def emergency_stop(environment: Mapping[str, str] | None = None) -> bool:
    """Whether the switch is thrown now; an unclear word is an error, not «go on»."""
    word = (os.environ if environment is None else environment).get(EMERGENCY)
    return word is not None and not _checked(BY_FIELD["enabled"], BY_FIELD["enabled"].of_text(word), EMERGENCY)


def _of_file(path: str) -> Found:
    def judged(told: Mapping[str, object]) -> Found:
        flat = {name: (value, path) for name, value in _flat(told)}
        checked = _all_checked(flat, places=False)
        return {name: (checked[BY_PATH[name].field], path) for name in flat}

    return parse_policy(path, policy_bytes(path), judged, texts=TEXTS)


def _flat(told: object) -> Iterator[tuple[str, object]]:
    """Each value by its path; a section may be empty."""
    if not isinstance(told, Mapping):
        raise PolicyError("", f"the file may only have the sections {' and '.join(_SECTIONS)}")
    pending = list(told.items())
    while pending:
        path, value = pending.pop(0)
        above = path in _SECTIONS or path == "docker.tmpfs"
        if above and value is None:
            continue
        if above and not isinstance(value, Mapping):
            raise PolicyError(path, "must be a section: write its keys below it")
        if above and isinstance(value, Mapping):
            pending += [(f"{path}.{name}", item) for name, item in value.items()]
            continue
        yield path, value


def _of_environment(environment: Mapping[str, str]) -> Found:
    known = {key.variable: key for key in KEYS}
    found: Found = {}
    for name in sorted(environment):
        if not name.startswith(_STARTS):
            continue
        if name not in known:
            raise _unknown(name, "")
        found[known[name].path] = (known[name].of_text(environment[name]), name)
    _all_checked(found)
    return found


def _of_arguments(arguments: Mapping[str, object]) -> Found:
    for name in arguments:
        if name not in BY_FIELD:
            raise _unknown(name, "")
    return {BY_FIELD[name].path: (value, ARGUMENT) for name, value in arguments.items()}


def _all_checked(found: Found, *, places: bool = True) -> dict[str, object]:
    """All values by field; all errors as one. ``places``: where each comes from, if no file reader adds that."""
    checked: dict[str, object] = {}
    wrong: list[PolicyError] = []
    for path, (value, origin) in found.items():
        try:
            if path not in BY_PATH:
                raise _unknown(path, "") if "." in path else _no_section(path)
            checked[BY_PATH[path].field] = _checked(BY_PATH[path], value, origin if places else "")
        except PolicyError as error:
            wrong.append(error)
    if wrong:
        wrong[0].more = tuple(wrong[1:])
        raise wrong[0]
    return checked


def _checked(key: Key, value: object, origin: str) -> object:
    try:
        return key.check(value)
    except ValueError as error:
        raise PolicyError(key.path, str(error), where=f"{origin}: " if origin else "") from None


def _agree(config: DockerConfig) -> None:
    """Checks values that must agree with each other."""
    if config.memory_swap_bytes < config.memory_bytes:
        raise PolicyError("docker.memory_swap_limit",
                          f"{config.memory_swap_limit} is less than memory_limit {config.memory_limit}")  # fmt: skip
    if config.warm_containers > config.max_containers:
        raise PolicyError("docker.warm_containers",
                          f"{config.warm_containers} is more than max_containers {config.max_containers}")  # fmt: skip


def _unknown(name: str, where: str) -> PolicyError:
    from difflib import get_close_matches

    known = [key.variable for key in KEYS] if name.startswith(PREFIX) else [*BY_PATH, *BY_FIELD]
    near = get_close_matches(name, known, n=1)
    return PolicyError(name, f"there is no such key{f'; did you mean {near[0]}?' if near else ''}", where=where)


def _no_section(name: str) -> PolicyError:
    """If a file could hold settings of other programs too, a misspelled key would go unnoticed (ADR 0102)."""
    from difflib import get_close_matches

    near = [BY_FIELD[name].path] if name in BY_FIELD else get_close_matches(name, _SECTIONS, n=1)
    known = f"there are {' and '.join(_SECTIONS)}; settings of other programs go into another file"
    return PolicyError(name, f"there is no such section; {f'did you mean {near[0]}?' if near else known}")


def seccomp_file(config: DockerConfig) -> str:
    """The path of its profile; empty: the shipped one. A relative path is meant from here, or from the directory above
    that of the file that names it."""
    named = config.seccomp_profile
    if named == "default":
        return ""
    told_by = config.origins.get("seccomp_profile", "")
    beside = os.path.join(os.path.dirname(os.path.dirname(absolute(told_by))), named)
    for path in (named, beside):
        if os.path.isfile(path):
            return path
    raise UsageError(f"docker.seccomp_profile: there is no file {named}", hint="write default for the shipped profile")
