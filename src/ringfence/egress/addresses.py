"""``AddressPlan``: which addresses and ports a sandbox's sockets listen on, and which name each address stands for.

Both sides derive it from the same rules: the caller for the step that listens, the gateway to know what was asked for.
Inside a sandbox every address leads to these sockets; a name has an address of its own, so programs need not know about
a gateway.
"""

from __future__ import annotations

from _collections_abc import Iterable

from ringfence.model import host_text
from ringfence.model.network_list import EVERY_IPV4, WILDCARD_ADDRESSES, listened
from ringfence.model.record import record
from ringfence.model.str_enum import StrEnum

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket

    from ringfence.model.network_rule import NetworkRule

INET, INET6 = 2, 10  # as the kernel numbers them; ``socket`` is not loaded for it
DNS_ADDRESS, DNS_PORT = "127.64.0.1", 53
PROXY_ADDRESS, PROXY_PORT = "127.64.0.2", 3128
_OWN = "127.64."
_FIRST_NAME = 1 << 8  # 127.64.1.0

_MOST_NUMBERS = 1 << 16

Row = tuple[int, str, int, str]
"""Family, address, port, and ``tcp`` or ``udp``. An IPv6 socket listens for IPv6 alone (IPV6_V6ONLY)."""
SPARES: tuple[Row, ...] = ((INET, "0.0.0.0", 0, "spare"),) * 2 + ((INET6, "::", 0, "spare"),) * 2
"""One unbound pair for each family; further sockets are made from it when a list grows (``spare_sockets``)."""


class TargetKind(StrEnum):
    """What an address inside a sandbox stands for."""

    DNS = "dns"
    PROXY = "proxy"
    NAME = "name"
    SHARED = "shared"
    """For a wildcard: the connection itself has to say the name."""
    ADDRESS = "address"
    NOTHING = "nothing"
    """For nobody, or nobody yet."""


@record
class Target:
    """Which host a connection is meant for: ``host`` is a name, a wildcard or an address."""

    kind: TargetKind
    host: str


class AddressPlan:
    """The addresses of one sandbox. Sub-domains of wildcards get theirs when they are first asked for."""

    def __init__(self, rows: tuple[Row, ...], hosts: dict[str, int], listed: set[str]) -> None:
        self.rows = rows
        self._hosts = hosts
        """Name or wildcard, and the first address that is its own, as a number within 127.64.0.0/16."""
        self._at: dict[str, str] = {}
        self._address: dict[str, str] = {}
        self._free: dict[str, list[str]] = {}
        self._shared: dict[str, str] = {}
        for host in (host for host in hosts if host in listed):
            *own, last = _own(host, hosts)
            self._at[last] = host
            if host_text.is_wildcard(host):
                self._free[host], self._shared[host] = own[::-1], last
            else:
                self._address[host] = last

    @classmethod
    def of(cls, rules: Iterable[NetworkRule]) -> AddressPlan:
        """Return the same plan for the same rules, wherever it is made."""
        rules = tuple(rules)
        hosts = _numbered(rules, {})
        return cls(_rows(rules, hosts), hosts, set(hosts))

    def changed(self, rules: Iterable[NetworkRule]) -> AddressPlan:
        """Return the plan for other rules: addresses stay what they are, and names that are gone lose theirs until they
        come back. New ones have addresses that nobody had before: programs remember what they were told."""
        rules = tuple(rules)
        hosts = _numbered(rules, self._hosts)
        plan = AddressPlan(_rows(rules, hosts), hosts, {rule.host for rule in rules})
        for name, address in self._address.items():
            pattern = next((host for host in host_text.parents(name) if address in plan._free.get(host, ())), None)
            if name not in self._hosts and pattern is not None:
                plan._free[pattern].remove(address)
                plan._give(name, address)
        return plan

    def address_of(self, name: str) -> str | None:
        """Return the address of a name in its one spelling; None: it has none. A new sub-domain of a wildcard gets the
        next one; when none is left, it shares the last."""
        if name in self._address:
            return self._address[name]
        host = next((host for host in host_text.parents(name) if host in self._shared), None)
        if host is None:
            return None
        return self._give(name, self._free[host].pop()) if self._free[host] else self._shared[host]

    def target(self, address: str, port: int) -> Target:
        """Return which host is meant by a connection to an address in its one spelling."""
        if (address, port) == (DNS_ADDRESS, DNS_PORT):
            return Target(kind=TargetKind.DNS, host=address)
        if (address, port) == (PROXY_ADDRESS, PROXY_PORT):
            return Target(kind=TargetKind.PROXY, host=address)
        host = self._at.get(address)
        if host is not None:
            return Target(kind=TargetKind.SHARED if host_text.is_wildcard(host) else TargetKind.NAME, host=host)
        return Target(kind=TargetKind.NOTHING if address.startswith(_OWN) else TargetKind.ADDRESS, host=address)

    def _give(self, name: str, address: str) -> str:
        self._address[name] = address
        self._at[address] = name
        return address


def _numbered(rules: tuple[NetworkRule, ...], known: dict[str, int]) -> dict[str, int]:
    """The names and wildcards that are known, and those of the rules, each with its first address."""
    hosts = dict(known)
    number = max((first + _width(host) for host, first in known.items()), default=_FIRST_NAME)
    for rule in rules:
        if not rule.is_address and rule.host not in hosts:
            hosts[rule.host] = number
            number += _width(rule.host)
    if number > _MOST_NUMBERS:
        raise ValueError("this sandbox has used up its addresses for names; open a new one")
    return hosts


def _width(host: str) -> int:
    return WILDCARD_ADDRESSES if host_text.is_wildcard(host) else 1


def _rows(rules: tuple[NetworkRule, ...], hosts: dict[str, int]) -> tuple[Row, ...]:
    ports = listened(rules)
    everywhere = dict(ports).get(EVERY_IPV4, ())
    rows: list[Row] = [(INET, DNS_ADDRESS, DNS_PORT, "udp")]
    ours = ((DNS_ADDRESS, DNS_PORT), (PROXY_ADDRESS, PROXY_PORT))
    rows += [(INET, address, port, "tcp") for address, port in ours if port not in everywhere]
    for host, own in ports:
        family = INET6 if ":" in host else INET
        rows += [(family, address, port, "tcp") for address in _own(host, hosts) for port in own]
    return tuple(rows)


def _own(host: str, hosts: dict[str, int]) -> list[str]:
    """The addresses that are listened on for a host."""
    if host not in hosts:
        return [host]
    return [_text(hosts[host] + each) for each in range(_width(host))]


def _text(number: int) -> str:
    return f"{_OWN}{number >> 8}.{number & 255}"


def asked_address(client: socket.socket) -> tuple[str, int]:
    """Return which address and port an accepted client asked for, in its one spelling."""
    host, port = client.getsockname()[:2]
    return host.removeprefix("::ffff:") if "." in host else host, port
