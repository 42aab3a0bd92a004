"""What a proctored run leaves in its output directory, bound by one signature (docs/reference/formats.md).

If a file can't be written, that is an error and there is no verdict: what is not on record did not happen cleanly.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

from ringfence.attest.event_log import write_events
from ringfence.attest.health import recorder
from ringfence.attest.statements import host, phase, protections
from ringfence.checkpoint.transaction import Transaction
from ringfence.errors import EvidenceError
from ringfence.evidence.bundle import (
    Artifact,
    Result,
    encode_bundle,
    file_artifact,
    make_bundle,
    settle,
    text_artifact,
    write_beside,
    write_one_of_many,
)
from ringfence.evidence.canonical import canonical
from ringfence.evidence.digest import labelled_digest
from ringfence.evidence.inputs import Input, inputs_document
from ringfence.evidence.keys import SigningKey
from ringfence.evidence.runrecord import Phase, Protection, RecorderHealth, RunRecord, fresh_nonce
from ringfence.evidence.schema import INPUTS_NAME, RUN_NAME
from ringfence.model.events import Event
from ringfence.model.outcome import Outcome
from ringfence.model.record import record
from ringfence.monitor.usage_log import RecordedRun
from ringfence.proctor.agent_run import Ran
from ringfence.proctor.findings import Finding, counts, violations_of
from ringfence.proctor.grading import Grading
from ringfence.proctor.report.page import ReportData, page
from ringfence.proctor.report.texts import Log
from ringfence.proctor.signed.inputs import in_bytes, plain_text
from ringfence.proctor.submission import Submission
from ringfence.proctor.task import Task

EVENTS, DIFF, REPORT = "events.jsonl", "final.diff", "report.html"
GRADING, FINDINGS = "grading.json", "findings.json"
_DIFF_CHARS = 16 << 20
_UNSEEN = {"step": 0, "kind": "masked_read", "pid": 0, "syscall": "unrecorded"}
"""The violation of an agent that kept the recorder from seeing everything it did."""


@record
class About:
    """All that is told of a run."""

    task: Task
    agent: str
    nonce: str
    started_at: datetime
    inputs: tuple[Input, ...]
    setup: Outcome | None
    ran: tuple[Ran, ...]
    submission: Submission
    grading: Grading
    findings: tuple[Finding, ...]
    usage: tuple[RecordedRun, ...]
    attached: Mapping[str, Mapping[str, object]] = MappingProxyType({})
    """Further documents by their names."""


def write_diff(path: str, transaction: Transaction) -> None:
    """Write what the agent changed, as far as it can be shown; a diff that is cut ends with a note."""
    try:
        with open(path, "x", encoding="utf-8", errors="surrogateescape") as file:
            for part in transaction.diffs(most=_DIFF_CHARS):
                file.write(part)
    except OSError as error:
        raise EvidenceError(f"cannot write {path!r}: {error.strerror}") from error


def write_all(out: str, about: About, key: SigningKey) -> dict[str, Any]:
    """Write every file of the output directory; return the signed verdict."""
    outcomes = [each.outcome for each in about.ran]
    events = [event for outcome in outcomes for event in outcome.events]
    count, head = write_events(os.path.join(out, EVENTS), events)
    health = recorder(outcomes, count, head)
    logs = _write_logs(out, outcomes, about.grading.outcome)
    violations = violations_of(about.findings)
    if not health.healthy and not violations:
        violations = [dict(_UNSEEN)]
    document = about.grading.plain() | {"problem": about.submission.problem}
    bundle = make_bundle(
        result=_result(about),
        violations=violations,
        environment=_environment(about),
        run=_run_record(about, outcomes, health),
        inputs=inputs_document(about.inputs, about.task.policy.env_allow),
        artifacts=_artifacts(out, [*(log.name for log in logs), DIFF, EVENTS],
                             {GRADING: document, FINDINGS: dict(counts(about.findings)), **about.attached}),
        key=key,
    )  # fmt: skip
    _write_bundle(out, bundle)
    _write_report(out, about, bundle, events, logs, document)
    settle(out)
    # Written last: where there is a verdict, everything else is there.
    write_beside(os.path.join(out, "verdict.json"), encode_bundle(bundle["verdict"]))
    return bundle["verdict"]  # type: ignore[no-any-return]


def _write_report(
    out: str, about: About, bundle: dict[str, Any], events: list[Event], logs: list[Log], document: dict[str, object]
) -> None:
    with open(os.path.join(out, DIFF), "rb") as file:
        diff = file.read(_DIFF_CHARS)
    data = ReportData(
        bundle=bundle, findings=about.findings, events=events, diff=diff, usage=about.usage, logs=logs,
        reason=about.grading.reason, forged=about.grading.forged, grading=document,
        left_out=[(each.path, each.reason) for each in about.submission.dropped],
    )  # fmt: skip
    write_one_of_many(os.path.join(out, REPORT), page(data).encode("utf-8", "backslashreplace"))


def _result(about: About) -> Result:
    graded = about.grading
    reward = 0.0 if graded.forged else graded.reward
    return Result(task_id=about.task.id, passed=graded.passed and not graded.forged, reward=reward)


def _environment(about: About) -> dict[str, str]:
    policy = next(each.sha256 for each in about.inputs if each.role == "policy")
    bound = ((in_bytes(f"{each.role}\n{each.name}"), each.sha256.encode()) for each in about.inputs)
    return {
        "agent_command": about.agent.encode("utf-8", "replace").decode(),
        **_rootfs(about),
        "proctor_commit": "",
        "policy_sha256": policy,
        "spec_sha256": labelled_digest(bound),
    }


def _rootfs(about: About) -> dict[str, str]:
    if about.task.root is None:
        return {"rootfs_kind": "host"}
    digest = next(each.sha256 for each in about.inputs if each.role == "image")
    ref = about.task.root.image_ref
    return {"rootfs_kind": "image", "image_digest": f"sha256:{digest}", **({"image_ref": ref} if ref else {})}


def _run_record(about: About, outcomes: Sequence[Outcome], health: RecorderHealth) -> RunRecord:
    return RunRecord(
        task_id=about.task.id,
        nonce=about.nonce or fresh_nonce(),
        started_at=about.started_at,
        ended_at=datetime.now(UTC),
        phases=tuple(_phases(about)),
        enforcement=tuple(_enforcement(about, outcomes)),
        recorder=health,
        host=host(),
    )


def _phases(about: About) -> list[Phase]:
    """The first agent is called ``agent``, whatever its step is called."""
    found = [] if about.setup is None else [phase("setup", about.setup, about.task.policy.wall_time_s)]
    for number, each in enumerate(about.ran):
        name = "agent" if number == 0 else f"agent {number + 1}: {each.step.name}"
        found.append(phase(name, each.outcome, each.policy.wall_time_s))
    if about.grading.outcome is not None and about.task.grader is not None:
        found.append(phase("grader", about.grading.outcome, about.task.grader.wall_time_s))
    return found


def _enforcement(about: About, outcomes: Sequence[Outcome]) -> list[Protection]:
    """The agent's by their names, the grader's with a prefix."""
    graded = about.grading.outcome
    return [*protections(outcomes[0]), *(protections(graded, "grader: ") if graded else ())]


def _write_logs(out: str, agents: Sequence[Outcome], grader: Outcome | None) -> list[Log]:
    """Write a log of each stream for all agents together, and one for the grader."""
    found = [
        Log(name=f"{who}.{stream}", data=b"".join(getattr(each, stream) for each in outcomes),
            dropped=sum(getattr(each, f"{stream}_dropped") for each in outcomes))
        for who, outcomes in (("agent", agents), ("grader", [grader] if grader else [])) if outcomes
        for stream in ("stdout", "stderr")
    ]  # fmt: skip
    for log in found:
        write_one_of_many(os.path.join(out, log.name), log.data)
    return found


def _artifacts(out: str, names: Sequence[str], documents: Mapping[str, Mapping[str, object]]) -> list[Artifact]:
    told = [text_artifact(name, plain_text(document)) for name, document in documents.items()]
    for each in told:
        write_one_of_many(os.path.join(out, each.name), (each.text or "").encode("utf-8"))
    return [*(file_artifact(name, os.path.join(out, name)) for name in names), *told]


def _write_bundle(out: str, bundle: dict[str, Any]) -> None:
    lines = b"".join(canonical(each) + b"\n" for each in bundle["violations"])
    files = {"violations.jsonl": lines, "bundle.json": encode_bundle(bundle)}
    files |= {name: bundle["contents"][name].encode("utf-8") for name in (RUN_NAME, INPUTS_NAME)}
    for name, data in files.items():
        write_one_of_many(os.path.join(out, name), data)
