"""Outcomes as the engine makes them, for the tests of this directory."""

from __future__ import annotations

from typing import Any

from ringfence.evidence.keys import SigningKey
from ringfence.evidence.trust import Trust
from ringfence.evidence.verify import Verification, verify_bundle
from ringfence.model.events import Event, EventKind
from ringfence.model.outcome import Enforcement, Mechanism, Outcome, Status

KEY = SigningKey.from_seed_hex("0a" * 32)
RUN_ID = "019a0000deadbeef"
START_S = 1_794_000_000.25
SURE = {
    "total": 0, "kept": 0, "summarised": 0, "uncategorised": 0, "unnamed": 0, "lost": 0, "late": 0, "unwritten": 0,
    "forbidden": "", "problems": [], "caveat": "", "complete": True, "totals": {}, "summary": [],
}  # fmt: skip
HELD = {
    "memory": Enforcement(requested=1 << 29, applied=True, mechanism="cgroup v2", by=(Mechanism.CGROUP,)),
    "network": Enforcement(requested="none", applied=True, mechanism="network namespace",
                           by=(Mechanism.NETWORK_NAMESPACE,)),
    "hidden_paths": Enforcement(requested=("/oracle",), applied=True, mechanism="mount namespace", details="absent",
                                by=(Mechanism.MOUNT_NAMESPACE,)),
}  # fmt: skip


def event(kind: EventKind, after_s: float = 0.0, **details: object) -> Event:
    return Event(kind=kind, run_id=RUN_ID, time_s=START_S + after_s, details=details)


def attempt(**changes: Any) -> Event:
    """What the recorder tells of one attempt on a hidden path."""
    details = {
        "aim": "hidden", "time_ns": "17", "wall_ns": "1794000000500000000", "pid": 7, "uid": 1000, "start_ticks": "3",
        "comm": "cat", "argv": ["cat", "/oracle/answer"], "operation": "lookup", "syscall": "openat", "writes": False,
        "asked": "/oracle/answer", "path": "/oracle/answer", "errno": 2,
    }  # fmt: skip
    return event(EventKind.VIOLATION, 0.25, **(details | changes))


def decided(**changes: Any) -> Event:
    """What the gateway tells of one decision."""
    details = {
        "decision": "refused", "protocol": "tls", "name": "evil.example", "address": "", "port": 443, "rule": "",
        "reason": "not in the list", "bytes_out": 0, "bytes_in": 0, "duration_ms": 1, "process": "curl (pid 9)",
    }  # fmt: skip
    return event(EventKind.EGRESS, 0.5, **(details | changes))


def outcome(*events: Event, **changes: Any) -> Outcome:
    """A run that ended well, with these events between its first and its last."""
    told = sum("wall_ns" in each.details for each in events)
    fields: dict[str, Any] = {
        "status": Status.OK, "rc": 0, "reason": "exit code 0", "stdout": b"hello\n", "argv": ("make", "-j2"),
        "run_id": RUN_ID, "duration_ms": 1200, "enforced": HELD, "recorder": SURE | {"kept": told, "total": told},
        "events": (event(EventKind.START, argv=["make", "-j2"]), *events,
                   event(EventKind.EXIT, 1.0, status="OK", rc=0)),
    }  # fmt: skip
    return Outcome(**(fields | changes))


def verified(bundle: dict[str, object], **options: Any) -> Verification:
    from ringfence.evidence.bundle import encode_bundle

    return verify_bundle(encode_bundle(bundle), trust=Trust.pinned(KEY.public_hex), **options)
