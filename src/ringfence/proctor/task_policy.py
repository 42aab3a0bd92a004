"""``TaskPolicy``: Proctor's policy file, with additional fields of ours. It says what the agent, the set-up and the
grader of a task may do; each of them gets a ``SandboxPolicy`` made from it.

It is checked when it is made. An error names the key as it stands in the file.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType

from ringfence.errors import PolicyError, UsageError
from ringfence.evidence.keys import SEED_VARIABLE
from ringfence.model.limits import GIB, MIB, READ_UNIT, TEN_YEARS_S, IsolationLevel, Unit
from ringfence.model.network_list import read_rules
from ringfence.model.network_rule import NetworkRule
from ringfence.model.paths import within
from ringfence.model.policy import SandboxPolicy
from ringfence.model.policy_keys import Problem, in_order, unknown
from ringfence.model.record import record
from ringfence.model.system_text import is_system_text

PHASES = ("setup", "agent", "grader")
VERSION = 1
CPU_TIMES_WALL = 8
"""A phase's processor time as a multiple of its wall time, where the policy does not set it."""
OWN_PLACES = ("/oracle", "/grader", "/task")
"""Where sandboxes of a task have its own files."""
_TEXTS = ("git.base_commit", "env.allow", "forbidden.reads", "forbidden.writes")
_HEX = frozenset("0123456789abcdef")
_ID_CHARS = 40


@record
class TaskPolicy:
    """What a task allows. Paths are as the agent sees them.

    >>> TaskPolicy(pids=64).sandbox_policy("agent").pids_max
    64
    """

    mount_at: str = "/workspace"
    forbidden_reads: tuple[str, ...] = ()
    forbidden_writes: tuple[str, ...] = ()
    network: tuple[NetworkRule, ...] = ()
    """Of the agent; empty: none."""
    setup_network: tuple[NetworkRule, ...] = ()
    grader_network: tuple[NetworkRule, ...] = ()
    network_limits: Mapping[str, int | float] = MappingProxyType({})
    """Of every phase that has a network."""
    base_commit: str = ""
    keep_git: bool = False
    """Whether repositories in the workspace are a part of the task, and arrive as they are."""
    env_allow: tuple[str, ...] = ()
    """Names of the caller's variables that the agent gets; set-up and grader get none."""
    wall_time_s: float = 1800
    setup_wall_time_s: float = 1800
    grader_wall_time_s: float = 1800
    pids: int = 512
    memory_bytes: int = 2 * GIB
    cpu_time_s: float | None = None
    """Absent: eight times the wall time of the phase."""
    disk_bytes: int = 10 * GIB
    file_bytes: int | None = None
    output_bytes: int = 16 * MIB
    open_files: int = 1024
    text: bytes = b""
    """The file as it was read."""

    def __post_init__(self) -> None:
        for name, make in _COERCIONS.items():
            object.__setattr__(self, name, make(getattr(self, name)))
        problems = [problem for check in _CHECKS for problem in check(self)]
        if problems:
            raise _error(problems)

    def sandbox_policy(self, phase: str, **changes: object) -> SandboxPolicy:
        """Return what ``setup``, ``agent`` or ``grader`` may do; it names no paths."""
        if phase not in PHASES:
            raise UsageError(f"{phase!r} is not a task phase; there are {', '.join(PHASES)}")
        rules: tuple[NetworkRule, ...] = getattr(self, _NETWORKS[phase])
        wall = getattr(self, _WALLS[phase])
        values: dict[str, object] = {
            "isolation": IsolationLevel.STRICT,
            "wall_time_s": wall,
            "cpu_time_s": _cpu_time(wall) if self.cpu_time_s is None else self.cpu_time_s,
            "mem_bytes": self.memory_bytes,
            "pids_max": self.pids,
            "nofile": self.open_files,
            "output_bytes": self.output_bytes,
            "disk_bytes": self.disk_bytes,
            "file_bytes": self.file_bytes,
            "network": rules or "none",
            "network_limits": self.network_limits if rules else MappingProxyType({}),
            "pass_environment": self.env_allow if phase == "agent" else (),
        }
        return SandboxPolicy(**{**values, **changes})  # type: ignore[arg-type]

    def asks(self) -> tuple[list[str], list[str]]:
        """The caller's variables that it wants, and the hosts that phases may reach: it may be somebody else's work."""
        rules = (*self.setup_network, *self.network, *self.grader_network)
        injected = (rule.inject.from_env for rule in rules if rule.inject is not None)
        return [*dict.fromkeys((*self.env_allow, *injected))], [*dict.fromkeys(map(str, rules))]

    @classmethod
    def from_yaml(cls, path: str | os.PathLike[str]) -> TaskPolicy:
        """Read a policy file; an error names file, line, column and key."""
        from ringfence.model.policy_file import parse_policy, policy_bytes

        name = os.fspath(path)
        data = policy_bytes(name)
        return parse_policy(name, data, lambda values: cls.from_dict(values, text=data), texts=_TEXTS)

    @classmethod
    def from_dict(cls, values: Mapping[str, object], *, text: bytes = b"") -> TaskPolicy:
        """Make a policy of what a file says; every PolicyError names the key, such as ``limits.pids``."""
        if not isinstance(values, Mapping):
            raise PolicyError("", f"a policy must be a mapping, not {type(values).__name__}")
        problems: list[Problem] = []
        flat = dict(_flat(values, "", problems))
        fields = dict(_fields(flat, problems))
        problems += _modes(flat)
        try:
            policy = cls(**fields, text=text)  # type: ignore[arg-type]
        except PolicyError as wrong:
            problems += [(each.field, each.problem) for each in (wrong, *wrong.more)]
        if problems:
            raise _error(in_order(list(dict.fromkeys(problems)), flat))
        return policy


