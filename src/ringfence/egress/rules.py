"""``RuleSet``: whether a name or an address may be reached, by which rule, and what to do if it may not.

It compares; it neither resolves nor connects. Questions may come from an attacker: every text is put into its one
spelling first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

from ringfence.errors import PolicyError
from ringfence.model import host_text
from ringfence.model.network_rule import NetworkRule
from ringfence.model.record import record
from ringfence.model.system_text import escape_controls

Address = IPv4Address | IPv6Address

_RANGES = {
    "is unspecified": "0.0.0.0/8 ::/128",
    "is a loopback address": "127.0.0.0/8 ::1/128",
    "is private": "10.0.0.0/8 172.16.0.0/12 192.168.0.0/16 100.64.0.0/10 fc00::/7 fec0::/10",
    "is link-local": "169.254.0.0/16 fe80::/10",
    "is multicast": "224.0.0.0/4 ff00::/8",
    # Whoever reaches one has the credentials of the machine. Some of them lie among public or private addresses.
    "belongs to a metadata service": "169.254.169.254/32 169.254.170.2/32 169.254.170.23/32 100.100.100.200/32 "
    "168.63.129.16/32 192.0.0.192/32 fd00:ec2::254/128 fd00:ec2::23/128 fd20:ce::254/128",
    "is IPv4 in the form of IPv6": "::ffff:0:0/96 ::/96",
    "is an IPv4 address behind NAT64": "64:ff9b::/96 64:ff9b:1::/48",
    "is an IPv4 address behind 6to4": "2002::/16 192.88.99.0/24",
    "is an IPv4 address behind Teredo": "2001::/32",
    "is reserved": "192.0.0.0/24 192.0.2.0/24 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 240.0.0.0/4 2001::/23 "
    "2001:db8::/32 3fff::/20 ::/3 4000::/2 8000::/1",  # global unicast is 2000::/3
}
"""Addresses that belong to no host of the public internet, by what makes them special."""
_LONGEST_SHOWN = 120
_MOST_DECIDED, _LONGEST_DECIDED = 1024, 256


@record
class Decision:
    """What was decided of one connection."""

    allowed: bool
    reason: str
    """For people; a refusal ends with what to do."""
    rule: int | None = None
    """Which rule allows it, by its place in the list."""


@record
class Resolved:
    """The addresses of a name that may be connected to."""

    addresses: tuple[str, ...]
    reason: str
    """Why there is none; empty where there are some."""


@record
class _Block:
    """A rule by address, as numbers."""

    version: int
    first: int
    last: int
    rule: int


@record
class _Special:
    """A range of addresses, and what is said of one in it."""

    version: int
    first: int
    last: int
    what: str

    @property
    def is_one(self) -> bool:
        return self.first == self.last


def _special(text: str, what: str) -> _Special:
    network = ip_network(text)
    first, last = int(network.network_address), int(network.broadcast_address)
    return _Special(version=network.version, first=first, last=last, what=what)


def _width(special: _Special) -> int:
    return special.last - special.first


_ALL = tuple(sorted((_special(text, what) for what, texts in _RANGES.items() for text in texts.split()), key=_width))


def _special_of(address: Address, own: frozenset[Address] = frozenset()) -> _Special | None:
    """Return the narrowest special range of an address; None: it is public. ``own``: addresses of this host."""
    number = int(address)
    found = (each for each in _ALL if each.version == address.version and each.first <= number <= each.last)
    special = next(found, None)
    if address in own and not address.is_loopback and not (special and special.is_one):
        return _Special(version=address.version, first=number, last=number, what="belongs to this host")
    return special


def _own_addresses(texts: frozenset[str] | tuple[str, ...]) -> frozenset[Address]:
    """Return the addresses of this host, which may be told with their interfaces."""
    return frozenset(ip_address(text.partition("%")[0]) for text in texts)


class RuleSet:
    """The rules of one sandbox."""

    def __init__(self, rules: tuple[NetworkRule, ...], own: frozenset[Address]) -> None:
        self.rules = rules
        self._own = own
        self._decided: dict[tuple[str, int], Decision] = {}
        """What was decided before: rules do not change, and programs ask for the same again."""
        self._names: dict[str, list[int]] = {}
        blocks = []
        for number, rule in enumerate(rules):
            if rule.is_address:
                network = ip_network(rule.host)
                first, last = int(network.network_address), int(network.broadcast_address)
                blocks.append(_Block(version=network.version, first=first, last=last, rule=number))
            else:
                self._names.setdefault(rule.host, []).append(number)
        self._blocks = sorted(blocks, key=lambda block: block.last - block.first)  # the narrowest decides

    @classmethod
    def of(cls, rules: Iterable[NetworkRule], own: Iterable[str] = ()) -> RuleSet:
        """``own``: the addresses of this host."""
        return cls(tuple(rules), _own_addresses(tuple(own)))

    def decide(self, host: str, port: int) -> Decision:
        """Decide of a connection to a name or an address, in whatever spelling it is asked for."""
        decided = self._decided.get((host, port))
        if decided is None:
            decided = self._decide(host, port)
            if len(self._decided) < _MOST_DECIDED and len(host) <= _LONGEST_DECIDED:
                self._decided[host, port] = decided
        return decided

    def _decide(self, host: str, port: int) -> Decision:
        if not 1 <= port <= host_text.LAST_PORT:
            return _refused(f"port {port} is not between 1 and {host_text.LAST_PORT}; ask for another port")
        try:
            asked = host_text.asked_host(host)
        except ValueError as wrong:
            return _refused(f"{_shown(host)}: {_shown(str(wrong))}; ask for a listed name or address in its plain form")
        return self._of_address(ip_address(asked), port) if host_text.is_address(asked) else self._of_name(asked, port)

    def lists(self, name: str) -> bool:
        """Whether a name in its one spelling is listed, on any port."""
        return any(True for _ in self._covering(name))

    def check_resolved(self, name: str, port: int, addresses: Iterable[str]) -> Resolved:
        """Return which addresses a listed name may be connected to: public ones, and those that are listed too."""
        usable: list[str] = []
        reasons: list[str] = []
        for text in dict.fromkeys(addresses):
            problem = self._unusable(text, port)
            if problem:
                reasons.append(f"{_shown(name)} resolves to {_shown(text)}, which {problem}")
            else:
                usable.append(text)
        none = "; ".join(reasons[:1]) or f"{_shown(name)} has no address; check the name"
        return Resolved(addresses=tuple(usable), reason="" if usable else none)

    def _of_name(self, name: str, port: int) -> Decision:
        covering = list(self._covering(name))
        for number in covering:
            if self.rules[number].has_port(port):
                return Decision(allowed=True, reason=f"listed as {self.rules[number]}", rule=number)
        return _refused(_not_listed(name, port, [self.rules[number] for number in covering]))

    def _covering(self, name: str) -> Iterator[int]:
        """The rules for a name, the nearest first."""
        for host in (name, *host_text.parents(name)):
            yield from self._names.get(host, ())

    def _of_address(self, address: Address, port: int) -> Decision:
        number = self._listing(address, port)
        if number is not None:
            return Decision(allowed=True, reason=f"listed as {self.rules[number]}", rule=number)
        special = _special_of(address, self._own)
        covering = [self.rules[block.rule] for block in self._blocks if _holds(block, address)]
        if special is None or not any(rule.has_port(port) for rule in covering):
            return _refused(_not_listed(str(address), port, covering, special.what if special else ""))
        what = "exactly this address" if special.is_one else "a range within that one"
        return _refused(f"{address} {special.what}, and only a rule for {what} opens it; {_advice(str(address), port)}")

    def _listing(self, address: Address, port: int) -> int | None:
        """The rule that lists an address; a special one only by a rule that lies within the special range."""
        special = _special_of(address, self._own)
        for block in self._blocks:
            if not _holds(block, address) or not self.rules[block.rule].has_port(port):
                continue
            if special is None or (special.first <= block.first and block.last <= special.last):
                return block.rule
        return None

    def _unusable(self, text: str, port: int) -> str:
        """Why an address that a name leads to can't be used; empty: it can."""
        try:
            address = ip_address(text)
        except ValueError:
            return "is not an address; check the name"
        if "%" in text:
            return "has a zone, as in %eth0; check the name"
        special = _special_of(address, self._own)
        if special is None or self._listing(address, port) is not None:
            return ""
        return f"{special.what}; if you mean that: {_advice(str(address), port)}"


def _holds(block: _Block, address: Address) -> bool:
    return block.version == address.version and block.first <= int(address) <= block.last


def _refused(reason: str) -> Decision:
    return Decision(allowed=False, reason=reason)


def _not_listed(host: str, port: int, covering: list[NetworkRule], what: str = "") -> str:
    """Other ports of it may be listed; ``what``: what is special about it."""
    if covering:
        told = f"{host} is listed as {', '.join(map(str, covering[:3]))}, without port {port}"
    else:
        told = f"{host_text.with_port(host, port)} is not in the policy's network list"
    return f"{told}{f' and {what}' if what else ''}; {_advice(host, port)}"


def _advice(host: str, port: int) -> str:
    """Some addresses can't be listed at all."""
    entry = host_text.with_port(host, port)
    try:
        NetworkRule.of(entry)
    except PolicyError:
        return "no rule can open it; ask for another host"
    return f'add "{entry}" to network'


def _shown(text: str) -> str:
    plain = escape_controls(text)
    return plain if len(plain) <= _LONGEST_SHOWN else f"{plain[:_LONGEST_SHOWN]}…"
