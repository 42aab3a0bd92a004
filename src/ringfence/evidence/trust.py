"""Whom a verifier believes: keys, roles, rotation, revocation, required anchors (docs/reference/formats.md, section 7).

Owns: the trust file and the judgement over signers (step 20).
Does not: check signatures (verify has done that before).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Self, cast

from ringfence.errors import EvidenceError
from ringfence.evidence.keys import key_id, parse_public
from ringfence.evidence.schema import TRUST, parse_time
from ringfence.evidence.shape import problems
from ringfence.evidence.strictjson import parse
from ringfence.model.record import record

FORMATS = ("proctor-0.1", "ringfence-3", "ringfence-run-1")


@record
class TrustedKey:
    public_key: str
    name: str
    roles: tuple[str, ...] = ()
    valid_from: datetime | None = None
    valid_until: datetime | None = None
    revoked_at: datetime | None = None


@record
class Moment:
    """The time of a bundle, and whether a known anchor vouches for it."""

    at: datetime
    anchored: bool


@record
class Trust:
    keys: tuple[TrustedKey, ...]
    logs: frozenset[str] = frozenset()
    # public keys of transparency logs whose word on time counts
    authorities_pem: tuple[str, ...] = ()
    required_roles: tuple[str, ...] = ()
    required_anchors: tuple[str, ...] = ()
    accepted_formats: tuple[str, ...] = FORMATS
    any_signer: bool = False

    @classmethod
    def pinned(cls, public_key: str) -> Self:
        """Trust one key, given as hex, PEM or an OpenSSH line."""
        return cls(keys=(TrustedKey(public_key=parse_public(public_key), name="pinned key"),))

    @classmethod
    def unsafe_any_signer(cls) -> Self:
        """Check integrity only: the result is at best «intact, signer unknown»."""
        return cls(keys=(), any_signer=True)

    @classmethod
    def parse(cls, data: bytes) -> Self:
        document = cast(dict[str, Any], parse(data))
        problem = next(problems(document, TRUST), None)
        if problem is not None:
            raise EvidenceError(f"trust file: {problem}")
        optional: dict[str, Any] = {
            name: tuple(document[name])
            for name in ("required_roles", "required_anchors", "accepted_formats")
            if name in document
        }
        return cls(
            keys=tuple(_trusted_key(key) for key in document["keys"]),
            logs=frozenset(log["public_key"] for log in document.get("logs", [])),
            authorities_pem=tuple(
                tsa["certificate_pem"] for tsa in document.get("timestamp_authorities", [])
            ),
            **optional,
        )

    def find(self, public_key: str) -> TrustedKey | None:
        return next((key for key in self.keys if key.public_key == public_key), None)


def judge_signers(trust: Trust, signers: Sequence[str], moment: Moment) -> None:
    """Every signer we know was valid then, and the required roles are held by different ones of them."""
    known = [key for key in map(trust.find, signers) if key is not None]
    # An anchor covers only the first signature: another one may have been added at any time since.
    unproven = Moment(at=moment.at, anchored=False)
    for key in known:
        _require_valid(key, moment if key.public_key == signers[0] else unproven)
    if not _can_fill(trust.required_roles, known):
        raise EvidenceError(
            f"the roles {', '.join(trust.required_roles)} need different valid signers"
        )


def _require_valid(key: TrustedKey, moment: Moment) -> None:
    label = f"the key {key_id(key.public_key)} ({key.name})"
    if key.revoked_at is not None and not (moment.anchored and moment.at < key.revoked_at):
        raise EvidenceError(f"{label} is revoked, and no known anchor shows that the bundle is older")
    if key.valid_from is not None and moment.at < key.valid_from:
        raise EvidenceError(f"{label} was not valid yet at the time of the bundle")
    if key.valid_until is not None and moment.at >= key.valid_until:
        raise EvidenceError(f"{label} was no longer valid at the time of the bundle")


def _can_fill(roles: Sequence[str], keys: Sequence[TrustedKey]) -> bool:
    """A different key for every role; the lists are short and come from the verifier's own trust file."""
    if not roles:
        return True
    return any(
        roles[0] in key.roles and _can_fill(roles[1:], [other for other in keys if other is not key])
        for key in keys
    )


def _trusted_key(document: dict[str, Any]) -> TrustedKey:
    times = {
        name: parse_time(document[name])
        for name in ("valid_from", "valid_until", "revoked_at")
        if name in document
    }
    return TrustedKey(
        public_key=document["public_key"], name=document["name"], roles=tuple(document["roles"]), **times
    )
