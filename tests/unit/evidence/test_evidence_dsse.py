"""DSSE and in-toto, with securesystemslib as the second opinion, in both directions."""

from __future__ import annotations

import base64
import copy
import json
from datetime import UTC, datetime
from typing import Any

import evidence_samples as s
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from securesystemslib.dsse import Envelope
from securesystemslib.exceptions import VerificationError
from securesystemslib.signer import CryptoSigner, SSlibKey

from ringfence.errors import EvidenceError
from ringfence.evidence.canonical import canonical
from ringfence.evidence.dsse import PAYLOAD_TYPE, pre_authentication_encoding, seal, statement, unseal
from ringfence.evidence.keys import SigningKey
from ringfence.evidence.trust import Trust

TRUST = Trust.pinned(s.OPERATOR.public_hex)


def theirs(key: SigningKey) -> SSlibKey:
    return SSlibKey(key.key_id, "ed25519", "ed25519", {"public": key.public_hex})


def test_securesystemslib_verifies_our_envelope_and_refuses_a_changed_one() -> None:
    envelope = seal(statement(s.ringfence_bundle()), s.OPERATOR, s.BENCHMARK)
    both = [theirs(s.OPERATOR), theirs(s.BENCHMARK)]
    assert len(Envelope.from_dict(copy.deepcopy(envelope)).verify(both, 2)) == 2
    payload = base64.b64decode(envelope["payload"]).replace(b'"pass":true', b'"pass":false')
    envelope["payload"] = base64.b64encode(payload).decode()
    with pytest.raises(VerificationError):
        Envelope.from_dict(envelope).verify(both, 1)


def test_we_verify_an_envelope_that_securesystemslib_made() -> None:
    private = Ed25519PrivateKey.from_private_bytes(bytes.fromhex("01" * 32))
    content = statement(s.ringfence_bundle())
    envelope = Envelope(canonical(content), PAYLOAD_TYPE, {})
    envelope.sign(CryptoSigner(private, theirs(s.OPERATOR)))
    found, signers = unseal(json.dumps(envelope.to_dict()).encode(), TRUST)
    assert found == content
    assert signers == (s.OPERATOR.public_hex,)


def test_the_pre_authentication_encoding_is_the_specifications_example() -> None:
    assert pre_authentication_encoding("http://example.com/HelloWorld", b"hello world") == (
        b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
    )


def test_the_statement_is_in_toto_v1_over_all_artifacts() -> None:
    bundle = s.ringfence_bundle()
    made = statement(bundle)
    assert made["_type"] == "https://in-toto.io/Statement/v1"
    assert {item["name"] for item in made["subject"]} == {a["name"] for a in bundle["manifest"]["artifacts"]}
    assert made["predicate"]["verdict"]["pass"] is True
    assert "signature" not in made["predicate"]["verdict"]


def lie(edit: Any) -> bytes:
    content = statement(s.ringfence_bundle())
    edit(content)
    return json.dumps(seal(content, s.OPERATOR)).encode()


@pytest.mark.parametrize(
    ("edit", "word"),
    [
        (lambda c: c["subject"].pop(), "subjects"),
        (lambda c: c["subject"].append(c["subject"][0]), "twice"),
        (lambda c: c["predicate"]["environment"].update(agent_command="x"), "environment"),
        (lambda c: c.update(predicateType="urn:other"), "predicateType"),
        (lambda c: c.update(_type="https://in-toto.io/Statement/v0.1"), "_type"),
        (lambda c: c.update(more=1), "not a known member"),
        (lambda c: c["predicate"].pop("verdict"), "missing"),
    ],
)
def test_a_signed_statement_that_does_not_agree_with_itself_is_refused(edit: Any, word: str) -> None:
    with pytest.raises(EvidenceError, match=word):
        unseal(lie(edit), TRUST)


def test_an_envelope_of_a_stranger_or_of_nobody_is_refused() -> None:
    content = statement(s.ringfence_bundle())
    for envelope in (seal(content, s.STRANGER), seal(content)):
        with pytest.raises(EvidenceError, match="no trusted key"):
            unseal(json.dumps(envelope).encode(), TRUST)


def test_the_verdicts_own_signature_is_no_signature_of_an_envelope() -> None:
    """Domain separation: what signs the one can't be replayed as the other."""
    bundle = s.ringfence_bundle()
    envelope = seal(statement(bundle))
    signature = base64.b64encode(bytes.fromhex(bundle["verdict"]["signature"])).decode()
    envelope["signatures"] = [{"sig": signature}]
    with pytest.raises(EvidenceError, match="no trusted key"):
        unseal(json.dumps(envelope).encode(), TRUST)


def demanding(**changes: Any) -> Trust:
    """A trust file whose every key has these members, or that has them itself."""
    document = s.trust_document()
    of_keys = {name: changes.pop(name) for name in ("revoked_at", "valid_until", "valid_from") if name in changes}
    document = {name: value for name, value in document.items() if not name.startswith("required_")} | changes
    document["keys"] = [{**key, **of_keys} for key in document["keys"]]
    return Trust.parse(s.encoded(document))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"revoked_at": "2026-01-01T00:00:00Z"}, "is revoked"),
        ({"valid_until": "2026-01-01T00:00:00Z"}, "no longer valid"),
        ({"valid_from": "2026-08-01T00:00:00Z"}, "not valid yet"),
        ({"required_roles": ["nobody"]}, "the roles nobody"),
        ({"required_anchors": ["merkle-log"]}, "an envelope has none"),
        ({"accepted_formats": ["proctor-0.1"]}, "does not accept the format ringfence-3"),
    ],
)
def test_an_envelope_has_to_meet_what_the_trust_file_demands(changes: dict[str, Any], words: str) -> None:
    now = datetime(2026, 7, 1, tzinfo=UTC)
    data = json.dumps(seal(statement(s.ringfence_bundle()), s.OPERATOR)).encode()
    always = {"valid_from": "2026-01-01T00:00:00Z", "valid_until": "2027-01-01T00:00:00Z"}
    assert unseal(data, demanding(**always), now=now)[1] == (s.OPERATOR.public_hex,)
    with pytest.raises(EvidenceError, match=words):
        unseal(data, demanding(**(always | changes)), now=now)


def test_signatures_that_anybody_can_add_do_not_cost_without_end() -> None:
    envelope = seal(statement(s.ringfence_bundle()), s.OPERATOR)
    envelope["signatures"] += [{"sig": base64.b64encode(bytes(64)).decode()}] * 15
    assert unseal(json.dumps(envelope).encode(), TRUST)[1] == (s.OPERATOR.public_hex,)
    envelope["signatures"] *= 2
    with pytest.raises(EvidenceError, match="more than 16"):
        unseal(json.dumps(envelope).encode(), TRUST)
