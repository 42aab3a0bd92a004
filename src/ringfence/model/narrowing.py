"""``narrowed``: a policy that somebody asks for, and that allows no more than a given one. For doors where somebody
other than the operator asks: a client of the service, a model.

Whatever is not known to be less is refused: a new field of policies stays as the operator set it until it has a row
here.
"""

from __future__ import annotations

from _collections_abc import Callable, Mapping

from ringfence.errors import PolicyError
from ringfence.model import host_text
from ringfence.model.limits import HOST_LEVELS, LIMITS, OutputOverflow, SyscallProfile, disk_rule, is_weaker
from ringfence.model.network_list import UNNAMED
from ringfence.model.policy import HOST_NETWORK, NO_NETWORK, PATH_FIELDS, SandboxPolicy
from ringfence.model.system_text import cut

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.model.network_rule import NetworkRule

_SETTLED = "can be set by the operator only, and stays as it is"


def narrowed(policy: SandboxPolicy, wishes: Mapping[str, object]) -> SandboxPolicy:
    """Return the policy with what is asked for in plain data, as ``from_dict`` takes it; PolicyError names all that
    would allow more.

    >>> narrowed(SandboxPolicy(mem_bytes=2**29), {"mem_bytes": "64M"}).mem_bytes == 2**26
    True
    """
    if not wishes:
        return policy
    # Read on top of the policy, so that contradictions are found; dropping the network drops its limits too.
    plain = policy.to_dict()
    if isinstance(wishes.get("network"), str) and "network_limits" not in wishes:
        plain["network_limits"] = {}
    asked = SandboxPolicy.from_dict({**plain, **_united(policy, wishes)})
    named = [name for name in plain if name in wishes]
    problems = [(name, why) for name in named if (why := _RULES.get(name, _same(name))(policy, asked))]
    if problems:
        first, *others = problems
        raise PolicyError(*first, more=tuple(PolicyError(*other) for other in others))
    return asked


def _united(policy: SandboxPolicy, wishes: Mapping[str, object]) -> dict[str, object]:
    """Fields that add up: more is hidden, and limits that are not named stay."""
    more = dict(wishes)
    hidden, limits = more.get("hidden_paths"), more.get("network_limits")
    if isinstance(hidden, list | tuple) and all(isinstance(path, str) for path in hidden):
        more["hidden_paths"] = [*dict.fromkeys((*policy.hidden_paths, *hidden))]
    if isinstance(limits, Mapping) and isinstance(policy.network, tuple) and "network" not in wishes:
        more["network_limits"] = {**policy.network_limits, **limits}
    return more


# ---- what is wrong with one field; empty: it allows no more

Rule = Callable[[SandboxPolicy, SandboxPolicy], str]


def _no_more(name: str) -> Rule:
    def rule(policy: SandboxPolicy, asked: SandboxPolicy) -> str:
        most, wanted = _number(policy, name), _number(asked, name)
        if most is None or (wanted is not None and wanted <= most):
            return ""
        return f"{'no limit' if wanted is None else f'{wanted:,}'} is more than the {most:,} of the policy"

    return rule


def _number(policy: SandboxPolicy, name: str) -> float | None:
    value: float | None = getattr(policy, name)
    return disk_rule(policy.disk_bytes, policy.isolation) if name == "disk_bytes" else value


def _same(name: str) -> Rule:
    return lambda policy, asked: "" if getattr(policy, name) == getattr(asked, name) else _SETTLED


def _only(name: str, value: object) -> Rule:
    """The field may become this value, and no other."""

    def rule(policy: SandboxPolicy, asked: SandboxPolicy) -> str:
        wanted = getattr(asked, name)
        return "" if wanted in (value, getattr(policy, name)) else f"{_shown(wanted)} would allow more than the policy"

    return rule


def _of(name: str, *sources: str) -> Rule:
    """Some of what the policy has."""

    def rule(policy: SandboxPolicy, asked: SandboxPolicy) -> str:
        known = {item for source in sources for item in getattr(policy, source)}
        more = [str(item) for item in getattr(asked, name) if item not in known]
        return f"{cut(', '.join(more))}: not in the policy" if more else ""

    return rule


def _paths(name: str, *sources: str) -> Rule:
    """The same for paths. A job on the host's own root is behind walls only if its policy names some."""

    def rule(policy: SandboxPolicy, asked: SandboxPolicy) -> str:
        if asked.isolation in HOST_LEVELS and _names_paths(policy) and not _names_paths(asked):
            return f"without any path {asked.isolation} closes none; leave one, or ask for isolation strict"
        return _of(name, *sources)(policy, asked)

    return rule


def _names_paths(policy: SandboxPolicy) -> bool:
    return any(getattr(policy, name) for name in PATH_FIELDS)


