"""Which process a decision of the gateway is about, by the calls that the recorder saw. Pure, and a guess of its own.

The gateway sees connections and no processes; the recorder sees each process ask for one. A decision comes right after
the call, so the last matching call before it is the one. Names of processes are the guest's word.
"""

from __future__ import annotations

from _collections_abc import Mapping
from collections import deque

from ringfence.egress.addresses import DNS_ADDRESS, DNS_PORT, PROXY_ADDRESS, PROXY_PORT, AddressPlan
from ringfence.transport import wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.model.network_rule import NetworkRule
    from ringfence.transport.report import Note

_KEPT = 512
_CALLS = ("connect", "sendto")


class CallsSeen:
    """The last calls of one sandbox that named an address."""

    def __init__(self, rules: tuple[NetworkRule, ...]) -> None:
        self._rules = rules
        self._plan: AddressPlan | None = None
        """Made for the first decision: most sandboxes ask for nothing."""
        self._seen: deque[tuple[float, str, str]] = deque(maxlen=_KEPT)
        """When, where to, and who: (seconds, address and port, text)."""
        self._waiting: list[Note] = []
        """Decisions whose call is not reported yet."""

    def change(self, rules: tuple[NetworkRule, ...]) -> None:
        """Take a new list; addresses are assigned by the same plan as in the gateway."""
        self._plan, self._rules = self._addresses().changed(rules), rules

    def _addresses(self) -> AddressPlan:
        if self._plan is None:
            self._plan = AddressPlan.of(self._rules)
        return self._plan

    def _address_of(self, name: str) -> str | None:
        """Return the address of a name that is listed; the gateway alone assigns those below a wildcard."""
        is_listed = any(rule.host == name for rule in self._rules if not rule.is_address and not rule.is_wildcard)
        return self._addresses().address_of(name) if is_listed else None

    def note(self, attempts: list[Note]) -> None:
        """Keep what the recorder told."""
        for attempt in attempts:
            told_s, path = wire.wall_s(attempt.get("wall_ns")), attempt.get("path")
            if attempt.get("operation") in _CALLS and isinstance(path, str) and told_s is not None:
                who = f"{attempt.get('comm')} (pid {attempt.get('pid')})" if attempt.get("pid") else ""
                self._seen.append((told_s, path, who))

    def named(self, events: list[Note], heard_s: float) -> list[Note]:
        """Return the events, each with its process. One that can't be named waits for the next call of this, once: on a
        busy machine the recorder reports a call after the gateway has reported its decision.

        ``heard_s``: everything that the recorder saw until then has been reported."""
        told = [self._named(event) for event in self._waiting]
        self._waiting = []
        for event in events:
            row, time_s = self._named(event), event.get("time_s")
            if event.get("protocol") and not row["process"] and isinstance(time_s, float) and time_s > heard_s:
                self._waiting.append(event)
            else:
                told.append(row)
        return told

    def _named(self, event: Note) -> Note:
        return {**event, "process": event.get("process") or self.process_of(event)}

    def process_of(self, event: Mapping[str, object]) -> str:
        """Return the process that asked for what was decided; empty: unknown."""
        time_s = event.get("time_s")
        if not isinstance(time_s, float):
            return ""
        before = [(path, who) for seen_s, path, who in reversed(self._seen) if seen_s <= time_s]
        for wanted in self._places(event):
            for path, who in before:
                if path == wanted or (wanted[0] == ":" and path.endswith(wanted)):
                    return who
        return ""

    def _places(self, event: Mapping[str, object]) -> list[str]:
        """Where a call for it may have gone, the likeliest first."""
        if event.get("protocol") == "dns":
            return [f"{DNS_ADDRESS}:{DNS_PORT}"]
        port, proxy = event.get("port"), f"{PROXY_ADDRESS}:{PROXY_PORT}"
        if event.get("protocol") in ("connect", "socks5"):
            return [proxy]
        own = self._address_of(str(event.get("name")))
        return [f"{own}:{port}" if own else f":{port}", f"{event.get('address')}:{port}", proxy]
