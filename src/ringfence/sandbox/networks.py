"""Which network a STRICT job has: none but its own loopback, a gateway to what the policy lists, or the host's.

With the host's network there is no network namespace, which otherwise cuts off abstract Unix sockets. Then Landlock
closes those, or the filter leaves no Unix socket but connected pairs. With a list every address in the namespace leads
to sockets of the gateway, and the namespace belongs to one sandbox alone.
"""

from __future__ import annotations

from _collections_abc import Mapping

from ringfence.kernel import landlock
from ringfence.model.lack import Lack
from ringfence.model.limits import SyscallProfile
from ringfence.model.memo import lru_cache
from ringfence.model.outcome import Enforcement, Mechanism
from ringfence.model.policy import HOST_NETWORK, NO_NETWORK, SandboxPolicy
from ringfence.model.record import record, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.model.network_rule import NetworkRule
    from ringfence.transport.request import Step

NAMESPACES = ("user", "mount", "pid", "net", "ipc", "uts")
CERTIFICATES = "/ringfence/certificates.pem"
"""The authorities that a sandbox trusts if the gateway inspects its traffic."""
TRUST_VARIABLES = (
    "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "GIT_SSL_CAINFO", "PIP_CERT",
)  # fmt: skip
"""The variables that tell programs where that is."""
_ABSTRACT = "abstract_unix_socket"
_DETAILS = "the host's own: nothing is kept from it, nor from services on the host's loopback; "
_SHOWN_RULES = 4
_NO_IPV6 = Lack(
    capability="network", missing="IPv6, for an address in the list", fix="list names or IPv4 addresses, or load ipv6"
)


def is_hosts(policy: SandboxPolicy) -> bool:
    return policy.network_rule == HOST_NETWORK


def is_empty(policy: SandboxPolicy) -> bool:
    return policy.network_rule == NO_NETWORK


def stays_unused(policy: SandboxPolicy) -> bool:
    """Whether an empty network namespace is the same after a job as before: no socket can be made in it but connected
    pairs, which end with the job's processes, or are looked for before the next one. One job at a time: two at once
    would see each other's pairs in /proc/net/unix, and could lock its file in /proc/self/ns."""
    return policy.syscall_profile is SyscallProfile.TIGHT


def is_listed(policy: SandboxPolicy) -> bool:
    """Whether it reaches what the policy lists, through the gateway."""
    return not isinstance(policy.network_rule, str)


def lacks(policy: SandboxPolicy) -> list[Lack]:
    """In namespaces the gateway enforces a list; an IPv6 address in it needs a kernel with IPv6."""
    if not is_listed(policy):
        return []
    from ringfence.kernel import listening

    by_ipv6 = any(":" in address for address, _, _ in gateway(policy).rows)
    return [_NO_IPV6] if by_ipv6 and not listening.has_ipv6() else []


# ---- the gateway

# With the small buffers of other sandboxes the gateway would take three times as much processor time: each side is
# woken for every few bytes. If there are many connections it keeps their buffers small.
_WIDE_BUFFERS = {"net/ipv4/tcp_rmem": "4096 16384 1048576", "net/ipv4/tcp_wmem": "4096 16384 2097152"}
_ANY_PORT = {"net/ipv4/ip_unprivileged_port_start": "0"}


@record
class GatewayPlan:
    """What in a sandbox leads to the gateway."""

    rows: tuple[tuple[str, int, str], ...]
    """Address, port, and ``tcp`` or ``udp`` of each socket of the gateway inside; ``spare``: one that is not bound."""
    resolver: str
    """The address of the resolver, one of these."""
    inspected: bool = False
    """The gateway terminates TLS for some of them, with certificates of an authority of this sandbox's own."""
    grows: bool = False
    """The list may have more later: there are spare sockets, and the gateway, which is nobody, may bind any port."""


def rules_of(policy: SandboxPolicy) -> tuple[NetworkRule, ...]:
    """Return the list; empty: the policy has none."""
    rule = policy.network_rule
    return () if isinstance(rule, str) else rule


def gateway(policy: SandboxPolicy) -> GatewayPlan:
    """Return what leads to the gateway under a policy with a list."""
    return _gateway(rules_of(policy))


@lru_cache(maxsize=64)
def _gateway(rules: tuple[NetworkRule, ...]) -> GatewayPlan:
    """Asked for several times in each launch."""
    from ringfence.egress.addresses import DNS_ADDRESS, AddressPlan

    rows = tuple(row[1:] for row in AddressPlan.of(rules).rows)
    return GatewayPlan(rows=rows, resolver=DNS_ADDRESS, inspected=any(rule.needs_inspection for rule in rules))