_NETWORKS = {"setup": "setup_network", "agent": "network", "grader": "grader_network"}
_WALLS = {"setup": "setup_wall_time_s", "agent": "wall_time_s", "grader": "grader_wall_time_s"}


def _cpu_time(wall: object) -> float:
    """Another check reports an invalid wall time."""
    sound = isinstance(wall, int | float) and wall > 0
    return min(CPU_TIMES_WALL * wall, TEN_YEARS_S) if sound else 1  # type: ignore[operator]


def _error(problems: list[Problem]) -> PolicyError:
    first, *others = problems
    return PolicyError(*first, more=tuple(PolicyError(*other) for other in others))


# ---- keys of the file


_FIELD_OF: dict[str, str] = {
    "version": "",
    "workspace.mount_at": "mount_at",
    "forbidden.reads": "forbidden_reads",
    "forbidden.writes": "forbidden_writes",
    "network.mode": "",
    "network.allow": "network",
    "network.limits": "network_limits",
    "git.base_commit": "base_commit",
    "git.keep": "keep_git",
    "env.allow": "env_allow",
    "limits.wall_time_secs": "wall_time_s",
    "limits.pids": "pids",
    "limits.memory_bytes": "memory_bytes",
    "limits.cpu_time_secs": "cpu_time_s",
    "limits.disk_bytes": "disk_bytes",
    "limits.file_bytes": "file_bytes",
    "limits.output_bytes": "output_bytes",
    "limits.open_files": "open_files",
    "phases.setup.network.mode": "",
    "phases.setup.network.allow": "setup_network",
    "phases.setup.wall_time_secs": "setup_wall_time_s",
    "phases.grader.network.mode": "",
    "phases.grader.network.allow": "grader_network",
    "phases.grader.wall_time_secs": "grader_wall_time_s",
}
"""Every key of a policy file, and the field that it sets; empty: none of its own."""
_KEY_OF = {field: key for key, field in _FIELD_OF.items() if field}
_NETWORK_SECTIONS = ("network", "phases.setup.network", "phases.grader.network")
_SANDBOX_FIELDS = {
    "mem_bytes": "memory_bytes", "pids_max": "pids", "nofile": "open_files", "pass_environment": "env_allow",
}  # fmt: skip
"""Those of ``SandboxPolicy`` that are called something else here."""


def _below(section: str) -> list[str]:
    """The keys of a section."""
    start = f"{section}." if section else ""
    return list(dict.fromkeys(key[len(start) :].split(".")[0] for key in _FIELD_OF if key.startswith(start)))


