"""Anchors: outside proof that a bundle existed at a time (docs/reference/formats.md, section 6).

Owns: what an anchor commits to, and the check of each kind (step 19). A new kind is one more entry
in ``_CHECKS`` and in schema.ANCHORS.
Does not: make them (translog, timestamp) or decide which are required (trust).
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from ringfence.errors import EvidenceError, UnavailableError
from ringfence.evidence import merkle
from ringfence.evidence.canonical import canonical
from ringfence.evidence.digest import sha256_hex
from ringfence.evidence.keys import signature_holds
from ringfence.evidence.schema import UNSIGNED_MEMBERS, parse_time
from ringfence.evidence.timestamp import stamped_time
from ringfence.evidence.translog import head_message, log_entry
from ringfence.evidence.trust import Trust
from ringfence.model.record import record


@record
class AnchorResult:
    kind: str
    known: bool
    at: datetime | None
    # None when nobody known vouches for a time
    note: str = ""


def signed_message(verdict: Mapping[str, object]) -> bytes:
    """``M`` of docs/reference/formats.md: the bytes that every signer signs."""
    return canonical({name: value for name, value in verdict.items() if name not in UNSIGNED_MEMBERS})


def anchored_bytes(verdict: Mapping[str, Any]) -> bytes:
    """``A`` of docs/reference/formats.md: what every anchor commits to."""
    return signed_message(verdict) + bytes.fromhex(verdict["signature"])


def check_anchor(anchor: Mapping[str, Any], anchored: bytes, trust: Trust) -> AnchorResult:
    """EvidenceError when it does not hold; an unknown log or authority is a result that does not count."""
    return _CHECKS[anchor["type"]](anchor, anchored, trust)


def _check_merkle(anchor: Mapping[str, Any], anchored: bytes, trust: Trust) -> AnchorResult:
    log_key = anchor["log_public_key"]
    message = head_message(anchor["tree_size"], anchor["root"], anchor["signed_at"])
    if not signature_holds(log_key, anchor["signature"], message):
        raise EvidenceError("the log's signature over its head is wrong")
    leaf = merkle.leaf_hash(canonical(log_entry(sha256_hex(anchored), anchor["logged_at"])))
    proof = [bytes.fromhex(node) for node in anchor["proof"]]
    root = bytes.fromhex(anchor["root"])
    if not merkle.inclusion_holds(leaf, anchor["leaf_index"], anchor["tree_size"], proof, root):
        raise EvidenceError("the bundle is not in the log at the stated place")
    if parse_time(anchor["logged_at"]) > parse_time(anchor["signed_at"]):
        raise EvidenceError("the log's head is older than the entry")
    if log_key not in trust.logs:
        return AnchorResult(
            kind="merkle-log", known=False, at=None, note="the trust file does not name this log"
        )
    return AnchorResult(kind="merkle-log", known=True, at=parse_time(anchor["logged_at"]))


def _check_rfc3161(anchor: Mapping[str, Any], anchored: bytes, trust: Trust) -> AnchorResult:
    try:
        at = stamped_time(base64.b64decode(anchor["token"]), anchored, trust.authorities_pem)
    except UnavailableError as error:
        return AnchorResult(kind="rfc3161", known=False, at=None, note=f"not checked: {error}; {error.hint}")
    if at is None:
        return AnchorResult(kind="rfc3161", known=False, at=None, note="of no authority in the trust file")
    return AnchorResult(kind="rfc3161", known=True, at=at)


_CHECKS: dict[str, Callable[[Mapping[str, Any], bytes, Trust], AnchorResult]] = {
    "merkle-log": _check_merkle,
    "rfc3161": _check_rfc3161,
}
