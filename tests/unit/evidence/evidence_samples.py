"""Deterministic sample evidence for the tests: fixed keys, times and nonce."""

from __future__ import annotations

import copy
import json
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest import mock

import proctor_rules

from ringfence.evidence import bundle as maker
from ringfence.evidence import chain
from ringfence.evidence.anchors import anchored_bytes, signed_message
from ringfence.evidence.bundle import Artifact, Result, Ungraded, text_artifact
from ringfence.evidence.canonical import canonical
from ringfence.evidence.checks import artifacts_digest, environment_digest
from ringfence.evidence.digest import sha256_hex
from ringfence.evidence.inputs import data_input, inputs_document
from ringfence.evidence.keys import SigningKey
from ringfence.evidence.runrecord import Host, Phase, Protection, RecorderHealth, RunRecord
from ringfence.evidence.translog import TransparencyLog

OPERATOR = SigningKey.from_seed_hex("01" * 32)
BENCHMARK = SigningKey.from_seed_hex("02" * 32)
STRANGER = SigningKey.from_seed_hex("03" * 32)
LOG_KEY = SigningKey.from_seed_hex("04" * 32)
PROCTOR_SEED = bytes.fromhex("05" * 32)
PROCTOR_KEY = SigningKey.from_seed_hex("05" * 32)
NONCE = "ab" * 32
STARTED = datetime(2026, 11, 1, 12, 0, tzinfo=UTC)
ENDED = STARTED + timedelta(minutes=2)
LOGGED = ENDED + timedelta(minutes=1)
POLICY = b"version: 1\n"
UNGRADED_POLICY = b'{"isolation":"strict"}'

VIOLATIONS: list[dict[str, Any]] = [
    {"step": 1, "kind": "masked_read", "path": "/oracle/änswer.txt", "pid": 41, "syscall": "openat"},
    {"step": 2, "kind": "blocked_connect", "host": "192.0.2.7:443", "pid": 42, "syscall": "connect"},
]
EVENTS = b"".join(
    canonical(record) + b"\n"
    for record in chain.link(
        [
            {"kind": "start", "at_ns": "1762000000000000000"},
            {"kind": "violation", "comm": "cat", "argv": ["cat", "oracle/änswer.txt"], "errno": "ENOENT"},
            {"kind": "exit", "exit_code": 0},
        ]
    )
)
FILES = {
    "agent.stdout": b"hello\n",
    "events.jsonl": EVENTS,
    "final.diff": b"--- a\n+++ b\n",
    "logs/grader.stdout": b"1 passed\n",
}


def run_record(**changes: Any) -> RunRecord:
    summary = chain.check([json.loads(line) for line in EVENTS.splitlines()])
    fields: dict[str, Any] = {
        "task_id": "fizz",
        "nonce": NONCE,
        "started_at": STARTED,
        "ended_at": ENDED,
        "phases": (
            Phase(
                name="agent",
                status="OK",
                exit_code=0,
                timed_out=False,
                wall_limit_ms=1_800_000,
                wall_ms=110_000,
                usage={"cpu_ms": 41_000, "peak_memory_bytes": 325_058_560},
            ),
            Phase(name="grader", status="OK", exit_code=0, timed_out=False, wall_ms=4_000),
        ),
        "enforcement": (
            Protection(protection="memory", requested=True, applied=True, mechanism="cgroup v2"),
            Protection(protection="network", requested=True, applied=True, mechanism="network namespace"),
        ),
        "recorder": RecorderHealth(
            healthy=True, mechanism="fuse", events_count=summary.count, events_head=summary.head
        ),
        "host": Host(system="Linux", kernel="6.18", machine="x86_64", posture={"lsm": "landlock,yama"}),
    }
    return RunRecord(**{**fields, **changes})


def sample_inputs() -> dict[str, Any]:
    return inputs_document(
        [
            data_input("task", "fizz", b"task"),
            data_input("oracle", "oracle", b"oracle"),
            data_input("grader", "grade.sh", b"exit 0\n"),
            data_input("instruction", "instruction.md", b"do it\n"),
            data_input("policy", "policy.yaml", POLICY),
            data_input("agent", "my-agent", b"\x7fELF"),
            data_input("scaffold", "AGENTS.md", b"be good\n"),
        ],
        ["PATH", "HOME"],
    )


def sample_environment() -> dict[str, str]:
    return {
        "agent_command": "my-agent --solve",
        "rootfs_kind": "host",
        "proctor_commit": "c0ffee",
        "policy_sha256": sha256_hex(POLICY),
        "spec_sha256": "7" * 64,
    }


def ringfence_bundle(
    *,
    violations: list[dict[str, Any]] | None = None,
    result: Result | None = None,
    run: RunRecord | None = None,
) -> dict[str, Any]:
    artifacts = [
        Artifact(name=name, sha256=sha256_hex(data), bytes=len(data)) for name, data in FILES.items()
    ]
    with mock.patch.object(maker, "MAKER", "ringfence-3/0.1.0"):
        return maker.make_bundle(
            result=result or Result(task_id="fizz", passed=True, reward=0.5),
            violations=VIOLATIONS if violations is None else violations,
            environment=sample_environment(),
            run=run or run_record(),
            inputs=sample_inputs(),
            artifacts=[*artifacts, text_artifact("note.txt", "short\n")],
            key=OPERATOR,
        )


