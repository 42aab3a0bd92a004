"""``Box.network``: who a living box may reach, and how that is changed while it runs. Every change is an event."""

from __future__ import annotations

import time

from ringfence.errors import UsageError
from ringfence.model.network_list import read_rules
from ringfence.model.network_rule import NetworkRule

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ringfence.backends.contract import Egress


class BoxNetwork:
    """The network list of one box."""

    def __init__(self, egress: Egress) -> None:
        self._egress = egress

    @property
    def rules(self) -> tuple[NetworkRule, ...]:
        """The rules in force now."""
        return self._egress.rules

    def allow(self, *entries: str | Mapping[str, object] | NetworkRule) -> None:
        """Let these through too, written as in a policy. Visits that run already may use them at once."""
        added = read_rules(entries)
        self._change(read_rules((*self.rules, *added)), "allow", added)

    def deny(self, *entries: str | Mapping[str, object] | NetworkRule) -> None:
        """Take entries off the list; connections that only they allowed end."""
        taken = read_rules(entries)
        named = {str(rule) for rule in taken}
        absent = named - {str(rule) for rule in self.rules}
        if absent:
            listed = ", ".join(map(str, self.rules)) or "nothing"
            raise UsageError(f"{min(absent)} is not in the network list", hint=f"in it: {listed}")
        self._change(tuple(rule for rule in self.rules if str(rule) not in named), "deny", taken)

    def _change(self, rules: tuple[NetworkRule, ...], operation: str, changed: tuple[NetworkRule, ...]) -> None:
        told = {"decision": "changed", "operation": operation, "rule": ", ".join(map(str, changed)),
                "reason": f"the caller changed the list: {operation}", "time_s": time.time()}  # fmt: skip
        self._egress.change(rules, told)
