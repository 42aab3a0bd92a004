"""``Lack``: what a host cannot hold of a policy."""

from __future__ import annotations

from ringfence.model.record import record


@record
class Lack:
    """One thing that this host cannot enforce for a policy, and the command or change that would help."""

    capability: str
    missing: str
    fix: str
    whole: bool = False
    """Without it the level enforces nothing."""


NO_EGRESS = Lack(
    capability="network", missing="a network namespace with an egress gateway",
    fix="use isolation strict, or network none or host",
)  # fmt: skip
