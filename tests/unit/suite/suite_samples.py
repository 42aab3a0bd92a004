"""Entries, rows and directories of a suite, made without running anything."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "evidence"))
import evidence_samples

from ringfence.evidence.bundle import Result as Graded
from ringfence.evidence.bundle import encode_bundle
from ringfence.proctor.suite import completeness
from ringfence.proctor.suite.entry import Entry, Order, Result, State, folder_name, nonce_of
from ringfence.proctor.suite.results import Cost, Row

KEY = evidence_samples.OPERATOR
SUITE = "5" * 64
HOSTILE = "<script>alert(1)</script>&\"'\x1b[2J\u202e]]>"
"""What an id would be that tries to get out of every page and table."""


def order(**changes: Any) -> Order:
    return Order(**{"agent": "my-agent", "seed": "7" * 64, "suite": SUITE, **changes})


def entry(name: str = "fizz", **changes: Any) -> Entry:
    return Entry(**{"id": name, "kind": "generic", "path": f"/suite/{name}", **changes})


def row(name: str = "fizz", **changes: Any) -> Row:
    cost = Cost(cpu_s=1.5, wall_s=2.25, memory_bytes=3 << 20, egress_bytes=4096)
    fields: dict[str, Any] = {
        "id": name, "kind": "generic", "folder": folder_name(name), "state": State.VERDICT, "task_id": name,
        "passed": True, "status": "clean", "score": 1.0, "cost": cost, "bundle_sha256": "a" * 64,
        "task_sha256": "b" * 64, "started_at": "2026-01-02T03:04:05Z", "ended_at": "2026-01-02T03:04:15Z",
        "phases": (("agent", 5.0), ("grader", 1.0)),
    }  # fmt: skip
    return Row(**{**fields, **changes})


def without(name: str, state: State = State.FAILED, error: str = "the disk is full") -> Row:
    return Row(id=name, kind="generic", folder=folder_name(name), state=state, error=error)


def complete_folder(tasks: Path, name: str, *, suite: str = SUITE, task_id: str = "", passed: bool = True) -> Result:
    """What a worker leaves of an entry; the bundle is real, what it is of is not."""
    out, nonce = tasks / folder_name(name), nonce_of(suite, name)
    out.mkdir(parents=True, mode=0o700)
    run = evidence_samples.run_record(task_id=task_id or name, nonce=nonce)
    bundle = evidence_samples.ringfence_bundle(
        violations=[], result=Graded(task_id=task_id or name, passed=passed), run=run
    )
    for file, data in evidence_samples.FILES.items():
        (out / file).parent.mkdir(exist_ok=True)
        (out / file).write_bytes(data)
    for file, text in bundle["contents"].items():
        (out / file).write_text(text)
    (out / "bundle.json").write_bytes(encode_bundle(bundle))
    (out / "report.html").write_text("<p>all is well</p>")
    completeness.write_receipt(str(out), nonce, KEY)
    return Result(id=name, state=State.VERDICT, out=str(out))