def _hidden(policy: SandboxPolicy, asked: SandboxPolicy) -> str:
    """Whatever was asked for, what the policy hides must still be in it."""
    return "" if set(policy.hidden_paths) <= set(asked.hidden_paths) else "is not a list of paths"


def _isolation(policy: SandboxPolicy, asked: SandboxPolicy) -> str:
    if asked.isolation == policy.isolation:
        return ""
    if is_weaker(asked.isolation, policy.isolation):
        return f"{asked.isolation} is weaker than {policy.isolation}"
    # A job does not see less at one of these levels than at the other, but something else.
    return "" if policy.isolation in HOST_LEVELS and not asked.image and not asked.root else _SETTLED


def _network(policy: SandboxPolicy, asked: SandboxPolicy) -> str:
    allowed, wanted = policy.network_rule, asked.network_rule
    if wanted in (allowed, NO_NETWORK):
        return ""
    if isinstance(wanted, str) or allowed == NO_NETWORK:
        return "would reach more than the policy"
    more = [str(rule) for rule in wanted if not _is_covered(rule, allowed)]
    if more:
        return f"{cut(', '.join(more))}: not in the policy's list in this form"
    return "" if isinstance(allowed, str) else _loosened(wanted, allowed) or _counted_twice(wanted)


def _is_covered(rule: NetworkRule, allowed: str | tuple[NetworkRule, ...]) -> bool:
    """A subset of a listed entry's ports; its other demands stay. A header that is filled in from the
    operator's variables must never go to a host of somebody else's choice."""
    if allowed == HOST_NETWORK:
        return rule.inject is None
    return any(
        known.host == rule.host and known.demands == rule.demands and _ports_within(rule, known)
        for known in allowed if not isinstance(known, str)
    )  # fmt: skip


def _ports_within(rule: NetworkRule, known: NetworkRule) -> bool:
    return all(any(first <= low and high <= last for first, last in known.ports) for low, high in rule.ports)


def _loosened(wanted: tuple[NetworkRule, ...], allowed: tuple[NetworkRule, ...]) -> str:
    """The nearest rule decides: without it a wider rule would, and that may demand less."""
    for rule in wanted:
        for nearer in allowed:
            if nearer.demands == rule.demands or not _lies_within(nearer, rule):
                continue
            same = [each for each in wanted if each.host == nearer.host and each.demands == nearer.demands]
            if any(not any(each.has_port(port) for each in same) for port in _common_ports(nearer, rule)):
                return f"{rule} is wanted without {nearer}, which demands something else of a part of it"
    return ""


def _lies_within(nearer: NetworkRule, rule: NetworkRule) -> bool:
    if not (nearer.is_address and rule.is_address):
        return rule.host in host_text.parents(nearer.host)
    from ipaddress import ip_network

    part, whole = ip_network(nearer.host), ip_network(rule.host)
    return part != whole and part.version == whole.version and part.subnet_of(whole)  # type: ignore[arg-type]


def _common_ports(one: NetworkRule, other: NetworkRule) -> list[int]:
    return [port for first, last in one.ports for port in range(first, last + 1) if other.has_port(port)]


def _counted_twice(wanted: tuple[NetworkRule, ...]) -> str:
    """Each entry has a byte limit of its own: an entry that is asked for in parts would get it for each part."""
    seen = set()
    for rule in wanted:
        if rule.max_bytes_out is None and rule.max_bytes_in is None:
            continue
        if (rule.host, rule.demands) in seen:
            return f"{rule.host} has its bytes once; make one entry of its ports"
        seen.add((rule.host, rule.demands))
    return ""


def _network_limits(policy: SandboxPolicy, asked: SandboxPolicy) -> str:
    """Compares the limits if both policies have a list; otherwise there is nothing to limit."""
    if not isinstance(policy.network, tuple) or not isinstance(asked.network, tuple):
        return ""
    had, wanted = {**UNNAMED, **policy.network_limits}, {**UNNAMED, **asked.network_limits}
    more = [name for name in had if wanted.get(name, float("inf")) > had[name]]
    return f"{', '.join(more)}: more than the policy" if more else ""


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


_RULES: dict[str, Rule] = {
    **{limit.field: _no_more(limit.field) for limit in LIMITS},
    "enforce_network": _only("enforce_network", True),
    "allow_partial": _only("allow_partial", False),
    "on_output_limit": _only("on_output_limit", OutputOverflow.KILL),
    "syscall_profile": _only("syscall_profile", SyscallProfile.TIGHT),
    "isolation": _isolation,
    "network": _network,
    "network_limits": _network_limits,
    "readable_paths": _paths("readable_paths", "readable_paths", "writable_paths"),
    "writable_paths": _paths("writable_paths", "writable_paths"),
    "hidden_paths": _hidden,
    "pass_environment": _of("pass_environment", "pass_environment"),
}
