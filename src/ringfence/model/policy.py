"""``SandboxPolicy``: what a job is allowed and how much. The only inner policy.

Every outer format converts to it once, in its door. It is checked when it is made, so every policy object is valid. It
knows nothing of how a limit is enforced.
"""

from __future__ import annotations

import math
import os
from _collections_abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType

from ringfence.errors import PolicyError
from ringfence.model import policy_network, policy_paths
from ringfence.model.limits import (
    LIMITS,
    READ_UNIT,
    UNLIMITED,
    UNLIMITED_BYTES,
    UNLIMITED_OUTPUT,
    IsolationLevel,
    Limit,
    OutputOverflow,
    SyscallProfile,
    Unit,
    disk_rule,
    not_one_of,
)
from ringfence.model.policy_keys import Problem, in_order, unknown
from ringfence.model.record import field_names, record, replace
from ringfence.model.system_text import is_system_text, quoted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.model.network_rule import NetworkRule

NO_NETWORK, HOST_NETWORK = policy_network.NO_NETWORK, policy_network.HOST_NETWORK
PATH_FIELDS = policy_paths.FIELDS
MOST_PROBLEMS = 1000
# On these levels a job has no network unless the policy names one.
_CLOSED_LEVELS = (IsolationLevel.CONTAINER, IsolationLevel.STRICT)


@record
class SandboxPolicy:
    """What the untrusted program may do and how much of it; sizes and times may be texts: ``512M``, ``2m``.

    >>> SandboxPolicy(wall_time_s=5).mem_bytes == 512 * 2**20
    True
    """

    wall_time_s: float = 30
    cpu_time_s: float = 20
    mem_bytes: int = 512 * 2**20
    pids_max: int = 32
    nofile: int = 512
    output_bytes: int = 1 * 2**20
    enforce_network: bool = False
    allow_partial: bool = False

    isolation: IsolationLevel = IsolationLevel.PROCESS
    on_output_limit: OutputOverflow = OutputOverflow.TRUNCATE
    disk_bytes: int | None = None
    """Absent: 10 GiB at isolation ``strict``, half of ``mem_bytes`` at ``container``, elsewhere not limited."""
    file_bytes: int | None = None
    """Absent: the size of one file is not limited."""
    cpu_share: float | None = None
    """Absent: all cores, as fast as they are."""
    io_bytes_per_s: int | None = None
    """Of reads, and of writes; absent: as fast as the disk is."""
    network: str | tuple[str | Mapping[str, object] | NetworkRule, ...] | None = None
    """``none``, ``host``, or who may be reached, as ``NetworkRule.of`` reads it; absent: see ``network_rule``."""
    network_limits: Mapping[str, int | float] = MappingProxyType({})
    """How much a sandbox with a network list may use in total: ``connections``, ``connections_per_second``, ``bytes``,
    ``bytes_out``, ``bytes_in``, ``idle_s``, ``total_s``; absent: see docs/reference/policy.md."""
    readable_paths: tuple[str, ...] = ()
    """Absent: what the isolation level shows by itself."""
    writable_paths: tuple[str, ...] = ()
    """Absent: what the isolation level lets it write by itself."""
    hidden_paths: tuple[str, ...] = ()
    """Absent: nothing beyond what the isolation level hides by itself."""
    shown_at: Mapping[str, str] = MappingProxyType({})
    """Host path → path inside, for what is not shown at its own path; absent: nothing. The host path must be readable,
    or the workspace."""
    root: str = ""
    """A directory that is ``/`` inside, such as the extracted files of an image; absent: what the host's system has."""
    root_user: str = ""
    """Who the job is in ``root``: ``user`` or ``user:group``, as names of its ``/etc/passwd`` and ``/etc/group`` or as
    numbers; absent: uid 0, without any capability. Outside it is nobody in any case."""
    image: str = ""
    """The image whose files a container has, as its engine knows it; absent: ``python:3.10-slim``."""
    environment: Mapping[str, str] = MappingProxyType({})
    """Set for the job, over the small clean environment that every job gets."""
    pass_environment: tuple[str, ...] = ()
    """Names of the caller's variables that are passed on; absent: none."""
    syscall_profile: SyscallProfile | None = None
    """Absent: the isolation level's own."""

    @staticmethod
    def __unknown__(names: Iterable[str]) -> PolicyError:
        """As when read from a file: a misspelled limit must not look like a mistake in the caller's own code."""
        return _policy_error([unknown(name, _FIELD_NAMES) for name in names])

    def __post_init__(self) -> None:
        for name, make in _COERCIONS.items():
            object.__setattr__(self, name, make(getattr(self, name)))
        problems = _problems(self)
        if problems:
            raise _policy_error(problems)

    @property
    def network_rule(self) -> str | tuple[NetworkRule, ...]:
        """The network rule in force, also if the field is absent."""
        if self.network is not None:
            return self.network  # type: ignore[return-value]  # what else was given was made rules of
        closed = self.enforce_network or self.isolation in _CLOSED_LEVELS
        return NO_NETWORK if closed else HOST_NETWORK

    def requested(self) -> dict[str, object]:
        """Every capability that this policy asks for, with the value that it asks for."""
        asked: dict[str, object] = {**self.numbers()}
        if self.network_rule != HOST_NETWORK:
            rule = self.network_rule
            asked["network"] = rule if isinstance(rule, str) else tuple(each.plain() for each in rule)
        asked |= {name: getattr(self, name) or None for name in PATH_FIELDS}
        asked["syscalls"] = self.syscall_profile
        return {name: value for name, value in asked.items() if value is not None}

    def numbers(self) -> dict[str, float]:
        """The limits that this policy sets, by capability."""
        asked = {limit.capability: getattr(self, limit.field) for limit in LIMITS}
        asked["disk"] = disk_rule(self.disk_bytes, self.isolation)
        return {name: value for name, value in asked.items() if value is not None}

    def with_changes(self, **changes: object) -> SandboxPolicy:
        """The same policy with some fields changed, checked again."""
        return replace(self, **changes)  # type: ignore[arg-type]

    def to_dict(self) -> dict[str, object]:
        """Plain data, from which ``from_dict`` makes an equal policy."""
        return {name: _plain(getattr(self, name)) for name in field_names(self)}

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> SandboxPolicy:
        """Make a policy from plain data; sizes and times may be text such as ``512M`` and ``90s``."""
        if not isinstance(values, Mapping):
            raise PolicyError("", f"a policy must be a mapping, not {type(values).__name__}")
        problems = [unknown(key, _FIELD_NAMES) for key in values if key not in _FIELD_NAMES]
        known = {key: value for key, value in values.items() if key in _FIELD_NAMES}
        read: dict[str, object] = {}
        for name, value in known.items():
            try:
                read[name] = _READERS.get(name, _as_is)(value)
            except ValueError as wrong:
                problems.append((name, str(wrong)))
        try:
            policy = cls(**read)  # type: ignore[arg-type]
        except PolicyError as wrong:
            problems += [(each.field, each.problem) for each in (wrong, *wrong.more)]
        if problems:
            raise _policy_error(in_order(problems, values))
        return policy

    @classmethod
    def from_yaml(cls, path: str | os.PathLike[str]) -> SandboxPolicy:
        """Read a policy file; an error names file, line, column and field."""
        from ringfence.model.policy_file import read_policy

        return read_policy(os.fspath(path), cls.from_dict)


