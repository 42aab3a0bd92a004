"""NONE: no isolation at all, for tests and comparisons. Only the deadline and the output are bounded.

Because a policy always asks for limits, this level runs only with ``allow_partial``.
"""

from __future__ import annotations

from ringfence.backends.facts import Traits
from ringfence.backends.process import ProcessBox
from ringfence.backends.tables import PLAIN, entries, lacks_of_none
from ringfence.model.lack import Lack
from ringfence.model.limits import IsolationLevel
from ringfence.model.policy import SandboxPolicy


class UnsafeBackend:
    """Runs the job as a plain child."""

    level = IsolationLevel.NONE
    traits = Traits(isolates=False)

    def transaction_kind(self) -> str:
        return "snapshot"

    def lacks(self, policy: SandboxPolicy) -> tuple[Lack, ...]:
        return lacks_of_none(policy, "use isolation process or strict")

    def open(self, policy: SandboxPolicy) -> ProcessBox:
        table = entries(policy.requested(), PLAIN, self.lacks(policy))
        return ProcessBox(policy, table, limited=False, traits=self.traits)
