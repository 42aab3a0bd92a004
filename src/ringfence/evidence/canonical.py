"""Canonical JSON, RFC 8785: the bytes that are hashed and signed.

Owns: one value, one byte string. Float-free values with ASCII keys (all of our records) are written by the
standard library's encoder, which agrees with RFC 8785 there; the rest goes through the rfc8785 package.
Does not: read JSON (strictjson).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import cast

from ringfence.errors import EvidenceError
from ringfence.evidence.strictjson import MAX_DEPTH, MAX_SAFE_INTEGER

_encode = json.JSONEncoder(
    ensure_ascii=False, check_circular=False, allow_nan=False, sort_keys=True, separators=(",", ":")
).encode

_SIMPLE = frozenset({str, bool, type(None)})


def canonical(value: object) -> bytes:
    """The RFC 8785 bytes of a JSON value; EvidenceError if it has none."""
    try:
        return _encode(value).encode("utf-8") if _is_plain(value, 1) else _general(value)
    except UnicodeEncodeError:
        raise EvidenceError("a string has an unpaired surrogate (not valid Unicode)") from None


def _is_plain(value: object, depth: int) -> bool:
    """True when the fast encoder gives RFC 8785's bytes; refuses what neither encoder may see."""
    kind = type(value)
    if kind in _SIMPLE:
        return True
    if kind is int:
        _require_safe(cast(int, value))
        return True
    if kind is float:
        return False
    if depth > MAX_DEPTH:
        raise EvidenceError(f"nested deeper than {MAX_DEPTH}")
    if kind is dict:
        members = cast(dict[str, object], value)
        # Python sorts by code point, RFC 8785 by UTF-16 unit: they agree on ASCII.
        return _all_plain(members.values(), depth + 1) and _joined(members).isascii()
    if kind is list:
        return _all_plain(cast(list[object], value), depth + 1)
    raise EvidenceError(f"{kind.__name__} is not a JSON type")


def _all_plain(values: Iterable[object], depth: int) -> bool:
    """Checks all of them, whatever the first result: each may have to be refused."""
    plain = True
    for value in values:
        if type(value) not in _SIMPLE:
            plain &= _is_plain(value, depth)
    return plain


def _general(value: object) -> bytes:
    import rfc8785

    try:
        return rfc8785.dumps(value)  # type: ignore[arg-type]
    except rfc8785.CanonicalizationError as error:
        raise EvidenceError(f"no canonical form: {error}") from None


def _require_safe(number: int) -> None:
    if not -MAX_SAFE_INTEGER <= number <= MAX_SAFE_INTEGER:
        raise EvidenceError("an integer beyond 2^53 has no canonical form; write it as a string")


def _joined(keys: Iterable[str]) -> str:
    try:
        return "".join(keys)
    except TypeError:
        raise EvidenceError("a key that is not a string is not JSON") from None
