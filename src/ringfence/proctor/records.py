"""What a proctored run leaves in its output folder, bound by one signature (docs/reference/formats.md).

A file that can't be written is an error and no verdict: what is not on record did not happen cleanly.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

from ringfence import attest
from ringfence.checkpoint.transaction import Transaction
from ringfence.errors import EvidenceError, UsageError
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
from ringfence.evidence.inputs import Input, data_input, file_input, image_input, inputs_document, tree_input
from ringfence.evidence.keys import SigningKey
from ringfence.evidence.runrecord import Phase, Protection, RecorderHealth, RunRecord, fresh_nonce
from ringfence.evidence.schema import INPUTS_NAME, RUN_NAME
from ringfence.model.events import Event
from ringfence.model.outcome import Outcome
from ringfence.model.record import record
from ringfence.model.ways.walk import real
from ringfence.monitor.usage_log import RecordedRun
from ringfence.proctor import agent_run
from ringfence.proctor.agent_run import Ran
from ringfence.proctor.findings import Finding, counts, violations_of
from ringfence.proctor.grading import Grading
from ringfence.proctor.report.page import ReportData, page
from ringfence.proctor.report.texts import Log
from ringfence.proctor.submission import Submission
from ringfence.proctor.suite import agents
from ringfence.proctor.task import Task

_OF_THE_TASK = (errno.ELOOP, errno.ENOENT, errno.ENOTDIR, errno.ENXIO)
"""What reading says where something is a link or a socket now, or gone."""
EVENTS, DIFF, REPORT = "events.jsonl", "final.diff", "report.html"
GRADING, FINDINGS = "grading.json", "findings.json"
_DIFF_CHARS = 16 << 20
_UNSEEN = {"step": 0, "kind": "masked_read", "pid": 0, "syscall": "unrecorded"}
"""The violation of an agent that kept the recorder from seeing all it did."""


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


def inputs_of(task: Task, agent: str, scaffold: Sequence[str]) -> tuple[Input, ...]:
    """What goes in, hashed before anything has run. UsageError where something of it is no file, folder or link."""
    try:
        return _hashed(task, agent, scaffold)
    except EvidenceError as error:
        cause = error.__cause__
        if isinstance(cause, OSError) and cause.errno not in _OF_THE_TASK:
            raise
        raise UsageError(f"task {task.id}: {error}", hint="a task has files, folders and links") from error


def _hashed(task: Task, agent: str, scaffold: Sequence[str]) -> tuple[Input, ...]:
    grader = task.grader
    found = [
        *([tree_input("task", "workspace", task.workspace)] if task.workspace else []),
        *_image_inputs(task),
        *_settings(task),
        data_input("instruction", "instruction.md", _bytes(task.instruction)),
        data_input("policy", "policy.yaml", task.policy.text),
        data_input("agent", "command", _bytes(agent)),
        data_input("grader", "command", _bytes(" ".join(grader.argv if grader else ()))),
    ]
    found += [tree_input("oracle", "oracle", task.oracle)] if task.oracle else []
    found += [data_input("oracle", "instance.json", grader.instance.text)] if grader and grader.instance else []
    found += [_input("grader", path) for path in ((grader.script, grader.reference) if grader else ()) if path]
    found += [file_input("other", "setup.sh", task.setup)] if task.setup else []
    found += [data_input("task", "notes", _bytes("\n".join(task.notes)))] if task.notes else []
    described = os.path.join(task.folder, "task.yaml")
    found += [file_input("task", "task.yaml", described)] if task.folder and os.path.isfile(described) else []
    found += [file_input("agent", path, path) for path in agent_run.files_of(agent)]
    found += [_input("agent", path, "solution") for path in agents.shown_to(agent, task)]
    return (*found, *(_input("scaffold", real(path)) for path in scaffold))


def _image_inputs(task: Task) -> list[Input]:
    """An image by its digest; where nobody says one, by what its files hold."""
    root = task.root
    if root is None:
        return []
    if root.image_digest:
        return [image_input(root.image_ref or "image", root.image_digest)]
    found = tree_input("image", root.image_ref or "image", root.folder)
    return [image_input(found.name, f"sha256:{found.sha256}")]


def _settings(task: Task) -> list[Input]:
    """What a task says beyond its files: variables, how its image is used, and whom the operator lets it reach."""
    told: dict[str, object] = {"environment": _without_values(task, task.environment)}
    told["grader_environment"] = _without_values(task, task.grader.environment) if task.grader else {}
    if task.solution_environment:
        told["solution_environment"] = _without_values(task, task.solution_environment)
    networks = {name: getattr(task.policy, name) for name in ("setup_network", "network", "grader_network")}
    told |= {name: [rule.plain() for rule in rules] for name, rules in networks.items() if rules}
    if task.root is not None:
        told["root"] = {"environment": dict(task.root.environment), "workdir": task.root.workdir,
                        "user": task.root.user}  # fmt: skip
    return [data_input("task", "settings", _bytes(_plain(told)))] if any(told.values()) else []


def _without_values(task: Task, variables: Mapping[str, str]) -> dict[str, str | None]:
    """Those of the operator by their names alone: a digest of a short secret gives it away to whoever can guess."""
    return {name: None if name in task.private_variables else value for name, value in variables.items()}


def _input(role: str, path: str, name: str = "") -> Input:
    return (tree_input if os.path.isdir(path) else file_input)(role, name or path, path)


def write_diff(path: str, transaction: Transaction) -> None:
    """What the agent changed, as far as it can be told; a diff of more than that ends with a word."""
    try:
        with open(path, "x", encoding="utf-8", errors="surrogateescape") as file:
            for part in transaction.diffs(most=_DIFF_CHARS):
                file.write(part)
    except OSError as error:
        raise EvidenceError(f"cannot write {path!r}: {error.strerror}") from error


def write_all(out: str, about: About, key: SigningKey) -> dict[str, Any]:
    """Every file of the output folder; the signed verdict."""
    outcomes = [each.outcome for each in about.ran]
    events = [event for outcome in outcomes for event in outcome.events]
    count, head = attest.write_events(os.path.join(out, EVENTS), events)
    health = attest.recorder(outcomes, count, head)
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
    # Last: where there is a verdict, all else is there.
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
    bound = ((_bytes(f"{each.role}\n{each.name}"), each.sha256.encode()) for each in about.inputs)
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


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _run_record(about: About, outcomes: Sequence[Outcome], health: RecorderHealth) -> RunRecord:
    return RunRecord(
        task_id=about.task.id,
        nonce=about.nonce or fresh_nonce(),
        started_at=about.started_at,
        ended_at=datetime.now(UTC),
        phases=tuple(_phases(about)),
        enforcement=tuple(_enforcement(about, outcomes)),
        recorder=health,
        host=attest.host(),
    )


def _phases(about: About) -> list[Phase]:
    """The first agent is called ``agent``, whatever its step is called."""
    found = [] if about.setup is None else [attest.phase("setup", about.setup, about.task.policy.wall_time_s)]
    for number, each in enumerate(about.ran):
        name = "agent" if number == 0 else f"agent {number + 1}: {each.step.name}"
        found.append(attest.phase(name, each.outcome, each.policy.wall_time_s))
    if about.grading.outcome is not None and about.task.grader is not None:
        found.append(attest.phase("grader", about.grading.outcome, about.task.grader.wall_time_s))
    return found


def _enforcement(about: About, outcomes: Sequence[Outcome]) -> list[Protection]:
    """Of the agent by their names, of the grader with a word before them."""
    graded = about.grading.outcome
    return [*attest.protections(outcomes[0]), *(attest.protections(graded, "grader: ") if graded else ())]


def _write_logs(out: str, agents: Sequence[Outcome], grader: Outcome | None) -> list[Log]:
    """One of each stream for all agents together, one for the grader."""
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
    told = [text_artifact(name, _plain(document)) for name, document in documents.items()]
    for each in told:
        write_one_of_many(os.path.join(out, each.name), (each.text or "").encode("utf-8"))
    return [*(file_artifact(name, os.path.join(out, name)) for name in names), *told]


def _plain(document: Mapping[str, object]) -> str:
    """Names of files may be no text: what can't be written is replaced."""
    return canonical(_cleaned(document)).decode("utf-8")


def _cleaned(value: object) -> object:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, Mapping):
        return {str(_cleaned(name)): _cleaned(item) for name, item in value.items()}
    return [_cleaned(item) for item in value] if isinstance(value, list | tuple) else value


def _write_bundle(out: str, bundle: dict[str, Any]) -> None:
    lines = b"".join(canonical(each) + b"\n" for each in bundle["violations"])
    files = {"violations.jsonl": lines, "bundle.json": encode_bundle(bundle)}
    files |= {name: bundle["contents"][name].encode("utf-8") for name in (RUN_NAME, INPUTS_NAME)}
    for name, data in files.items():
        write_one_of_many(os.path.join(out, name), data)
