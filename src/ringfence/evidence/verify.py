"""The verifier: the steps of docs/reference/formats.md, section 8, in order; the first failure ends it.

Owns: the table of steps, the result, and what «ok» means. An auditor starts reading here.
Does not: print, choose exit codes (cli), or make bundles (bundle).
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

from ringfence.errors import EvidenceError, VerificationError
from ringfence.evidence import checks, claims
from ringfence.evidence.anchors import AnchorResult, anchored_bytes, check_anchor
from ringfence.evidence.artifactfiles import check_files
from ringfence.evidence.case import OURS, PROCTOR, UNGRADED, Case
from ringfence.evidence.schema import format_time, parse_time
from ringfence.evidence.trust import Moment, Trust, judge_signers
from ringfence.model.record import record

_ORDINARY_DELAY = timedelta(minutes=5)


class State(StrEnum):
    OK = "ok"
    INTACT = "intact, signer unknown"


@record
class Verification:
    """What a verification that found no fault has established."""

    state: State
    format: str
    verdict: dict[str, Any]
    signers: tuple[str, ...]
    # public keys that the trust names; the first one signed the verdict. With any signer: only that one
    unknown_signers: tuple[str, ...]
    # further valid signatures, of keys that anybody could have made
    artifacts: tuple[dict[str, Any], ...]
    violations: tuple[dict[str, Any], ...]
    environment: dict[str, Any] | None
    run: dict[str, Any] | None
    # None for Proctor's format
    inputs: dict[str, Any] | None
    anchors: tuple[AnchorResult, ...]
    notes: tuple[str, ...]


@record
class Step:
    number: int
    word: str
    check: checks.Check
    only: tuple[str, ...] = ()
    # formats; empty: every format
    verdict_alone: bool = False
    # also a step when a verdict.json is verified by itself


def verify_bundle(
    data: bytes,
    *,
    trust: Trust,
    artifacts_folder: str | None = None,
    nonce: str | None = None,
    allow_missing_environment: bool = False,
    now: datetime | None = None,
) -> Verification:
    """Verify a bundle.json; VerificationError.step says where it failed.

    >>> verify_bundle(b"[]", trust=Trust.unsafe_any_signer())
    Traceback (most recent call last):
    ringfence.errors.VerificationError: step 1: json: not a JSON object
    """
    case = Case(
        data=data,
        trust=trust,
        now=now or datetime.now(UTC),
        nonce=nonce,
        artifacts_folder=artifacts_folder,
        allow_missing_environment=allow_missing_environment,
    )
    return _walk(case, STEPS)


def verify_verdict(data: bytes, *, trust: Trust, now: datetime | None = None) -> Verification:
    """Verify a verdict.json by itself: signature and consistency, but nothing that its digests refer to."""
    case = Case(data=data, trust=trust, now=now or datetime.now(UTC), verdict_alone=True)
    return _walk(case, (step for step in STEPS if step.verdict_alone))


def _walk(case: Case, steps: Iterable[Step]) -> Verification:
    for step in steps:
        if step.only and case.format not in step.only:
            continue
        try:
            step.check(case)
        except EvidenceError as error:
            raise VerificationError(step.number, f"{step.word}: {error}", hint=error.hint) from error
    return _result(case)


def _check_anchors(case: Case) -> None:
    for anchor in case.document.get("anchors", []):
        result = check_anchor(anchor, anchored_bytes(case.verdict), case.trust)
        case.anchors.append(result)
        if result.note:
            case.notes.append(f"anchor {result.kind}: {result.note}")


def _check_trust(case: Case) -> None:
    trust = case.trust
    if case.format not in trust.accepted_formats:
        raise EvidenceError(f"the trust file does not accept the format {case.format}")
    known = {anchor.kind for anchor in case.anchors if anchor.known}
    lacking = [kind for kind in trust.required_anchors if kind not in known]
    if lacking:
        raise EvidenceError(f"no known anchor of the required kind {lacking[0]}", hint="; ".join(case.notes))
    judge_signers(trust, _signers(case), _moment(case))


def _moment(case: Case) -> Moment:
    """The time of the bundle: an anchor's if we know one, else the signer's own word, else now."""
    times = [anchor.at for anchor in case.anchors if anchor.at is not None]
    if times:
        return Moment(at=min(times), anchored=True)
    return Moment(at=parse_time(case.run["ended_at"]) if case.run else case.now, anchored=False)


def _signers(case: Case) -> tuple[str, ...]:
    return (
        case.verdict["public_key"],
        *(entry["public_key"] for entry in case.document.get("signatures", [])),
    )


def _known_signers(case: Case) -> tuple[str, ...]:
    primary, *others = _signers(case)
    return (primary, *(key for key in others if case.trust.find(key) is not None))


def _result(case: Case) -> Verification:
    document = case.document
    return Verification(
        state=State.INTACT if case.trust.any_signer else State.OK,
        format=case.format,
        verdict=case.verdict,
        signers=_known_signers(case),
        unknown_signers=tuple(key for key in _signers(case) if key not in _known_signers(case)),
        artifacts=tuple(case.artifacts) if "manifest" in document else (),
        violations=tuple(document.get("violations", ())),
        environment=document.get("environment"),
        run=case.run or None,
        inputs=case.inputs or None,
        anchors=tuple(case.anchors),
        notes=(*case.notes, *_remarks(case)),
    )


def _remarks(case: Case) -> Iterable[str]:
    if case.format == PROCTOR and not case.verdict_alone:
        yield "Proctor's format signs neither sizes, inputs, enforcement nor time"
    if case.format == UNGRADED:
        yield "a run without a grader: nobody decided whether it passed"
    for key in _signers(case):
        if key not in _known_signers(case):
            yield f"also signed by {key}, a key that is not trusted and so proves nothing"
    if not case.run:
        return
    lacking = [
        row["protection"] for row in case.run["enforcement"] if row["requested"] and not row["applied"]
    ]
    if lacking:
        yield f"asked for but not enforced: {', '.join(lacking)}"
    if not case.run["recorder"]["healthy"] or case.run["recorder"]["dropped"]:
        yield f"the recorder was not healthy: {case.run['recorder']['problem']}"
    yield from _remark_on_time(case)


def _remark_on_time(case: Case) -> Iterable[str]:
    moment = _moment(case)
    ended_at = parse_time(case.run["ended_at"])
    if not moment.anchored:
        yield "the times are the signer's own word: no known anchor"
    elif abs(moment.at - ended_at) > _ORDINARY_DELAY:
        yield f"the signer says it ended {format_time(ended_at)}, the anchor is of {format_time(moment.at)}"


STEPS: tuple[Step, ...] = (
    Step(number=1, word="json", check=checks.check_json, verdict_alone=True),
    Step(number=2, word="version", check=checks.check_version, verdict_alone=True),
    Step(number=3, word="missing", check=checks.check_missing, verdict_alone=True),
    Step(number=4, word="unknown", check=checks.check_unknown, verdict_alone=True),
    Step(number=5, word="type", check=checks.check_types, verdict_alone=True),
    Step(number=6, word="signature", check=checks.check_signature, verdict_alone=True),
    Step(number=7, word="signer", check=checks.check_signer, verdict_alone=True),
    Step(number=8, word="chain", check=checks.check_chain),
    Step(number=9, word="count", check=checks.check_count),
    Step(number=10, word="status", check=checks.check_status, verdict_alone=True),
    Step(number=11, word="reward", check=checks.check_reward, verdict_alone=True),
    Step(number=12, word="artifacts", check=checks.check_artifacts),
    Step(number=13, word="environment", check=checks.check_environment),
    Step(number=14, word="contents", check=checks.check_contents, only=OURS),
    Step(number=15, word="run", check=claims.check_run),
    Step(number=16, word="sizes", check=claims.check_sizes, only=OURS),
    Step(number=17, word="inputs", check=claims.check_inputs, only=OURS),
    Step(number=18, word="countersignatures", check=checks.check_countersignatures, only=OURS),
    Step(number=19, word="anchors", check=_check_anchors, only=OURS),
    Step(number=20, word="trust", check=_check_trust, verdict_alone=True),
    Step(number=21, word="files", check=check_files),
)
