"""Making a bundle: verdict, records, artifacts and claims under one signature (docs/reference/formats.md, section 3).

Owns: putting the parts together. A bundle that its own verifier would refuse is never handed out.
Does not: run or measure anything, or look for keys.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from ringfence import __version__
from ringfence.errors import EvidenceError
from ringfence.evidence import chain
from ringfence.evidence.anchors import signed_message
from ringfence.evidence.canonical import canonical
from ringfence.evidence.checks import artifacts_digest, environment_digest
from ringfence.evidence.digest import file_digest, sha256_hex
from ringfence.evidence.keys import SigningKey
from ringfence.evidence.runrecord import RunRecord
from ringfence.evidence.schema import INPUTS_NAME, RUN_NAME
from ringfence.evidence.trust import Trust
from ringfence.evidence.verify import verify_bundle
from ringfence.model.own_files import FLAGS, write_whole
from ringfence.model.record import record

MAKER = f"ringfence-3/{__version__}"
UNGRADED_MAKER = f"ringfence-run-1/{__version__}"


@record
class Artifact:
    name: str
    sha256: str
    bytes: int
    text: str | None = None
    # None: hash only, the content is not embedded


@record
class Result:
    """What the grader decided."""

    task_id: str
    passed: bool
    reward: float | None = None
    # None: the task has no reward


@record
class Ungraded:
    """A run that nobody graded: it has no pass and no reward, and no bundle of it can claim one."""

    task_id: str

    @property
    def passed(self) -> bool:
        return False

    @property
    def reward(self) -> None:
        return None


def file_artifact(name: str, path: str) -> Artifact:
    found = file_digest(path)
    return Artifact(name=name, sha256=found.sha256, bytes=found.size_bytes)


def text_artifact(name: str, text: str) -> Artifact:
    """An artifact whose text goes into the bundle; keep it short."""
    data = text.encode("utf-8")
    return Artifact(name=name, sha256=sha256_hex(data), bytes=len(data), text=text)


def make_bundle(
    *,
    result: Result | Ungraded,
    violations: Sequence[Mapping[str, object]],
    environment: Mapping[str, str],
    run: RunRecord,
    inputs: Mapping[str, Any],
    artifacts: Sequence[Artifact],
    key: SigningKey,
) -> dict[str, Any]:
    """A signed bundle of format 3, or of a run without a grader; ``proctor_version`` and the records' ``chain`` are
    filled in here."""
    made_by = UNGRADED_MAKER if isinstance(result, Ungraded) else MAKER
    everything = _with_claims(run, inputs, artifacts)
    manifest = [{"name": item.name, "sha256": item.sha256, "bytes": item.bytes} for item in everything]
    made_in = {**environment, "proctor_version": made_by}
    records = chain.link(violations)
    sure = run.recorder.healthy and run.recorder.dropped == 0
    clean = not records and (sure or not isinstance(result, Ungraded))
    body = _body(result, records, made_in, artifacts_digest(manifest), clean=clean)
    bundle = {
        "bundle_version": 3,
        "verdict": _sign(body, key),
        "violations": records,
        "manifest": {"artifacts": manifest},
        "environment": made_in,
        "contents": {item.name: item.text for item in everything if item.text is not None},
    }
    verify_bundle(encode_bundle(bundle), trust=Trust.pinned(key.public_hex))
    return bundle


def countersign(bundle: Mapping[str, Any], key: SigningKey) -> dict[str, Any]:
    """The same bundle with one more signer of the same verdict."""
    entry = {"public_key": key.public_hex, "signature": key.sign(signed_message(bundle["verdict"]))}
    signatures = sorted([*bundle.get("signatures", []), entry], key=lambda item: str(item["public_key"]))
    return _checked({**bundle, "signatures": signatures})


def add_anchor(bundle: Mapping[str, Any], anchor: Mapping[str, Any]) -> dict[str, Any]:
    """The same bundle with one more anchor (translog.TransparencyLog.anchor, timestamp.stamp)."""
    return _checked({**bundle, "anchors": [*bundle.get("anchors", []), dict(anchor)]})


def encode_bundle(bundle: Mapping[str, Any]) -> bytes:
    try:
        return json.dumps(bundle, indent=1, ensure_ascii=False, allow_nan=False).encode("utf-8") + b"\n"
    except (ValueError, TypeError) as error:
        raise EvidenceError(f"this cannot be written as JSON: {error}") from error


def write_beside(path: str, data: bytes) -> None:
    """Write a file under a temporary name in its directory, then rename: nobody ever sees half of it."""
    _write(path, data, sync=True)


def write_one_of_many(path: str, data: bytes) -> None:
    """The same, but it is durable only after ``settle``: waiting for each of many files costs much more."""
    _write(path, data, sync=False)


def settle(folder: str) -> None:
    """Wait until all files of a directory are on disk. One sync for all: they share what the file system has to
    write."""
    problems: list[EvidenceError] = []
    names = [os.path.join(folder, name) for name in os.listdir(folder)]
    waiting = [threading.Thread(target=_wait_for, args=(path, problems)) for path in names]
    for each in waiting:
        each.start()
    for each in waiting:
        each.join()
    if problems:
        raise problems[0]


def _wait_for(path: str, problems: list[EvidenceError]) -> None:
    try:
        file = os.open(path, os.O_RDONLY | FLAGS)
        try:
            os.fsync(file)
        finally:
            os.close(file)
    except OSError as error:
        problems.append(EvidenceError(f"cannot write {path!r}: {error.strerror}"))


def _write(path: str, data: bytes, *, sync: bool) -> None:
    try:
        write_whole(path, data, mode=0o644, sync=sync)  # to be shown to others
    except OSError as error:
        raise EvidenceError(f"cannot write {path!r}: {error.strerror}") from error


def _with_claims(run: RunRecord, inputs: Mapping[str, Any], artifacts: Sequence[Artifact]) -> list[Artifact]:
    """The artifacts with inputs.json, and run.json last: it states the sizes of all the others."""
    others = [*artifacts, text_artifact(INPUTS_NAME, canonical(dict(inputs)).decode("utf-8"))]
    sizes = {item.name: item.bytes for item in others}
    embedded = [item.name for item in others if item.text is not None]
    claims = text_artifact(RUN_NAME, canonical(run.document(sizes, embedded)).decode("utf-8"))
    return sorted([*others, claims], key=lambda item: item.name.encode("utf-8"))


def _body(
    result: Result | Ungraded,
    records: Sequence[Mapping[str, object]],
    made_in: Mapping[str, str],
    digest_of_artifacts: str,
    *,
    clean: bool,
) -> dict[str, Any]:
    body: dict[str, Any] = {
        "task_id": result.task_id,
        "pass": result.passed,
        "status": "clean" if clean else "compromised",
        "violations_head": records[-1]["chain"] if records else chain.GENESIS,
        "violations_count": len(records),
        "env_digest": environment_digest(made_in),
        "artifacts_digest": digest_of_artifacts,
        "proctor_version": made_in["proctor_version"],
    }
    return body if result.reward is None else {**body, "reward": result.reward}


def _sign(body: dict[str, Any], key: SigningKey) -> dict[str, Any]:
    return {**body, "public_key": key.public_hex, "signature": key.sign(signed_message(body))}


def _checked(bundle: dict[str, Any]) -> dict[str, Any]:
    verify_bundle(encode_bundle(bundle), trust=Trust.unsafe_any_signer())
    return bundle
