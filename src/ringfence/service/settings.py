"""The operator's settings of a service: where it listens, its policies and workspaces by name, how much it may use.

Read from a YAML file with the reader of policies: an unknown key or an invalid value is an error with its place.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Callable, Mapping
from functools import cached_property
from types import MappingProxyType

from ringfence.engine.run import traits_of
from ringfence.errors import PolicyError, UsageError
from ringfence.model.limits import IsolationLevel, parse_duration, parse_size
from ringfence.model.policy import HOST_NETWORK, SandboxPolicy
from ringfence.model.policy_file import parse_policy, policy_bytes
from ringfence.model.policy_keys import unknown
from ringfence.model.record import field_names, record, replace
from ringfence.model.state_folder import state_folder
from ringfence.model.ways.walk import absolute, real

PORT = 8700
NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
_MIB = 2**20
_PLAIN = (":80", ":443")
"""Ports that ``Host`` leaves out: those of HTTP, and of HTTPS before a proxy."""
_THIS_HOST = ("0.0.0.0", "::")
"""Who connects to these reaches loopback."""


@record
class NamedPolicy:
    """A policy that clients may pick, with how many sandboxes of it stand by."""

    name: str
    policy: SandboxPolicy
    warm: int = 0
    preload: tuple[str, ...] = ()


@record
class NamedWorkspace:
    """A directory of the host that boxes may work on, in a layer."""

    name: str
    path: str
    commit: bool = False
    """Whether a client with the scope ``commit`` may carry its changes over."""


@record
class Settings:
    """All of it, checked."""

    host: str = "127.0.0.1"
    port: int = PORT
    names: tuple[str, ...] = ()
    """Further names, with their port where it is not ours, under which clients reach it: ``Host`` must be one."""
    tokens: str = ""
    """The file of tokens; absent: anybody who can connect may do everything, and it listens on loopback only."""
    state: str = ""
    """Absent: ``service`` in the state directory."""
    policies: Mapping[str, NamedPolicy] = MappingProxyType({})
    workspaces: Mapping[str, NamedWorkspace] = MappingProxyType({})
    sandboxes: int = 0
    """At one time; absent: eight for each processor."""
    memory_bytes: int = 0
    """The limits of all of them together; absent: three quarters of what the machine has."""
    spare_bytes: int = 256 * _MIB
    """Nobody is let in while the machine has less memory than this available."""
    queue: int = 256
    """How many may wait; further requests are told to come again."""
    body_bytes: int = 16 * _MIB
    idle_s: float = 600.0
    """A box that nobody has used for this long is closed: what runs in it ends, its files stay."""
    keep_s: float = 7 * 86400.0
    """A box that nobody has used for this long is removed."""
    result_s: float = 3600.0
    """How long the result of a run is kept."""
    results_bytes: int = 256 * _MIB
    """Disk space for results and promises of one tenant; the oldest results go first."""
    drain_s: float = 30.0
    """How long runs may go on when the service is told to end."""
    request_s: float = 30.0
    """How long a client may take to send its request."""
    connections: int = 1024

    def __post_init__(self) -> None:
        values = self.__dict__
        values["state"] = absolute(self.state or os.path.join(state_folder(), "service"))
        values["sandboxes"] = self.sandboxes or 8 * (os.cpu_count() or 1)
        values["memory_bytes"] = self.memory_bytes or machine_memory() * 3 // 4
        if not self.policies:
            default = SandboxPolicy(isolation=IsolationLevel.STRICT)
            values["policies"] = {"default": NamedPolicy(name="default", policy=default, warm=2)}

    @property
    def is_loopback(self) -> bool:
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    @cached_property
    def authorities(self) -> frozenset[str]:
        """What ``Host`` may say."""
        own = ("127.0.0.1", "localhost", "[::1]") if self.is_loopback else (_literal(self.host),)
        ours = {f"{name}:{self.port}" for name in own}
        more = {name.lower() for name in self.names}
        ours |= more | {f"{name}:{self.port}" for name in more if not _has_port(name)}
        return frozenset(ours | {name.removesuffix(port) for name in ours for port in _PLAIN if name.endswith(port)})

    def checked(self) -> Settings:
        """UsageError if it would let in people who must not come in."""
        if self.tokens:
            return self
        if not isinstance(self.tokens, str):
            raise UsageError(f"tokens: {self.tokens!r:.80} is not the path of a file",
                             hint="omit it to run without tokens")  # fmt: skip
        if not self.is_loopback:
            raise UsageError(f"{self.host}: without tokens, anybody who reaches this address can run programs here",
                             hint="create tokens: ringfence serve --new-token NAME --tokens FILE")  # fmt: skip
        for name, each in self.policies.items():
            partly = each.policy.allow_partial and not traits_of(each.policy.isolation).network_apart
            if each.policy.network_rule == HOST_NETWORK or partly:
                raise UsageError(
                    f"policies.{name}: with the host's network, a program in the sandbox reaches this service, which "
                    "asks for no token", hint="create tokens, or give the policy another network")  # fmt: skip
            rule = self._rule_to_us(each.policy)
            if rule:
                raise UsageError(
                    f"policies.{name}: with the rule {rule}, a program in the sandbox reaches this service, which asks "
                    "for no token", hint="create tokens, or remove the rule from network")  # fmt: skip
        return self

    def _rule_to_us(self, policy: SandboxPolicy) -> str:
        """The rule of its network list by which the gateway connects to us; empty: there is none, or no port yet."""
        from ringfence.egress.rules import RuleSet

        if isinstance(policy.network_rule, str):
            return ""
        listed = RuleSet.of(policy.network_rule)
        own = ("127.0.0.1", "::1") if self.host == "localhost" else (self.host,)
        decided = [listed.decide(address, self.port) for address in (*own, *_THIS_HOST)]
        return next((str(policy.network_rule[each.rule]) for each in decided if each.rule is not None), "")


def _literal(host: str) -> str:
    return f"[{host}]" if ":" in host else host.lower()


def _has_port(name: str) -> bool:
    return name.rpartition(":")[2].isdigit() and not name.endswith("]")


def machine_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


# ---- from a file


def read_settings(path: str) -> Settings:
    return parse_policy(path, policy_bytes(path), from_plain)


def from_plain(values: Mapping[str, object]) -> Settings:
    """Settings out of plain data; PolicyError names every key that is wrong."""
    if not isinstance(values, Mapping):
        raise PolicyError("", "settings must be a mapping")
    problems = [unknown(key, sorted(_READERS), f"there are {', '.join(sorted(_READERS))}") for key in values
                if key not in _READERS]  # fmt: skip
    found: dict[str, object] = {}
    for name, value in values.items():
        if name in _READERS:
            try:
                found[name] = _READERS[name](value)
            except PolicyError as wrong:
                problems += [(f"{name}.{each.field}".rstrip("."), each.problem) for each in (wrong, *wrong.more)]
            except (ValueError, TypeError) as wrong:
                problems.append((name, str(wrong)))
    if problems:
        first, *others = problems
        raise PolicyError(*first, more=tuple(PolicyError(*other) for other in others))
    return Settings(**found)  # type: ignore[arg-type]


def whole(least: int, most: int) -> Callable[[object], object]:
    def read(value: object) -> int:
        if type(value) is not int or not least <= value <= most:
            raise ValueError(f"{value!r} is not a whole number from {least} to {most}")
        return value

    return read


def size(value: object) -> int:
    found = parse_size(value) if isinstance(value, str) else value
    if type(found) is not int or found <= 0:
        raise ValueError(f"{value!r} is not a size; write 512M or a number of bytes")
    return found


def _seconds(value: object) -> float:
    seconds = parse_duration(value) if isinstance(value, str) else value
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < 2**31:
        raise ValueError(f"{value!r} is not a time; write 30, 10m or 2h")
    return float(seconds)


def _text(value: object) -> str:
    if not isinstance(value, str) or not value or "\0" in value:
        raise ValueError(f"{value!r} is not a string")
    return value


def _tokens(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{value!r} is not the path of a file of tokens; omit the key to run without tokens")
    return _text(value)


def texts(value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise ValueError(f"{value!r} is not a list")
    return tuple(map(_text, value))


def named(values: object, read: Callable[[str, Mapping[str, object]], object]) -> dict[str, object]:
    """A mapping of names to mappings."""
    if not isinstance(values, Mapping) or not values:
        raise ValueError("is not a mapping of names")
    made = {}
    for name, value in values.items():
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise ValueError(f"{name!r} is not a name of lower-case letters, digits, - and _")
        if not isinstance(value, Mapping):
            raise ValueError(f"{name}: is not a mapping")
        try:
            made[name] = read(name, value)
        except PolicyError as wrong:
            raise PolicyError(f"{name}.{wrong.field}", wrong.problem, more=wrong.more) from None
    return made


def _policy(name: str, values: Mapping[str, object]) -> NamedPolicy:
    own = dict(values)
    warm, preload = whole(0, 1024)(own.pop("warm", 0)), texts(own.pop("preload", []))
    # A policy of a service is strict unless it says otherwise: a file of three lines must not give less.
    policy = SandboxPolicy.from_dict({"isolation": "strict", **own})
    return NamedPolicy(name=name, policy=policy, warm=warm, preload=preload)  # type: ignore[arg-type]


def _workspace(name: str, values: Mapping[str, object]) -> NamedWorkspace:
    known = set(field_names(NamedWorkspace)) - {"name"}
    if set(values) - known or "path" not in values:
        raise ValueError(f"{name}: a workspace must have path, and may have commit")
    path, commit = real(_text(values["path"])), values.get("commit", False)
    if not os.path.isdir(path):
        raise ValueError(f"{name}: {path} is not a directory")
    if not isinstance(commit, bool):
        raise ValueError(f"{name}: commit must be true or false")
    return NamedWorkspace(name=name, path=path, commit=commit)


_READERS: dict[str, Callable[[object], object]] = {
    "host": _text, "port": whole(0, 65535), "names": texts, "tokens": _tokens, "state": _text,
    "policies": lambda value: named(value, _policy), "workspaces": lambda value: named(value, _workspace),
    "sandboxes": whole(1, 100_000), "memory_bytes": size, "spare_bytes": size, "queue": whole(0, 1_000_000),
    "body_bytes": size, "results_bytes": size, "idle_s": _seconds, "keep_s": _seconds, "result_s": _seconds,
    "drain_s": _seconds, "request_s": _seconds, "connections": whole(1, 1_000_000),
}  # fmt: skip


def changed(settings: Settings, **changes: object) -> Settings:
    """Replace values of the file with those of the command line."""
    return replace(settings, **{name: value for name, value in changes.items() if value is not None})  # type: ignore[arg-type]