def ungraded_run(**changes: Any) -> RunRecord:
    """Of a run without a grader."""
    phase = Phase(name="run", status="FAILED", exit_code=3, timed_out=False, wall_limit_ms=30_000, wall_ms=1_200)
    return run_record(**{"task_id": "018f-run", "phases": (phase,), **changes})


def ungraded_inputs() -> list[Any]:
    return [data_input("agent", "argv", b"make\0-j2\0"), data_input("policy", "policy.json", UNGRADED_POLICY)]


def ungraded_bundle(*, violations: list[dict[str, Any]] | None = None, run: RunRecord | None = None) -> dict[str, Any]:
    """Of a run without a grader, clean unless it is given violations or another recorder."""
    files = {"events.jsonl": EVENTS, "run.stdout": b"hello\n", "run.stderr": b"\x1b[2J\xff\n"}
    artifacts = [
        Artifact(name=name, sha256=sha256_hex(data), bytes=len(data)) for name, data in files.items()
    ]
    with mock.patch.object(maker, "UNGRADED_MAKER", "ringfence-run-1/0.1.0"):
        return maker.make_bundle(
            result=Ungraded(task_id="018f-run"),
            violations=violations or [],
            environment={
                **sample_environment(),
                "agent_command": "make -j2",
                "proctor_commit": "",
                "policy_sha256": sha256_hex(UNGRADED_POLICY),
            },
            run=run or ungraded_run(),
            inputs=inputs_document(ungraded_inputs(), ["CC"]),
            artifacts=[*artifacts, text_artifact("policy.json", UNGRADED_POLICY.decode())],
            key=OPERATOR,
        )


def full_bundle(folder: str) -> dict[str, Any]:
    """Countersigned by the benchmark and anchored in a log of five entries."""
    bundle = maker.countersign(ringfence_bundle(), BENCHMARK)
    with TransparencyLog(f"{folder}/log.jsonl", LOG_KEY) as log:
        for number in range(4):
            log.append(b"other %d" % number, now=ENDED)
        index = log.append(anchored_bytes(bundle["verdict"]), now=LOGGED)
        return maker.add_anchor(bundle, log.anchor(index, now=LOGGED))


def revoked_later(signer: SigningKey) -> dict[str, Any]:
    """A trust file in which this key is revoked, after the log's entry of ``full_bundle``."""
    document = trust_document()
    for key in document["keys"]:
        key |= {"revoked_at": "2026-12-01T00:00:00Z"} if key["public_key"] == signer.public_hex else {}
    return document


def proctor_bundle(**changes: Any) -> bytes:
    environment = {**sample_environment(), "proctor_version": "0.1.1"}
    fields: dict[str, Any] = {
        "task_id": "fizz",
        "passed": True,
        "records": VIOLATIONS,
        "files": {"stdout.log": b"hello\n", "agent/stderr.log": b""},
        "environment": environment,
        "reward": 0.25,
    }
    return proctor_rules.make(PROCTOR_SEED, **{**fields, **changes})


def trust_document(**changes: Any) -> dict[str, Any]:
    document = {
        "format": "ringfence-trust/1",
        "keys": [
            {"public_key": OPERATOR.public_hex, "name": "ops", "roles": ["operator"]},
            {"public_key": BENCHMARK.public_hex, "name": "bench", "roles": ["benchmark"]},
        ],
        "logs": [{"public_key": LOG_KEY.public_hex, "name": "log"}],
        "required_roles": ["operator", "benchmark"],
        "required_anchors": ["merkle-log"],
    }
    return {**document, **changes}


def encoded(document: object) -> bytes:
    return json.dumps(document, ensure_ascii=False).encode()


def resigned(bundle: dict[str, Any], key: SigningKey = OPERATOR, **verdict: Any) -> dict[str, Any]:
    """The bundle as signed by somebody who wants these members in the verdict: a lie under a good key."""
    body = {
        name: value for name, value in bundle["verdict"].items() if name not in ("public_key", "signature")
    }
    body.update(verdict)
    signed = {**body, "public_key": key.public_hex, "signature": key.sign(signed_message(body))}
    return {**copy.deepcopy(bundle), "verdict": signed}


def redigested(bundle: dict[str, Any]) -> dict[str, Any]:
    """The bundle with digests that fit its parts again, signed again."""
    records = chain.link([{k: v for k, v in r.items() if k != "chain"} for r in bundle["violations"]])
    again = {**bundle, "violations": records}
    return resigned(
        again,
        artifacts_digest=artifacts_digest(bundle["manifest"]["artifacts"]),
        env_digest=environment_digest(bundle["environment"]),
        violations_head=records[-1]["chain"] if records else chain.GENESIS,
    )


def with_text(bundle: dict[str, Any], name: str, text: str) -> dict[str, Any]:
    """The bundle with another text of an artifact, bound and signed as if it had always been so."""
    changed = copy.deepcopy(bundle)
    changed["contents"][name] = text
    data = text.encode()
    for artifact in changed["manifest"]["artifacts"]:
        if artifact["name"] == name:
            artifact.update(sha256=sha256_hex(data), bytes=len(data))
    if name != "run.json":
        run = json.loads(changed["contents"]["run.json"])
        run["artifact_bytes"][name] = len(data)
        return with_text(changed, "run.json", json.dumps(run))
    return redigested(changed)


def with_claims(bundle: dict[str, Any], name: str, **members: Any) -> dict[str, Any]:
    return with_text(bundle, name, json.dumps({**json.loads(bundle["contents"][name]), **members}))
