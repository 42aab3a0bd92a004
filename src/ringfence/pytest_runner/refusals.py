"""Limits that refused a test something: pytest reports the kind of exception, here it becomes a status.

The report is untrusted, so it only says *which* active limit made a run fail that failed anyway. It never makes a
failure a success.
"""

from __future__ import annotations

from collections.abc import Iterable

from ringfence.model.outcome import FIXED_RC, PARTIAL_ENFORCEMENT, Outcome, Status
from ringfence.model.record import record, replace

KILLED_RC = 137


@record
class _Limit:
    capability: str
    status: Status
    rc: int | None = None
    """Absent: the status' own, or else pytest's."""


# By what the reporter tells: the type of an exception, or the name of its errno. Where several were told, the first
# of this table decides, so that two runs end the same.
_REFUSALS = {
    "MemoryError": _Limit(capability="memory", status=Status.MEM_LIMIT),
    "ENOMEM": _Limit(capability="memory", status=Status.MEM_LIMIT),
    # As where the watchdog sees it first and kills.
    "EAGAIN": _Limit(capability="pids", status=Status.PIDS_LIMIT, rc=KILLED_RC),
    "ENOSPC": _Limit(capability="disk", status=Status.DISK_LIMIT),
    "EDQUOT": _Limit(capability="disk", status=Status.DISK_LIMIT),
    "EFBIG": _Limit(capability="file_size", status=Status.FILE_SIZE_LIMIT),
    "EMFILE": _Limit(capability="nofile", status=Status.NOFILE_LIMIT),
}
NAMES = frozenset(_REFUSALS)


def with_refusals(outcome: Outcome, told: Iterable[str], deciding: Iterable[str]) -> Outcome:
    """The outcome with the limits that were told and are in force. ``deciding`` are those that made a test fail."""
    limits = [limit for name, limit in _REFUSALS.items() if name in set(told) and _in_force(outcome, limit)]
    if not limits:
        return outcome
    hit = tuple(dict.fromkeys((*outcome.limits_hit, *(limit.capability for limit in limits))))
    outcome = replace(outcome, limits_hit=hit)
    first = next((name for name, limit in _REFUSALS.items() if name in set(deciding) and limit in limits), "")
    return _refused(outcome, first) if first and outcome.status is Status.FAILED else outcome


def _in_force(outcome: Outcome, limit: _Limit) -> bool:
    entry = outcome.enforced.get(limit.capability)
    return entry is not None and entry.applied


def _refused(outcome: Outcome, name: str) -> Outcome:
    limit = _REFUSALS[name]
    rc = limit.rc or FIXED_RC.get(limit.status, outcome.rc)
    reason = f"exit code {outcome.rc} after the {limit.capability} limit refused a test something ({name}, says pytest)"
    if outcome.partial:
        reason = f"{PARTIAL_ENFORCEMENT}: {reason}"
    return replace(outcome, status=limit.status, rc=rc, reason=reason)