def _flat(values: Mapping[str, object], section: str, problems: list[Problem]) -> Iterator[tuple[str, object]]:
    """Every key with those above it; an unknown key is a problem."""
    known = _below(section)
    for name, value in values.items():
        key = f"{section}.{name}" if section else str(name)
        if name not in known:
            problems.append((key, unknown(name, known, f"there are {', '.join(known)}")[1]))
        elif key in _FIELD_OF:
            yield key, value
        elif isinstance(value, Mapping):
            yield from _flat(value, key, problems)
        else:
            problems.append((key, f"must be a section with {', '.join(_below(key))}"))


def _fields(flat: Mapping[str, object], problems: list[Problem]) -> Iterator[tuple[str, object]]:
    """What the keys set. An empty value is refused: lines that belong below a key may have lost their indent."""
    for key, value in flat.items():
        if value is None or value == "":
            problems.append((key, "has no value; omit the key"))
        elif field := _FIELD_OF[key]:
            yield field, value
    if "version" in flat and (type(flat["version"]) is not int or flat["version"] != VERSION):
        problems.append(("version", f"{flat['version']!r} is not {VERSION}, the only version"))


def _modes(flat: Mapping[str, object]) -> Iterator[Problem]:
    """A network's mode and its list say the same."""
    for section in _NETWORK_SECTIONS:
        mode, allowed = flat.get(f"{section}.mode", "deny"), flat.get(f"{section}.allow", ())
        if mode not in ("deny", "allowlist"):
            yield f"{section}.mode", f"{mode!r} is not deny or allowlist"
        elif mode == "deny" and allowed:
            yield f"{section}.allow", "names hosts, but the mode is deny; write mode: allowlist"
        elif mode == "allowlist" and not allowed:
            key = f"{section}.allow" if f"{section}.allow" in flat else f"{section}.mode"
            yield key, "the allowlist is empty; write mode: deny, or name the hosts that may be reached"


# ---- made uniform before they are checked


def _rules(value: object) -> object:
    """Return the rules of a list; where one can't be read, the check says why."""
    if not isinstance(value, list | tuple):
        return UsageError(f"{value!r} is not a list of hosts, such as [api.example.com:443]")
    try:
        return read_rules(value, "")
    except PolicyError as wrong:
        return wrong


def _texts(value: object) -> object:
    """A list of strings as a tuple; a path may be given as ``Path``."""
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        return value
    return tuple(os.fspath(item) if isinstance(item, os.PathLike) else item for item in value)


def _paths(value: object) -> object:
    """A final slash makes no difference."""
    found = _texts(value)
    if not isinstance(found, tuple):
        return found
    return tuple(dict.fromkeys(_without_slash(item) if isinstance(item, str) else item for item in found))


def _without_slash(path: object) -> object:
    return (path.rstrip("/") or "/") if isinstance(path, str) and path else path


def _number(unit: Unit) -> Callable[[object], object]:
    """Texts such as ``2G`` are read; where one can't be, the check of the sandbox policy says why."""

    def make(value: object) -> object:
        try:
            return READ_UNIT[unit](value)
        except ValueError:
            return value

    return make


_COERCIONS: dict[str, Callable[[object], object]] = {
    **dict.fromkeys(_NETWORKS.values(), _rules),
    **dict.fromkeys(("forbidden_reads", "forbidden_writes"), _paths),
    **dict.fromkeys(("memory_bytes", "disk_bytes", "file_bytes", "output_bytes"), _number(Unit.BYTES)),
    **dict.fromkeys((*_WALLS.values(), "cpu_time_s"), _number(Unit.SECONDS)),
    "env_allow": _texts,
    "mount_at": _without_slash,
}


# ---- checks: each yields what is wrong, none raises


def _check_mount(policy: TaskPolicy) -> Iterator[Problem]:
    key, path = _KEY_OF["mount_at"], policy.mount_at
    problem = _path_problem(path) or _place_problem(path)
    if problem:
        yield key, problem


