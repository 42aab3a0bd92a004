"""A policy's network list as a whole: all entries, how large it may be, what is listened for, its limits."""

from __future__ import annotations

import math
from _collections_abc import Iterable, Iterator, Mapping

from ringfence.errors import PolicyError
from ringfence.model import host_text
from ringfence.model.limits import READ_UNIT, Unit
from ringfence.model.network_rule import NetworkRule
from ringfence.model.policy_keys import Problem, unknown
from ringfence.model.system_text import quoted

MAX_RULES, MAX_PORTS, MAX_LISTENERS = 1024, 256, 1024
WILDCARD_ADDRESSES = 8
"""How many sub-domains of one wildcard can be told apart by their addresses; the last of them is shared."""
ALWAYS_LISTENING = 3
"""DNS by UDP and by TCP, and the proxy."""
EVERY_IPV4, EVERY_IPV6 = "0.0.0.0", "::"
UNITS = {
    "connections": Unit.COUNT,
    "connections_per_second": Unit.COUNT,
    "bytes": Unit.BYTES,
    "bytes_out": Unit.BYTES,
    "bytes_in": Unit.BYTES,
    "idle_s": Unit.SECONDS,
    "total_s": Unit.SECONDS,
}
UNNAMED: Mapping[str, int | float] = {"connections": 1024, "idle_s": 600.0}
"""Limits that apply if a policy does not say; the others are then unlimited."""
_LARGEST_LIMIT = 2**62


def read_rules(values: Iterable[object], field: str = "network") -> tuple[NetworkRule, ...]:
    """Return the rules of a list; PolicyError tells all that is wrong with it."""
    rules: list[NetworkRule] = []
    problems: list[str] = []
    for number, value in enumerate(values, 1):
        if number > MAX_RULES:
            problems.append(f"more than {MAX_RULES:,} entries; name networks or wildcards")
            break
        try:
            rules.append(NetworkRule.of(value))
        except PolicyError as wrong:
            problems += (_told(number, value, each) for each in (wrong, *wrong.more))
    problems = problems or [*_too_much(rules), *_contradictions(rules)]
    if problems:
        first, *others = problems
        raise PolicyError(field, first, more=tuple(PolicyError(field, each) for each in others))
    return tuple(dict.fromkeys(rules))


def _told(number: int, value: object, wrong: PolicyError) -> str:
    """A text entry is quoted; a mapping is named by its number, and the key."""
    if isinstance(value, Mapping):
        return f"entry {number}, {wrong.field}: {wrong.problem}"
    if isinstance(value, str) and quoted(value) not in wrong.problem:
        return f"{quoted(value)}: {wrong.problem}"
    return wrong.problem


def _too_much(rules: list[NetworkRule]) -> Iterator[str]:
    ports = host_text.count(host_text.merged(pair for rule in rules for pair in rule.ports))
    if ports > MAX_PORTS:
        yield f"{ports:,} ports in all; a policy may name {MAX_PORTS}"
        return
    sockets = ALWAYS_LISTENING + sum(_sockets(host) * len(ports) for host, ports in listened(rules))
    if sockets > MAX_LISTENERS:
        yield f"{sockets:,} listening sockets are needed for it, and {MAX_LISTENERS:,} are possible; name fewer ports"


def _sockets(host: str) -> int:
    return WILDCARD_ADDRESSES if host_text.is_wildcard(host) else 1


def _contradictions(rules: list[NetworkRule]) -> Iterator[str]:
    """For one host and one port, one entry says what has to hold."""
    seen: dict[str, list[NetworkRule]] = {}
    for rule in rules:
        others = seen.setdefault(rule.host, [])
        if any(other.demands != rule.demands and _overlap(other, rule) for other in others):
            yield f"{rule} appears twice with different demands; make one entry of them"
        others.append(rule)


def _overlap(one: NetworkRule, other: NetworkRule) -> bool:
    return any(first <= end and start <= last for first, last in one.ports for start, end in other.ports)


def listened(rules: Iterable[NetworkRule]) -> list[tuple[str, tuple[int, ...]]]:
    """Return what is listened for, each with its ports: names, wildcards and addresses of the list, and all addresses
    of a family if a network is listed, so that the others need no socket for that port."""
    rules = list(rules)
    ports: dict[str, set[int]] = {}
    for rule in rules:
        ports.setdefault(_listener(rule), set()).update(_every(rule.listens))
    found = [(host, _with_parents(host, ports)) for host in ports]
    everywhere = {host: ports.get(host, set()) for host in (EVERY_IPV4, EVERY_IPV6)}
    rows = ((host, own if host in everywhere else own - everywhere[_family(host)]) for host, own in found)
    return [(host, tuple(sorted(own))) for host, own in rows if own]


def _listener(rule: NetworkRule) -> str:
    return _family(rule.host) if rule.is_network else rule.host


def _family(host: str) -> str:
    """Names have IPv4 addresses inside a sandbox."""
    return EVERY_IPV6 if ":" in host else EVERY_IPV4


def _with_parents(host: str, ports: Mapping[str, set[int]]) -> set[int]:
    """A name can be reached on the ports of the wildcards that cover it too."""
    if host_text.is_address(host):
        return ports[host]
    return ports[host].union(*(ports.get(parent, ()) for parent in host_text.parents(host)))


def _every(ranges: host_text.Ranges) -> Iterator[int]:
    return (port for first, last in ranges for port in range(first, last + 1))


# ---- what all connections may come to


def read_limits(values: Mapping[object, object], field: str = "network_limits") -> dict[str, int | float]:
    """Return the limits as numbers; PolicyError tells all that is wrong with them."""
    found: dict[str, int | float] = {}
    problems: list[Problem] = []
    for name, value in values.items():
        if not isinstance(name, str) or name not in UNITS:
            problems.append((field, unknown(name, UNITS, f"there are {', '.join(UNITS)}")[1]))
            continue
        try:
            found[name] = _limit(UNITS[name], value)
        except ValueError as wrong:
            problems.append((field, f"{name}: {wrong}"))
    if problems:
        first, *others = problems
        raise PolicyError(*first, more=tuple(PolicyError(*other) for other in others))
    return found


def _limit(unit: Unit, value: object) -> int | float:
    read = READ_UNIT[unit](value) if unit in READ_UNIT else value
    if isinstance(read, bool) or not isinstance(read, int | float):
        raise ValueError(f"{quoted(value)} is not a number")
    if isinstance(read, float) and not math.isfinite(read):
        raise ValueError(f"{quoted(value)} is not a finite number")
    if not 0 < read <= _LARGEST_LIMIT:
        raise ValueError(f"{quoted(value)} must be greater than 0 and at most {_LARGEST_LIMIT:,}")
    if unit is not Unit.SECONDS and read != int(read):
        raise ValueError(f"{quoted(value)} is not a whole number")
    return float(read) if unit is Unit.SECONDS else int(read)
