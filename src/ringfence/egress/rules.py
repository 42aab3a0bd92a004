"""``RuleSet``: whether a name or an address may be reached, by which rule, and what to do if it may not.

It compares; it neither resolves nor connects. Questions may come from an attacker: every text is put into its one
spelling first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from ipaddress import ip_address, ip_network

from ringfence.egress.special_addresses import Address, own_addresses, special_of
from ringfence.errors import PolicyError
from ringfence.model import host_text
from ringfence.model.network_rule import NetworkRule
from ringfence.model.record import record
from ringfence.model.system_text import escape_controls

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
        return cls(tuple(rules), own_addresses(tuple(own)))

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
                reasons.append(f"{_shown(name)} leads to {_shown(text)}, which {problem}")
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
        special = special_of(address, self._own)
        covering = [self.rules[block.rule] for block in self._blocks if _holds(block, address)]
        if special is None or not any(rule.has_port(port) for rule in covering):
            return _refused(_not_listed(str(address), port, covering, special.what if special else ""))
        what = "exactly this address" if special.is_one else "a range within that one"
        return _refused(f"{address} {special.what}, and only a rule for {what} opens it; {_advice(str(address), port)}")

    def _listing(self, address: Address, port: int) -> int | None:
        """The rule that lists an address; a special one only by a rule that lies within the special range."""
        special = special_of(address, self._own)
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
            return "names an interface; check the name"
        special = special_of(address, self._own)
        if special is None or self._listing(address, port) is not None:
            return ""
        return f"{special.what}; if that is meant: {_advice(str(address), port)}"


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