_FIELD_NAMES = frozenset(field_names(SandboxPolicy))


def _problems(policy: SandboxPolicy) -> list[Problem]:
    """What is wrong with it, until that is more than anybody would read: an error is made of each."""
    found: list[Problem] = []
    for check in _CHECKS:
        for problem in check(policy):
            found.append(problem)
            if len(found) == MOST_PROBLEMS:
                return found
    return found


def _policy_error(problems: list[Problem]) -> PolicyError:
    first, *others = problems
    return PolicyError(*first, more=tuple(PolicyError(*other) for other in others))


# ---- made uniform before they are checked: a caller may pass lists, Path objects and plain text


def _tuple_of_paths(value: object) -> object:
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        return value
    return tuple(os.fspath(item) if isinstance(item, os.PathLike) else item for item in value)


def _tuple_of_names(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


def _frozen_mapping(value: object) -> object:
    if not isinstance(value, Mapping):
        return value
    return MappingProxyType({_plain_text(name): _plain_text(item) for name, item in value.items()})


def _plain_text(value: object) -> object:
    return str.__str__(value) if isinstance(value, str) else value


def _member(kind: type[IsolationLevel | OutputOverflow | SyscallProfile]) -> Callable[[object], object]:
    def make(value: object) -> object:
        try:
            return None if value is None else kind(str(value))
        except ValueError:
            return value

    return make


def _number(name: str) -> Callable[[object], object]:
    """Read texts such as ``512M``; if one can't be read, the check tells why."""

    def make(value: object) -> object:
        try:
            return _plain_number(_READERS[name](value))
        except ValueError as wrong:
            return wrong

    return make


def _plain_number(value: object) -> object:
    """An enum's or an array's number as Python's own; nothing else can be sent to the leader."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    return int(value) if isinstance(value, int) else float(value)


_COERCIONS: dict[str, Callable[[object], object]] = {
    **{limit.field: _number(limit.field) for limit in LIMITS},
    **dict.fromkeys(PATH_FIELDS, _tuple_of_paths),
    "network": policy_network.rules,
    "network_limits": policy_network.limits,
    "pass_environment": _tuple_of_names,
    "environment": _frozen_mapping,
    "shown_at": _frozen_mapping,
    "root": policy_paths.text_of,
    "isolation": _member(IsolationLevel),
    "on_output_limit": _member(OutputOverflow),
    "syscall_profile": _member(SyscallProfile),
}


# ---- checks: each yields what is wrong, none raises


_LONGEST_SHOWN = 10**100  # Python refuses to write out an integer of some thousand digits, also in an error message


def _number_problem(limit: Limit, value: object) -> str | None:
    whole = limit.unit in (Unit.BYTES, Unit.COUNT)
    if isinstance(value, int) and abs(value) > _LONGEST_SHOWN:
        return "the number is too long"
    if isinstance(value, ValueError):
        return str(value)
    if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
        of_what = "" if limit.unit is Unit.COUNT else f" of {limit.unit}"
        return f"{quoted(value)} is not {'a whole number' if whole else 'a number'}{of_what}"
    if isinstance(value, float) and not math.isfinite(value):
        return f"{quoted(value)} is not a finite number"
    if value <= 0:
        return f"{quoted(value)} must be greater than 0"
    if value > limit.largest:
        return f"{quoted(value)} is more than the maximum, {limit.largest:,}"
    return None


def _check_numbers(policy: SandboxPolicy) -> Iterator[Problem]:
    optional = {"disk_bytes", "file_bytes", "cpu_share", "io_bytes_per_s"}
    for limit in LIMITS:
        value = getattr(policy, limit.field)
        if value is None and limit.field in optional:
            continue
        problem = _number_problem(limit, value)
        if problem:
            yield limit.field, problem


def _check_switches(policy: SandboxPolicy) -> Iterator[Problem]:
    for name in ("enforce_network", "allow_partial"):
        value = getattr(policy, name)
        if not isinstance(value, bool):
            yield name, f"{quoted(value)} must be true or false"


def _check_members(policy: SandboxPolicy) -> Iterator[Problem]:
    for name, kind, may_miss in (
        ("isolation", IsolationLevel, False),
        ("on_output_limit", OutputOverflow, False),
        ("syscall_profile", SyscallProfile, True),
    ):
        value = getattr(policy, name)
        if isinstance(value, kind) or (may_miss and value is None):
            continue
        yield name, not_one_of(value, kind)


def _check_environment(policy: SandboxPolicy) -> Iterator[Problem]:
    if not isinstance(policy.environment, Mapping):
        yield "environment", f"{quoted(policy.environment)} must be a mapping of strings to strings"
    else:
        for key, value in policy.environment.items():
            if not (_is_variable(key) and isinstance(value, str) and is_system_text(value)):
                yield "environment", f"{quoted(key)}: {quoted(value)} must be name/value strings without NUL"
    if not isinstance(policy.pass_environment, tuple):
        yield "pass_environment", f"{quoted(policy.pass_environment)} is not a list of names"
    else:
        wrong = (name for name in policy.pass_environment if not _is_variable(name))
        yield from (("pass_environment", f"{quoted(name)} is not the name of a variable") for name in wrong)


def _is_variable(name: object) -> bool:
    return isinstance(name, str) and bool(name) and "=" not in name and is_system_text(name)


def _check_sizes_agree(policy: SandboxPolicy) -> Iterator[Problem]:
    one, all_together = policy.file_bytes, policy.disk_bytes
    if isinstance(one, int) and isinstance(all_together, int) and one > all_together:
        yield "file_bytes", f"{one} for one file contradicts disk_bytes {all_together} for all of them"


_CHECKS: tuple[Callable[[SandboxPolicy], Iterator[Problem]], ...] = (
    _check_numbers,
    _check_switches,
    _check_members,
    policy_network.check,
    policy_network.check_limits,
    policy_paths.check,
    policy_paths.check_places,
    policy_paths.check_root,
    policy_paths.check_image,
    _check_environment,
    _check_sizes_agree,
)


# ---- plain data in and out


def _as_is(value: object) -> object:
    return value


_READERS: dict[str, Callable[[object], object]] = {
    **{limit.field: READ_UNIT.get(limit.unit, _as_is) for limit in LIMITS},
    "disk_bytes": lambda value: UNLIMITED_BYTES if value == UNLIMITED else READ_UNIT[Unit.BYTES](value),
    "output_bytes": lambda value: UNLIMITED_OUTPUT if value == UNLIMITED else READ_UNIT[Unit.BYTES](value),
}


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, tuple):
        return [item.plain() if hasattr(item, "plain") else item for item in value]
    return str(value) if isinstance(value, IsolationLevel | OutputOverflow | SyscallProfile) else value