def _check_forbidden(policy: TaskPolicy) -> Iterator[Problem]:
    for field in ("forbidden_reads", "forbidden_writes"):
        paths, key = getattr(policy, field), _KEY_OF[field]
        if not isinstance(paths, tuple):
            yield key, f"{paths!r} is not a list of absolute paths"
            continue
        yield from ((key, problem) for path in paths if (problem := _path_problem(path)))
        if field == "forbidden_reads" and isinstance(policy.mount_at, str):
            above = (path for path in paths if isinstance(path, str) and within(policy.mount_at, path))
            yield from ((key, f"{path!r} contains the workspace, which the agent must read") for path in above)


def _place_problem(path: str) -> str:
    """What the sandbox's own check says; the source does not matter."""
    from ringfence.sandbox.showing import refuse_places

    if any(within(path, each) for each in OWN_PLACES):
        return f"{path} is reserved for the task's own files; name another, such as /workspace"
    if os.name != "posix":  # there is no such sandbox, and a policy of this system takes its own paths alone
        return ""
    try:
        refuse_places(SandboxPolicy(isolation=IsolationLevel.STRICT, shown_at={"/nonexistent": path}))
    except PolicyError as wrong:
        return wrong.problem
    return ""


def _path_problem(path: object) -> str:
    if not isinstance(path, str) or not is_system_text(path):
        return f"{path!r} is not a path"
    if not path.startswith("/"):
        return f"{path!r} is not absolute"
    plain = "/" + posixpath.normpath(path).lstrip("/")
    return "" if path == plain else f"{path!r} is not a normalized path; write {plain!r}"


def _check_networks(policy: TaskPolicy) -> Iterator[Problem]:
    for field in _NETWORKS.values():
        value: object = getattr(policy, field)
        if isinstance(value, PolicyError):
            yield from ((_KEY_OF[field], each.problem) for each in (value, *value.more))
        elif isinstance(value, UsageError):
            yield _KEY_OF[field], str(value)
    if policy.network_limits and not any(getattr(policy, field) for field in _NETWORKS.values()):
        yield _KEY_OF["network_limits"], "only a network list has limits; name the hosts to reach in network.allow"


def _check_git(policy: TaskPolicy) -> Iterator[Problem]:
    commit: object = policy.base_commit
    if commit and not (isinstance(commit, str) and len(commit) == _ID_CHARS and set(commit) <= _HEX):
        yield _KEY_OF["base_commit"], f"{commit!r} is not the id of a commit: 40 digits of 0-9 and a-f"
    if not isinstance(policy.keep_git, bool):
        yield _KEY_OF["keep_git"], f"{policy.keep_git!r} is not true or false"
    elif policy.keep_git and commit:
        yield _KEY_OF["keep_git"], "contradicts git.base_commit, which omits all later history"


def _check_variables(policy: TaskPolicy) -> Iterator[Problem]:
    """The seed signs verdicts: neither an agent nor a server gets it."""
    problem = f"{SEED_VARIABLE} signs verdicts and can't be passed on"
    if isinstance(policy.env_allow, tuple) and SEED_VARIABLE in policy.env_allow:
        yield _KEY_OF["env_allow"], problem
    for field in _NETWORKS.values():
        rules: object = getattr(policy, field)
        injected = [rule.inject for rule in rules if rule.inject] if isinstance(rules, tuple) else []
        if any(each.from_env == SEED_VARIABLE for each in injected):
            yield _KEY_OF[field], problem


def _check_limits(policy: TaskPolicy) -> Iterator[Problem]:
    """What the sandbox policy of each phase says about them."""
    for phase in PHASES:
        told_before = isinstance(getattr(policy, _NETWORKS[phase]), Exception)
        changes = {"network": "none", "network_limits": MappingProxyType({})} if told_before else {}
        try:
            policy.sandbox_policy(phase, **changes)
        except PolicyError as wrong:
            yield from ((_key(each.field, phase), each.problem) for each in (wrong, *wrong.more))


def _key(field: str, phase: str) -> str:
    """The key of the file that set a field of the sandbox' policy."""
    by_phase = {"wall_time_s": _WALLS[phase], "network": _NETWORKS[phase]}
    name = by_phase.get(field) or _SANDBOX_FIELDS.get(field, field)
    return _KEY_OF.get(name, name)


_CHECKS: tuple[Callable[[TaskPolicy], Iterator[Problem]], ...] = (
    _check_mount,
    _check_forbidden,
    _check_networks,
    _check_git,
    _check_variables,
    _check_limits,
)
