"""Whether what runs for somebody else could reach the cluster: whoever reaches its ports and has its token runs code
everywhere."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from ipaddress import IPv4Network, IPv6Network, ip_network

from ringfence.cluster.authentication import MODE, TOKEN, TOKEN_FILE
from ringfence.errors import UsageError
from ringfence.model import host_text
from ringfence.model.network_rule import NetworkRule

LOOPBACK = ("127.0.0.0/8", "0.0.0.0/8", "::1", "::")
"""All that leads to the machine itself: a port of the cluster that listens everywhere is reached by any of them. No
rule has IPv4 in the form of IPv6."""
_NAME = "localhost"
Network = IPv4Network | IPv6Network


def check_route(
    rules: Iterable[NetworkRule], nodes: Collection[str], is_own: Callable[[str], bool] = lambda address: False
) -> None:
    """UsageError where a network list names a node, or the loopback interface that the cluster listens on too.

    ``is_own``: whether an address belongs to this machine. On a node it knows all addresses of that node; the cluster
    knows one. No name is resolved: the gateway refuses a name that leads to the machine itself or to a private address,
    unless that address is listed too.
    """
    own = [ip_network(text, strict=False) for text in (*LOOPBACK, *nodes) if _is_network(text)]
    names = {_NAME, *(text.lower() for text in nodes if not _is_network(text))}
    for rule in rules:
        if _is_among(rule, own, names) or _is_one_of(rule, is_own):
            problem = f"network: {rule} is a node of the cluster, or the loopback of one"
            raise UsageError(problem, hint="a job must not reach its ports")


def _is_among(rule: NetworkRule, own: Iterable[Network], names: Collection[str]) -> bool:
    """Whether it overlaps one of these networks, or covers one of these names; names below ``localhost`` are too."""
    if not rule.is_address:
        covered = any(rule.host in (name, *host_text.parents(name)) for name in names)
        return covered or rule.host.endswith(f".{_NAME}")
    wanted = ip_network(rule.host, strict=False)
    return any(wanted.overlaps(each) for each in own if each.version == wanted.version)


def _is_one_of(rule: NetworkRule, is_own: Callable[[str], bool]) -> bool:
    """A wider entry does not open an address of the machine itself: the gateway wants one for exactly that address."""
    wanted = ip_network(rule.host, strict=False) if rule.is_address else None
    return wanted is not None and wanted.num_addresses == 1 and is_own(str(wanted.network_address))


def check_variables(names: Iterable[str]) -> None:
    """UsageError where a task wants the cluster's token."""
    wanted = next((name for name in names if name in (MODE, TOKEN, TOKEN_FILE)), "")
    if wanted:
        raise UsageError(f"{wanted} is the cluster's own, and no job gets it", hint="take it out of the policy")


def _is_network(text: str) -> bool:
    try:
        ip_network(text, strict=False)
    except ValueError:
        return False
    return True
