"""What happened, as typed data that becomes run.json (docs/reference/formats.md, section 4).

Owns: the field names and units of the run record. Does not: measure anything; the engine's doors fill it in.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from ringfence.evidence.schema import RUN_FORMAT, format_time
from ringfence.model.record import made_by, record


@record
class Phase:
    """One program run in the sandbox: ``agent``, ``grader``, …"""

    name: str
    status: str
    exit_code: int | None = None
    # None: it did not exit
    signal: int | None = None
    # None: no signal ended it
    timed_out: bool
    wall_limit_ms: int | None = None
    # None: no limit
    wall_ms: int
    usage: Mapping[str, int] = made_by(default_factory=dict)


@record
class Protection:
    protection: str
    requested: bool
    applied: bool
    mechanism: str = ""
    detail: str = ""


@record
class RecorderHealth:
    healthy: bool
    mechanism: str
    events_count: int
    events_head: str
    dropped: int = 0
    problem: str = ""


@record
class Host:
    system: str
    kernel: str
    machine: str
    posture: Mapping[str, str] = made_by(default_factory=dict)


@record
class RunRecord:
    task_id: str
    nonce: str
    started_at: datetime
    ended_at: datetime
    phases: tuple[Phase, ...]
    enforcement: tuple[Protection, ...]
    recorder: RecorderHealth
    host: Host

    def document(self, artifact_bytes: Mapping[str, int], embedded: Iterable[str]) -> dict[str, Any]:
        """run.json, given the sizes of all other artifacts and the names of those that are embedded."""
        plain = {
            name: [dict(item.__dict__) for item in getattr(self, name)]
            for name in ("phases", "enforcement")
        }
        return {
            "format": RUN_FORMAT,
            "task_id": self.task_id,
            "nonce": self.nonce,
            "started_at": format_time(self.started_at),
            "ended_at": format_time(self.ended_at),
            "recorder": dict(self.recorder.__dict__),
            "host": dict(self.host.__dict__),
            "artifact_bytes": dict(artifact_bytes),
            "embedded": sorted(embedded, key=lambda name: name.encode("utf-8")),
            **plain,
        }


def fresh_nonce() -> str:
    """For a run to which nobody handed a challenge."""
    return secrets.token_hex(32)
