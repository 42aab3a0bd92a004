"""The results of a suite: a row for each task, read from verified bundles, and sums over all rows.

No worker's word counts. What each task cost is what its bundle states.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from ringfence.evidence.digest import file_digest
from ringfence.evidence.verify import Verification
from ringfence.model.record import field_names, record
from ringfence.proctor.suite.completeness import BUNDLE, verified
from ringfence.proctor.suite.entry import Entry, Result, State, folder_name, nonce_of

FORMAT = "ringfence-suite-results-1"


@record
class Cost:
    """What all phases of a run used together; for memory, the largest peak of one phase."""

    cpu_s: float = 0.0
    wall_s: float = 0.0
    memory_bytes: int = 0
    egress_bytes: int = 0


@record
class Row:
    """One task of a suite."""

    id: str
    kind: str
    folder: str
    """The name of its directory in ``tasks``."""
    state: State
    task_id: str = ""
    passed: bool = False
    status: str = ""
    """``clean`` or ``compromised``; empty: there is no verdict."""
    reward: float | None = None
    score: float = 0.0
    """The reward, or 1 for a pass without one; nothing for a run that is not clean."""
    violations: int = 0
    cost: Cost = Cost()
    started_at: str = ""
    ended_at: str = ""
    phases: tuple[tuple[str, float], ...] = ()
    """The name of each and how long it took, in seconds."""
    bundle_sha256: str = ""
    task_sha256: str = ""
    """What binds the task's own files: the environment's ``spec_sha256``."""
    error: str = ""
    hint: str = ""
    attempts: int = 1
    reused: bool = False
    notes: tuple[str, ...] = ()
    """Where the run of the task differs from what its format says."""
    where: str = ""

    @property
    def has_verdict(self) -> bool:
        return self.state is State.VERDICT

    @property
    def word(self) -> str:
        """How it ended, in one word."""
        if not self.has_verdict:
            return str(self.state)
        return self.status if self.status != "clean" else "pass" if self.passed else "fail"


def row_of(entry: Entry, result: Result, *, suite: str, public_key: str, attempts: int) -> Row:
    """What is known of an entry. Where the state is a verdict, the bundle is verified; EvidenceError, UsageError or
    OSError where it does not hold."""
    common: dict[str, Any] = {
        "id": entry.id, "kind": entry.kind, "folder": folder_name(entry.id), "attempts": attempts,
        "reused": result.reused, "where": result.where, "notes": tuple(result.notes),
    }  # fmt: skip
    if result.state is not State.VERDICT:
        return Row(**common, state=result.state, error=result.error, hint=result.hint)
    proof = verified(result.out, public_key, nonce_of(suite, entry.id))
    digest = file_digest(os.path.join(result.out, BUNDLE)).sha256
    return Row(**common, **_of_verdict(proof), state=State.VERDICT, bundle_sha256=digest)


def _of_verdict(proof: Verification) -> dict[str, Any]:
    verdict, run = proof.verdict, proof.run or {}
    reward = verdict.get("reward")
    earned = float(verdict["pass"]) if reward is None else float(reward)
    return {
        "task_id": verdict["task_id"], "passed": verdict["pass"], "status": verdict["status"], "reward": reward,
        "score": earned if verdict["status"] == "clean" else 0.0, "violations": verdict["violations_count"],
        "cost": cost_of(run.get("phases", ())), "started_at": run.get("started_at", ""),
        "ended_at": run.get("ended_at", ""),
        "phases": tuple((each["name"], each["wall_ms"] / 1000) for each in run.get("phases", ())),
        "task_sha256": (proof.environment or {}).get("spec_sha256", ""),
    }  # fmt: skip


def cost_of(phases: Sequence[Mapping[str, Any]]) -> Cost:
    """Sum up what run.json says."""

    def all_of(name: str) -> list[int]:
        return [each["usage"].get(name, 0) for each in phases]

    return Cost(
        cpu_s=sum(all_of("cpu_ms")) / 1000,
        wall_s=sum(each["wall_ms"] for each in phases) / 1000,
        memory_bytes=max(all_of("peak_memory_bytes"), default=0),
        egress_bytes=sum(all_of("network_bytes")),
    )


def counts_of(verdicts: Sequence[tuple[bool, str]], without_verdict: int) -> dict[str, int]:
    """``verdicts``: whether each passed, and its status."""
    return {
        "tasks": len(verdicts) + without_verdict,
        "verdicts": len(verdicts),
        "passed": sum(passed and status == "clean" for passed, status in verdicts),
        "failed": sum(not passed and status == "clean" for passed, status in verdicts),
        "compromised": sum(status == "compromised" for _, status in verdicts),
        "without_verdict": without_verdict,
    }


def summary_of(rows: Sequence[Row]) -> dict[str, object]:
    """Counts and sums over all."""
    judged = [row for row in rows if row.has_verdict]
    return {
        **counts_of([(bool(row.passed), row.status) for row in judged], len(rows) - len(judged)),
        "mean_score": sum(row.score for row in rows) / len(rows) if rows else 0.0,
        "cpu_s": round(sum(row.cost.cpu_s for row in rows), 3),
        "wall_s": round(sum(row.cost.wall_s for row in rows), 3),
        "peak_memory_bytes": max((row.cost.memory_bytes for row in rows), default=0),
        "egress_bytes": sum(row.cost.egress_bytes for row in rows),
    }


def document(rows: Sequence[Row], *, agent: str, suite: str, public_key: str) -> dict[str, object]:
    """results.json."""
    return {
        "format": FORMAT, "suite": suite, "agent": agent, "public_key": public_key, "summary": summary_of(rows),
        "tasks": [as_dict(row) for row in rows],
    }  # fmt: skip


def as_dict(row: Row) -> dict[str, object]:
    """A row as plain data. A task without a reward has no such key, and one without a verdict has no pass."""
    told = {name: getattr(row, name) for name in field_names(row)}
    told |= {"state": str(row.state), "pass": told.pop("passed"), "phases": [list(each) for each in row.phases]}
    told["cost"] = {name: getattr(row.cost, name) for name in field_names(row.cost)}
    left_out = {"reward"} if row.reward is None else set()
    if not row.has_verdict:
        left_out |= {"pass", "status", "violations", "bundle_sha256", "task_sha256", "started_at", "ended_at"}
    return {name: value for name, value in told.items() if name not in left_out}
