"""The bundle's statement in the ecosystem's format: in-toto Statement v1 in a DSSE envelope.

Owns: the envelope, its signatures, and that a statement's digests agree with the verdict inside it.
Does not: replace the bundle: violations and claims stay there (docs/reference/formats.md, section 9).
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, cast

from ringfence.errors import EvidenceError
from ringfence.evidence.canonical import canonical
from ringfence.evidence.checks import artifacts_digest, environment_digest, format_made_by
from ringfence.evidence.keys import SigningKey, signature_holds
from ringfence.evidence.schema import BASE64, ENVIRONMENT, HEX64, TEXT, UNSIGNED_MEMBERS, VERDICT, few
from ringfence.evidence.shape import Items, Leaf, Record, problems
from ringfence.evidence.strictjson import parse
from ringfence.evidence.trust import Moment, Trust, judge_signers

PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "urn:ringfence:verdict:1"


def exactly(text: str) -> Leaf:
    return Leaf(accepts=lambda value: value == text, expected=repr(text))


SUBJECT = Record(required={"name": TEXT, "digest": Record(required={"sha256": HEX64})})


def statement_shape(predicate_type: str, predicate: Record) -> Record:
    """Return the shape of a statement over files, with this predicate."""
    return Record(required={
        "_type": exactly(STATEMENT_TYPE), "subject": Items(item=SUBJECT), "predicateType": exactly(predicate_type),
        "predicate": predicate,
    })  # fmt: skip
_SIGNED_BODY = Record(
    required={name: shape for name, shape in VERDICT.required.items() if name not in UNSIGNED_MEMBERS},
    optional=VERDICT.optional,
)
_STATEMENT = Record(
    required={
        "_type": exactly(STATEMENT_TYPE),
        "subject": Items(item=SUBJECT),
        "predicateType": exactly(PREDICATE_TYPE),
        "predicate": Record(required={"verdict": _SIGNED_BODY, "environment": ENVIRONMENT}),
    }
)
_SIGNATURE = Record(required={"sig": BASE64}, optional={"keyid": TEXT})
_ENVELOPE = Record(
    required={
        "payload": BASE64,
        "payloadType": exactly(PAYLOAD_TYPE),
        "signatures": Items(item=_SIGNATURE, rule=few),
    }
)


def statement(bundle: Mapping[str, Any]) -> dict[str, Any]:
    """The statement of a bundle: artifacts as subjects, signed verdict and environment as predicate."""
    artifacts = bundle["manifest"]["artifacts"]
    verdict = {name: value for name, value in bundle["verdict"].items() if name not in UNSIGNED_MEMBERS}
    return {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": item["name"], "digest": {"sha256": item["sha256"]}} for item in artifacts],
        "predicateType": PREDICATE_TYPE,
        "predicate": {"verdict": verdict, "environment": dict(bundle["environment"])},
    }


def seal(content: Mapping[str, Any], *keys: SigningKey) -> dict[str, Any]:
    """Sign a statement into a DSSE envelope, once with each key."""
    payload = canonical(dict(content))
    message = pre_authentication_encoding(PAYLOAD_TYPE, payload)
    return {
        "payload": base64.b64encode(payload).decode("ascii"),
        "payloadType": PAYLOAD_TYPE,
        "signatures": [
            {"keyid": key.key_id, "sig": base64.b64encode(bytes.fromhex(key.sign(message))).decode("ascii")}
            for key in keys
        ],
    }


def unseal(
    data: bytes, trust: Trust, *, now: datetime | None = None
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The statement of an envelope and the trusted keys that signed it; EvidenceError when none did.

    All that the trust file demands of a bundle is demanded here. An envelope has no time of its own: keys are judged as
    of now, and a required anchor is always missing.
    """
    payload, signers = opened(data, trust)
    content = shaped(parse(payload), _STATEMENT, "statement")
    _require_agreement(content)
    _require_trusted(content, signers, trust, now or datetime.now(UTC))
    return content, signers


def opened(data: bytes, trust: Trust) -> tuple[bytes, tuple[str, ...]]:
    """The payload of an envelope, which may be any statement, and the trusted keys that signed it; EvidenceError when
    none did. What it says is for the caller to check."""
    envelope = shaped(parse(data), _ENVELOPE, "envelope")
    payload = _decode_base64(envelope["payload"])
    message = pre_authentication_encoding(PAYLOAD_TYPE, payload)
    signatures = [_decode_base64(entry["sig"]).hex() for entry in envelope["signatures"]]
    signers = tuple(
        key.public_key
        for key in trust.keys
        if any(signature_holds(key.public_key, sig, message) for sig in signatures)
    )
    if not signers:
        raise EvidenceError("no trusted key has signed this envelope")
    return payload, signers


def pre_authentication_encoding(payload_type: str, payload: bytes) -> bytes:
    """DSSE's PAE: type and payload with their lengths, so that no other message reads the same."""
    kind = payload_type.encode("utf-8")
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def _require_agreement(content: Mapping[str, Any]) -> None:
    predicate = content["predicate"]
    subjects = [{"name": item["name"], "sha256": item["digest"]["sha256"]} for item in content["subject"]]
    if artifacts_digest(subjects) != predicate["verdict"]["artifacts_digest"]:
        raise EvidenceError("the subjects are not the artifacts of the verdict")
    if environment_digest(predicate["environment"]) != predicate["verdict"]["env_digest"]:
        raise EvidenceError("the environment is not the one of the verdict")


def _require_trusted(
    content: Mapping[str, Any], signers: tuple[str, ...], trust: Trust, now: datetime
) -> None:
    made = format_made_by(content["predicate"]["verdict"]["proctor_version"])
    if made not in trust.accepted_formats:
        raise EvidenceError(f"the trust file does not accept the format {made}")
    if trust.required_anchors:
        hint = "verify the bundle, which has them"
        raise EvidenceError("the trust file requires anchors, and an envelope has none", hint=hint)
    judge_signers(trust, signers, Moment(at=now, anchored=False))


def shaped(document: object, shape: Record, what: str) -> dict[str, Any]:
    problem = next(problems(document, shape), None)
    if problem is not None:
        raise EvidenceError(f"{what}: {problem}")
    return cast(dict[str, Any], document)


def _decode_base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise EvidenceError("not base64") from error
