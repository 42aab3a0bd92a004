"""NONE: no isolation at all, for tests and comparisons. Only the deadline and the output are bounded.

Because a policy always asks for limits, this level runs only with ``allow_partial``.
"""

from __future__ import annotations

from ringfence.backends.facts import Lack
from ringfence.backends.process import ProcessBox, enforcement_table
from ringfence.model.limits import IsolationLevel
from ringfence.model.policy import SandboxPolicy

_MECHANISMS = {
    "wall_time": ("deadline", "the whole tree is killed at the deadline"),
    "output": ("pipe reader", "each stream"),
}


class UnsafeBackend:
    """Runs the job as a plain child."""

    level = IsolationLevel.NONE

    def transaction_kind(self) -> str:
        return "snapshot"

    def lacks(self, policy: SandboxPolicy) -> tuple[Lack, ...]:
        return tuple(
            Lack(capability=name, missing="any isolation", fix="use isolation process or strict")
            for name in policy.requested()
            if name not in _MECHANISMS
        )

    def open(self, policy: SandboxPolicy) -> ProcessBox:
        lacking = {lack.capability: lack for lack in self.lacks(policy)}
        return ProcessBox(policy, enforcement_table(policy, _MECHANISMS, lacking), lambda _: [])
