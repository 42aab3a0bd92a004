"""RFC 3161 time stamps, through the optional package rfc3161-client.

Owns: asking for a stamp over any transport, and checking one against the authorities of a trust file.
Does not: talk to a network; the caller's ``send`` carries the request (HTTP, a local command, a queue).
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ringfence.errors import EvidenceError, UnavailableError, hint_for_extra

if TYPE_CHECKING:
    import rfc3161_client

_SHA256_OID = "2.16.840.1.101.3.4.2.1"


def stamp(anchored: bytes, send: Callable[[bytes], bytes]) -> dict[str, Any]:
    """Get a stamp for the bytes a bundle anchors; ``send`` takes a DER request to an authority and back."""
    client = _client()
    request = client.TimestampRequestBuilder(
        data=anchored, hash_algorithm=client.HashAlgorithm.SHA256
    ).build()
    token = send(request.as_bytes())
    _require_imprint(_decode(token), anchored)
    return {"type": "rfc3161", "token": base64.b64encode(token).decode("ascii")}


def stamped_time(token: bytes, anchored: bytes, authorities_pem: Iterable[str]) -> datetime | None:
    """The time of a stamp for ``anchored`` under one of these roots, None if under none of them.

    EvidenceError when it is not a stamp, or is one for something else; UnavailableError without the package.
    """
    response = _decode(token)
    _require_imprint(response, anchored)
    known = any(_verifies_under(response, anchored, pem) for pem in authorities_pem)
    return response.tst_info.gen_time if known else None


def _decode(token: bytes) -> rfc3161_client.TimeStampResponse:
    client = _client()
    try:
        response: rfc3161_client.TimeStampResponse = client.decode_timestamp_response(token)
        response.tst_info  # noqa: B018  (decoded on access, which may fail)
    except Exception as error:  # the package does not say what it raises
        raise EvidenceError("not an RFC 3161 time stamp") from error
    return response


def _require_imprint(response: rfc3161_client.TimeStampResponse, anchored: bytes) -> None:
    imprint = response.tst_info.message_imprint
    if (
        imprint.hash_algorithm.dotted_string != _SHA256_OID
        or imprint.message != hashlib.sha256(anchored).digest()
    ):
        raise EvidenceError("the time stamp is for something else")


def _verifies_under(response: rfc3161_client.TimeStampResponse, anchored: bytes, root_pem: str) -> bool:
    from cryptography import x509

    client = _client()
    try:
        root = x509.load_pem_x509_certificate(root_pem.encode("utf-8"))
    except ValueError as error:
        raise EvidenceError("the certificate of a time-stamping authority cannot be read") from error
    try:
        return bool(client.VerifierBuilder(roots=[root]).build().verify_message(response, anchored))
    except (client.VerificationError, ValueError):
        return False


def _client() -> Any:
    try:
        import rfc3161_client
    except ImportError:
        raise UnavailableError(
            "RFC 3161 time stamps need the package rfc3161-client",
            missing=("rfc3161-client",),
            hint=hint_for_extra("timestamp"),
        ) from None
    return rfc3161_client
