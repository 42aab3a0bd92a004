"""Whether what runs for somebody else could reach the cluster: whoever reaches its ports and has its token runs code
everywhere."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from ipaddress import ip_address, ip_network

from ringfence.cluster.authentication import MODE, TOKEN, TOKEN_FILE
from ringfence.errors import UsageError
from ringfence.model.network_rule import NetworkRule

LOOPBACK = ("127.0.0.1", "::1")


def check_route(rules: Iterable[NetworkRule], nodes: Collection[str]) -> None:
    """UsageError where a network list names a node, or the loopback interface that the cluster listens on too."""
    own = [ip_address(address) for address in (*LOOPBACK, *nodes) if _is_address(address)]
    for rule in rules:
        within = ip_network(rule.host, strict=False) if rule.is_address else None
        if within is not None and any(address in within for address in own if address.version == within.version):
            raise UsageError(f"network: {rule} is a node of the cluster", hint="a job must not reach its ports")


def check_variables(names: Iterable[str]) -> None:
    """UsageError where a task wants the cluster's token."""
    wanted = next((name for name in names if name in (MODE, TOKEN, TOKEN_FILE)), "")
    if wanted:
        raise UsageError(f"{wanted} is the cluster's own, and no job gets it", hint="take it out of the policy")


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True
