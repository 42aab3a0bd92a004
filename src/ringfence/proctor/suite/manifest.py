"""One signature over all bundles of a suite: an in-toto statement in a DSSE envelope, made and checked.

It lists each bundle by place and digest, with its verdict. A bundle that is altered, missing, duplicated, or from
another task or another run of the suite fails by name.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from ringfence import __version__
from ringfence.errors import EvidenceError, SandboxError
from ringfence.evidence.digest import sha256_hex
from ringfence.evidence.dsse import STATEMENT_TYPE, opened, seal, shaped, statement_shape
from ringfence.evidence.keys import SigningKey
from ringfence.evidence.schema import HEX64, TEXT
from ringfence.evidence.shape import Items, Leaf, Record
from ringfence.evidence.strictjson import parse
from ringfence.evidence.trust import Moment, Trust, judge_signers
from ringfence.evidence.verify import Verification, verify_bundle
from ringfence.model.own_files import read_regular
from ringfence.model.record import record
from ringfence.proctor.suite.completeness import BUNDLE, MAX_BYTES
from ringfence.proctor.suite.entry import folder_name, nonce_of
from ringfence.proctor.suite.output import TASKS
from ringfence.proctor.suite.results import Row, counts_of, summary_of

NAME = "manifest.json"
PREDICATE_TYPE = "urn:ringfence:suite:1"
_BOOL = Leaf(accepts=lambda value: isinstance(value, bool), expected="true or false")
_NUMBER = Leaf(
    accepts=lambda value: isinstance(value, int | float) and not isinstance(value, bool), expected="a number"
)
_TASK = Record(
    required={"id": TEXT, "task_id": TEXT, "pass": _BOOL, "status": TEXT, "violations_count": _NUMBER},
    optional={"reward": _NUMBER},
)
_WITHOUT = Record(required={"id": TEXT, "state": TEXT})
_SUMMARY = Record(required=dict.fromkeys(summary_of(()), _NUMBER))
_STATEMENT = statement_shape(PREDICATE_TYPE, Record(required={
    "suite": HEX64, "agent": TEXT, "made_by": TEXT, "tasks": Items(item=_TASK),
    "without_verdict": Items(item=_WITHOUT), "summary": _SUMMARY,
}))  # fmt: skip


@record
class Checked:
    """What a manifest proves, with every bundle that it names."""

    suite: str
    agent: str
    tasks: tuple[Mapping[str, Any], ...]
    without_verdict: tuple[Mapping[str, Any], ...]
    summary: Mapping[str, Any]
    signers: tuple[str, ...]


def made(rows: Sequence[Row], *, agent: str, suite: str, key: SigningKey) -> dict[str, Any]:
    """The signed envelope over the rows of a suite."""
    judged = [row for row in rows if row.has_verdict]
    content = {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": _place(row.id), "digest": {"sha256": row.bundle_sha256}} for row in judged],
        "predicateType": PREDICATE_TYPE,
        "predicate": {
            "suite": suite,
            "agent": agent.encode("utf-8", "replace").decode(),
            "made_by": f"ringfence/{__version__}",
            "tasks": [_told(row) for row in judged],
            "without_verdict": [{"id": row.id, "state": str(row.state)} for row in rows if not row.has_verdict],
            "summary": summary_of(rows),
        },
    }
    return seal(content, key)


def checked(data: bytes, folder: str, trust: Trust) -> Checked:
    """Verify a manifest and every bundle that it names, below the directory; EvidenceError says which does not hold."""
    payload, signers = opened(data, trust)
    judge_signers(trust, signers, Moment(at=datetime.now(UTC), anchored=False))
    content = shaped(parse(payload), _STATEMENT, "manifest")
    predicate = content["predicate"]
    _check_places(content["subject"], predicate["tasks"])
    _check_counts(predicate)
    _check_others(folder, content["subject"])
    for subject, task in zip(content["subject"], predicate["tasks"], strict=True):
        try:
            proof = _checked_bundle(os.path.join(folder, subject["name"]), subject, task, predicate["suite"], trust)
            if proof.signers[0] not in signers:
                raise EvidenceError("is signed with a different key than the manifest")
        except (SandboxError, OSError) as error:
            raise EvidenceError(f"{task['id']!a}: {subject['name']}: {_words(error)}") from error
    return Checked(
        suite=predicate["suite"], agent=predicate["agent"], tasks=tuple(predicate["tasks"]),
        without_verdict=tuple(predicate["without_verdict"]), summary=predicate["summary"], signers=signers,
    )  # fmt: skip


def _place(entry_id: str) -> str:
    return f"{TASKS}/{folder_name(entry_id)}/{BUNDLE}"


def _told(row: Row) -> dict[str, object]:
    said: dict[str, object] = {
        "id": row.id, "task_id": row.task_id, "pass": row.passed, "status": row.status,
        "violations_count": row.violations,
    }  # fmt: skip
    return said if row.reward is None else {**said, "reward": row.reward}


def _check_places(subjects: Sequence[Mapping[str, Any]], tasks: Sequence[Mapping[str, Any]]) -> None:
    """Each bundle once, at the place of its task; nobody can choose a path through a name in the manifest."""
    if [each["name"] for each in subjects] != [_place(task["id"]) for task in tasks]:
        raise EvidenceError("the subjects are not the bundles of the tasks")
    columns = {name: [task[name] for task in tasks] for name in ("id", "task_id")}
    columns["bundle"] = [each["digest"]["sha256"] for each in subjects]
    for what, values in columns.items():
        seen: dict[str, str] = {}
        for value, task in zip(values, tasks, strict=True):
            if value in seen:
                raise EvidenceError(f"{task['id']!a}: the same {what} as {seen[value]!a}")
            seen[value] = task["id"]


def _check_counts(predicate: Mapping[str, Any]) -> None:
    """What is printed of a suite must follow from its tasks, each of which is compared with its bundle."""
    verdicts = [(task["pass"], task["status"]) for task in predicate["tasks"]]
    counted = counts_of(verdicts, len(predicate["without_verdict"]))
    for name, value in counted.items():
        if predicate["summary"][name] != value:
            raise EvidenceError(f"the summary says {name} {predicate['summary'][name]}, and its tasks say {value}")


def _check_others(folder: str, subjects: Sequence[Mapping[str, Any]]) -> None:
    """A bundle beside the signed ones is not part of the suite, but would pass for one."""
    names = {each["name"] for each in subjects}
    for name in sorted(_listed(os.path.join(folder, TASKS))):
        place = f"{TASKS}/{name}/{BUNDLE}"
        if place not in names and os.path.lexists(os.path.join(folder, place)):
            raise EvidenceError(f"{place!a} is not in the manifest")


def _listed(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []  # a bundle that is missing there is named later
    except OSError as error:
        raise EvidenceError(f"{TASKS} can't be listed: {error.strerror}") from error


def _checked_bundle(
    path: str, subject: Mapping[str, Any], task: Mapping[str, Any], suite: str, trust: Trust
) -> Verification:
    data = read_regular(path, MAX_BYTES)[0]
    if sha256_hex(data) != subject["digest"]["sha256"]:
        raise EvidenceError("is not the bundle that was signed")
    proof = verify_bundle(data, trust=trust, nonce=nonce_of(suite, task["id"]))
    said = {name: value for name, value in proof.verdict.items() if name in (*_TASK.required, *_TASK.optional)}
    if {**said, "id": task["id"]} != dict(task):
        raise EvidenceError("does not say what the manifest says")
    return proof


def _words(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)
