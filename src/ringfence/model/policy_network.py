"""The network of a policy: how its two fields are read and what may be wrong with them."""

from __future__ import annotations

from _collections_abc import Iterator, Mapping
from types import MappingProxyType

from ringfence.errors import PolicyError
from ringfence.model.system_text import quoted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.model.policy import SandboxPolicy
    from ringfence.model.policy_keys import Problem

NO_NETWORK, HOST_NETWORK = "none", "host"


def rules(value: object) -> object:
    """Return the rules of a list; if it can't be read, the check tells why."""
    if not isinstance(value, list | tuple) or not value:
        return tuple(value) if isinstance(value, list) else value
    from ringfence.model.network_list import read_rules

    try:
        return read_rules(value)
    except PolicyError as wrong:
        return wrong


def limits(value: object) -> object:
    """Return the limits of a mapping; if it can't be read, the check tells why."""
    if not isinstance(value, Mapping) or not value:
        return MappingProxyType({}) if value == {} else value
    from ringfence.model.network_list import read_limits

    try:
        return MappingProxyType(read_limits(value))
    except PolicyError as wrong:
        return wrong


def check(policy: SandboxPolicy) -> Iterator[Problem]:
    rule: object = policy.network
    if rule in (None, NO_NETWORK, HOST_NETWORK):
        if rule == HOST_NETWORK and policy.enforce_network:
            yield "network", "host contradicts enforce_network: true"
    elif isinstance(rule, PolicyError):
        yield from ((each.field, each.problem) for each in (rule, *rule.more))
    elif not isinstance(rule, tuple):
        yield "network", f"{quoted(rule)} is not none, host or a list of hosts"
    elif not rule:
        yield "network", "an empty list of hosts; write none"


def check_limits(policy: SandboxPolicy) -> Iterator[Problem]:
    given: object = policy.network_limits
    if isinstance(given, PolicyError):
        yield from ((each.field, each.problem) for each in (given, *given.more))
    elif not isinstance(given, Mapping):
        yield "network_limits", f"{quoted(given)} must be a mapping, such as {{connections: 100, bytes_out: 10M}}"
    elif given and not isinstance(policy.network, tuple):
        yield "network_limits", "only a network list has limits; name who may be reached in network"
