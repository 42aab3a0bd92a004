"""``Lack``: what a host cannot hold of a policy."""

from __future__ import annotations

from ringfence.model.limits import LIMIT_OF
from ringfence.model.record import record

_FIELDS = {"syscalls": "syscall_profile"}


@record
class Lack:
    """One thing that this host cannot enforce for a policy, and the command or change that would help."""

    capability: str
    missing: str
    fix: str
    whole: bool = False
    """Without it the level enforces nothing."""
    by_level: bool = False
    """The level has no means for it on any host."""

    @property
    def field(self) -> str:
        """The field of the policy that asks for it."""
        limit = LIMIT_OF.get(self.capability)
        return limit.field if limit else _FIELDS.get(self.capability, self.capability)

    @property
    def asked(self) -> str:
        """What the user wrote: the field, and of a limit its flag."""
        limit = LIMIT_OF.get(self.capability)
        return f"{self.field} ({limit.flag})" if limit else self.field


NO_EGRESS = Lack(
    capability="network", missing="a network namespace with an egress gateway",
    fix="use isolation strict, or network none or host", by_level=True,
)  # fmt: skip
