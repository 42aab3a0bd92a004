"""Connections that nobody listens for: the sandbox's own kernel refuses them, and the gateway never hears of them.

Says why each connection that the recorder saw was refused, in the gateway's own words. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import ip_address

from ringfence.egress.addresses import AddressPlan, TargetKind
from ringfence.egress.rules import RuleSet
from ringfence.model.network_list import EVERY_IPV4, EVERY_IPV6
from ringfence.model.network_rule import NetworkRule


def reasons(rules: Iterable[NetworkRule], asked: Iterable[str]) -> dict[tuple[str, int], str]:
    """Return host, port and reason of each. ``asked``: addresses with their ports, as the recorder writes them.

    Sub-domains of a wildcard are left out: only the gateway knows their addresses. So is the sandbox's own loopback,
    unless the list names ``localhost``: that means the host's loopback, but inside, the name leads to the sandbox's
    own.
    """
    rules = tuple(rules)
    plan, judge = AddressPlan.of(rules), RuleSet.of(rules)
    heard = {(address, port) for _, address, port, _ in plan.rows}
    told: dict[tuple[str, int], str] = {}
    for address, port in filter(None, map(_parts, dict.fromkeys(asked))):
        every = EVERY_IPV6 if ":" in address else EVERY_IPV4
        target = plan.target(address, port)
        inside = target.kind is TargetKind.ADDRESS and ip_address(address).is_loopback
        own = inside and not judge.decide("localhost", port).allowed
        if port and not own and not heard & {(address, port), (every, port)} and target.kind in _NAMED:
            decision = judge.decide(target.host, port)
            if not decision.allowed:
                told[target.host, port] = decision.reason
    return told


def datagrams(sent: Iterable[str]) -> dict[tuple[str, int], str]:
    """Return the same for what was sent without a connection. The job sees success: nobody answers a datagram."""
    found = filter(None, map(_parts, dict.fromkeys(sent)))
    return {(host, port): f"{host} port {port} by UDP, which a network list does not carry" for host, port in found}


_NAMED = (TargetKind.NAME, TargetKind.ADDRESS)


def _parts(text: str) -> tuple[str, int] | None:
    """``192.0.2.7:443`` or ``[2001:db8::1]:443`` in its parts; None: a Unix socket, or anything else."""
    host, _, port = text.rpartition(":")
    try:
        address = ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return None
    plain = getattr(address, "ipv4_mapped", None) or address
    return (str(plain), int(port)) if port.isascii() and port.isdigit() else None