def growing(gateway: GatewayPlan | None) -> GatewayPlan | None:
    """Return it for a sandbox whose list may be changed while it runs."""
    if gateway is None:
        return None
    from ringfence.egress.addresses import SPARES

    return replace(gateway, rows=(*gateway.rows, *(row[1:] for row in SPARES)), grows=True)


def settings(gateway: GatewayPlan | None) -> dict[str, str]:
    """Return (name below /proc/sys, value) of what the sandbox's network has for the gateway."""
    if gateway is None:
        return {}
    return _WIDE_BUFFERS | (_ANY_PORT if gateway.grows else {})


def steps(gateway: GatewayPlan) -> list[Step]:
    """Return how pid 1 leads its network to the gateway."""
    plan: list[Step] = [("listen", list(gateway.rows))]
    return [*plan, ("trust", CERTIFICATES)] if gateway.inspected else plan


def resolver_files(gateway: GatewayPlan) -> tuple[tuple[str, str], ...]:
    """Return (path, text) of the file by which names are looked up."""
    return (("/etc/resolv.conf", f"nameserver {gateway.resolver}\n"),)


def variables(policy: SandboxPolicy) -> dict[str, str]:
    """Return the variables that tell programs whom to trust; empty: they keep their own defaults."""
    return dict.fromkeys(TRUST_VARIABLES, CERTIFICATES) if _is_inspected(policy) else {}


def _is_inspected(policy: SandboxPolicy) -> bool:
    return any(rule.needs_inspection for rule in rules_of(policy))


def by_gateway(enforced: Mapping[str, Enforcement]) -> bool:
    """Return whether the gateway holds the network of a sandbox."""
    return "network" in enforced and Mechanism.GATEWAY in enforced["network"].by


# ---- what holds it


def namespaces(policy: SandboxPolicy, *, with_time: bool) -> tuple[str, ...]:
    """Includes a time namespace if the kernel has it: its file in /proc/self/ns can be locked, and would be shared."""
    names = (name for name in NAMESPACES if name != "net" or not is_hosts(policy))
    return (*names, *(("time",) if with_time else ()))


def scopes_in_box(policy: SandboxPolicy) -> tuple[str, ...]:
    """A network namespace cuts off abstract sockets; within a box CRIU has to reach the processes by one."""
    return tuple(landlock.SCOPES) if is_hosts(policy) else ("signal",)


_abi: list[int] = []


def landlock_abi() -> int:
    """Which Landlock this kernel has; asked once."""
    if not _abi:
        _abi.append(landlock.abi())
    return _abi[0]


def landlock_holds_unix_sockets(abi: int) -> bool:
    """Whether Landlock keeps a job away from sockets that were not made under its own rules."""
    return abi >= landlock.FILE_RIGHTS["resolve_unix"][1]


def landlock_holds_abstract(abi: int) -> bool:
    return abi >= landlock.SCOPES[_ABSTRACT][1]


def enforced(policy: SandboxPolicy, abi: int) -> dict[str, Enforcement]:
    """What the table says of a network that is not empty; empty: the job has none."""
    if is_listed(policy):
        return {"network": _by_gateway(policy)}
    if not is_hosts(policy):
        return {}
    by_landlock = landlock_holds_abstract(abi)
    second = "abstract Unix sockets of the host are closed" if by_landlock else "no Unix sockets but connected pairs"
    mechanism, by = ("Landlock", Mechanism.LANDLOCK) if by_landlock else ("seccomp", Mechanism.SECCOMP)
    entry = Enforcement(
        requested=HOST_NETWORK, applied=True, mechanism=mechanism, details=_DETAILS + second, by=(by,)
    )
    return {"network": entry}


def _by_gateway(policy: SandboxPolicy) -> Enforcement:
    rules = [str(rule) for rule in rules_of(policy)]
    more = f" and {len(rules) - _SHOWN_RULES} more" if len(rules) > _SHOWN_RULES else ""
    shown = ", ".join(rules[:_SHOWN_RULES]) + more
    return Enforcement(
        requested=policy.requested()["network"], applied=True, mechanism="network namespace and gateway",
        details=f"every address leads to the gateway, which lets through: {shown}",
        by=(Mechanism.NETWORK_NAMESPACE, Mechanism.GATEWAY),
    )  # fmt: skip
