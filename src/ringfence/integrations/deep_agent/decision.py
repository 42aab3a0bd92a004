"""``Decision``: whether a call may run, how risky it is, and why. The default allows up to a score."""

from __future__ import annotations

from collections.abc import Callable

from ringfence.errors import UsageError
from ringfence.integrations.deep_agent.call import ToolCall
from ringfence.integrations.deep_agent.risk import Assessment
from ringfence.model.record import record


@record
class Decision:
    """What authorisation says of one call."""

    allowed: bool
    risk_score: float
    reason: str = ""


Authorize = Callable[[ToolCall, Assessment], Decision]
Risk = Callable[[ToolCall], "Assessment | float"]


def allow_up_to(max_risk: float) -> Authorize:
    """Allow everything up to a score; refuse what is above, sandbox or not."""

    def authorize(call: ToolCall, assessment: Assessment) -> Decision:
        allowed = assessment.score <= max_risk
        reason = "; ".join(assessment.reasons)
        if not allowed:
            reason = f"risk {assessment.score} is above {max_risk} ({reason})"
        return Decision(allowed=allowed, risk_score=assessment.score, reason=reason)

    return authorize


def checked_score(value: object) -> float:
    """A number from 0 to 1. NaN must not pass: it is neither above nor below any threshold."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise UsageError(f"a risk score must be a number from 0 to 1, not {value!r}")
    return float(value)


def assess(risk: Risk, call: ToolCall) -> Assessment:
    """What a pluggable function says, in one form."""
    said = risk(call)
    if not isinstance(said, Assessment):
        return Assessment(score=checked_score(said))
    checked_score(said.score)
    return said
