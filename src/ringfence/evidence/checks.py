"""Steps 1 to 14 and 18 of docs/reference/formats.md: the bundle taken by itself.

Owns: one function a step; each raises EvidenceError with a plain reason. The numbers are in verify.STEPS.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any

from ringfence.errors import EvidenceError
from ringfence.evidence import chain
from ringfence.evidence.anchors import signed_message
from ringfence.evidence.case import OURS, PROCTOR, RINGFENCE, UNGRADED, Case
from ringfence.evidence.digest import labelled_digest, sha256_hex
from ringfence.evidence.keys import key_id, signature_holds
from ringfence.evidence.schema import (
    ENVIRONMENT_LABELS,
    INPUTS_NAME,
    PROCTOR_BUNDLES,
    RINGFENCE_BUNDLE,
    RUN_NAME,
    VERDICT_ALONE,
)
from ringfence.evidence.shape import Fault, Record, problems
from ringfence.evidence.strictjson import parse

_MAX_PROBLEMS = 10_000  # a document with millions of faults is not read to its end
Check = Callable[[Case], None]

_MAKERS = {
    PROCTOR: re.compile(r"0\.1\.[0-9]{1,9}"),
    RINGFENCE: re.compile(r"ringfence-3/[A-Za-z0-9.+-]{1,64}"),
    UNGRADED: re.compile(r"ringfence-run-1/[A-Za-z0-9.+-]{1,64}"),
}
_BUNDLES: dict[str, Mapping[int, Record]] = {
    PROCTOR: PROCTOR_BUNDLES,
    RINGFENCE: {3: RINGFENCE_BUNDLE},
    UNGRADED: {3: RINGFENCE_BUNDLE},
}


def check_json(case: Case) -> None:
    document = parse(case.data)
    if not isinstance(document, dict):
        raise EvidenceError("not a JSON object")
    case.document = {"verdict": document} if case.verdict_alone else document


def check_version(case: Case) -> None:
    """The maker is signed, so it decides; the unsigned bundle_version only has to agree with it."""
    verdict = case.document.get("verdict")
    maker = verdict.get("proctor_version") if isinstance(verdict, dict) else None
    if not isinstance(maker, str):
        raise EvidenceError("no verdict.proctor_version that says who made this")
    case.format = format_made_by(maker)
    if case.verdict_alone:
        return
    version = case.document.get("bundle_version")
    if type(version) is not int or version not in _BUNDLES[case.format]:
        raise EvidenceError(f"bundle_version {ascii(version)[:20]} is not one that {maker} makes")


def format_made_by(maker: str) -> str:
    found = next((name for name, pattern in _MAKERS.items() if pattern.fullmatch(maker)), "")
    if not found:
        raise EvidenceError(f"made by {maker[:60]!a}, which this verifier does not know")
    return found


def check_missing(case: Case) -> None:
    shape = VERDICT_ALONE if case.verdict_alone else _BUNDLES[case.format][case.document["bundle_version"]]
    for problem in islice(problems(case.document, shape), _MAX_PROBLEMS):
        case.faults.setdefault(problem.fault, problem)
    _raise_fault(case, Fault.MISSING)


def check_unknown(case: Case) -> None:
    _raise_fault(case, Fault.UNKNOWN)


def check_types(case: Case) -> None:
    _raise_fault(case, Fault.TYPE)
    keys = [entry["public_key"] for entry in case.document.get("signatures", [])]
    if case.verdict["public_key"] in keys:
        raise EvidenceError("signatures must not repeat the key of the verdict")


def check_signature(case: Case) -> None:
    case.message = signed_message(case.verdict)
    if not signature_holds(case.verdict["public_key"], case.verdict["signature"], case.message):
        raise EvidenceError("the signature does not fit the verdict: something in it was changed")


def check_signer(case: Case) -> None:
    public_key = case.verdict["public_key"]
    if not case.trust.any_signer and case.trust.find(public_key) is None:
        raise EvidenceError(f"signed by {public_key} ({key_id(public_key)}), which is not a trusted key")


def check_chain(case: Case) -> None:
    summary = chain.check(case.document["violations"])
    if summary.head != case.verdict["violations_head"]:
        raise EvidenceError("the records do not end at the signed head: some were removed, added or changed")


def check_count(case: Case) -> None:
    found, signed = len(case.document["violations"]), case.verdict["violations_count"]
    if found != signed:
        raise EvidenceError(f"{found} records, but the verdict says {signed}")


def check_status(case: Case) -> None:
    """A run without a grader may be compromised without a violation: step 15 then asks for a recorder that failed."""
    status, count = case.verdict["status"], case.verdict["violations_count"]
    unsure = case.format == UNGRADED and status == "compromised"
    if not unsure and (status == "clean") != (count == 0):
        raise EvidenceError(f"status {status} contradicts {count} violations")


def check_reward(case: Case) -> None:
    reward, passed = case.verdict.get("reward"), case.verdict["pass"]
    if case.format == UNGRADED and (passed or reward is not None):
        raise EvidenceError("a run without a grader can neither pass nor have a reward")
    if reward is not None and passed != (reward > 0):
        raise EvidenceError(f"pass {str(passed).lower()} contradicts a reward of {reward}")


def check_artifacts(case: Case) -> None:
    if artifacts_digest(case.artifacts) != case.verdict["artifacts_digest"]:
        raise EvidenceError("the list of artifacts is not the signed one")


def check_environment(case: Case) -> None:
    environment = case.document.get("environment")
    if environment is None:
        _missing_environment(case)
    elif environment_digest(environment) != case.verdict["env_digest"]:
        raise EvidenceError("the environment is not the signed one")
    elif case.format in OURS and environment["proctor_version"] != case.verdict["proctor_version"]:
        raise EvidenceError("environment and verdict name different makers")


def check_contents(case: Case) -> None:
    contents = case.document["contents"]
    digests = {artifact["name"]: artifact["sha256"] for artifact in case.artifacts}
    for name in (RUN_NAME, INPUTS_NAME):
        if name not in contents:
            raise EvidenceError(f"the text of {name} is missing")
    for name, text in contents.items():
        if digests.get(name) != sha256_hex(text.encode("utf-8")):
            raise EvidenceError(f"the text of {name!a} is not the artifact of that name")


def check_countersignatures(case: Case) -> None:
    for entry in case.document.get("signatures", []):
        if not signature_holds(entry["public_key"], entry["signature"], case.message):
            raise EvidenceError(f"the signature of {key_id(entry['public_key'])} does not fit the verdict")


def artifacts_digest(artifacts: Sequence[Mapping[str, Any]]) -> str:
    return labelled_digest(
        (item["name"].encode("utf-8"), item["sha256"].encode("ascii")) for item in artifacts
    )


def environment_digest(environment: Mapping[str, str]) -> str:
    return labelled_digest(
        (label.encode(), environment.get(label, "").encode("utf-8")) for label in ENVIRONMENT_LABELS
    )


def _missing_environment(case: Case) -> None:
    if not case.allow_missing_environment:
        raise EvidenceError("the environment is missing: nobody can tell whether it was taken away")
    case.notes.append("the environment is missing, and was allowed to be")


def _raise_fault(case: Case, fault: Fault) -> None:
    if fault in case.faults:
        raise EvidenceError(str(case.faults[fault]))
