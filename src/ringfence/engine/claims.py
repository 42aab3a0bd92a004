"""What a runner of ours says from inside the job about its exception: believed only where a limit is near.

The kernel's numbers say which limits a failing job may have reached (``Outcome.near_limits``). An exception's type and
number say better than any text which of them it was. They are still the job's word, so they can only turn one failure
into another.
"""

from __future__ import annotations

import errno

from ringfence.model.outcome import FIXED_RC, STATUS_OF, Outcome, Status
from ringfence.model.record import replace

_TYPES = {"MemoryError": "memory"}
_NUMBERS = {
    str(errno.ENOMEM): "memory",
    str(errno.EMFILE): "nofile",
    str(errno.EFBIG): "file_size",
    str(errno.ENOSPC): "disk",
}
_ERRNO = "[Errno "


def capability_of(type_name: str, message: str) -> str:
    """The limit that raises such an exception in Python; empty: none does."""
    number = message.removeprefix(_ERRNO).partition("]")[0] if message.startswith(_ERRNO) else ""
    return _TYPES.get(type_name) or _NUMBERS.get(number, "")


def limited(outcome: Outcome, capability: str, said: str) -> Outcome:
    """The outcome with the status of this limit, if the job failed near it; else unchanged. ``said``: the exception."""
    if outcome.status is not Status.FAILED or capability not in outcome.near_limits:
        return outcome
    status = STATUS_OF[capability]
    reason = f"{outcome.reason} near the {capability} limit, and its runner tells of {said[:200]!r}"
    hit = dict.fromkeys((capability, *outcome.limits_hit))
    return replace(outcome, status=status, rc=FIXED_RC.get(status, outcome.rc), reason=reason, limits_hit=tuple(hit))
