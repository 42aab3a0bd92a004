"""Canonical JSON, RFC 8785: the bytes that are hashed and signed.

Owns: one value, one byte string. Float-free values with ASCII keys (all of our records) are written by the
standard library's encoder, which agrees with RFC 8785 there; the rest goes through the rfc8785 package.
Does not: read JSON (strictjson).
"""

from __future__ import annotations

import json
from typing import cast

from ringfence.errors import EvidenceError
from ringfence.evidence.strictjson import MAX_DEPTH, MAX_SAFE_INTEGER

_encode = json.JSONEncoder(
    ensure_ascii=False, check_circular=False, allow_nan=False, sort_keys=True, separators=(",", ":")
).encode


def canonical(value: object) -> bytes:
    """The RFC 8785 bytes of a JSON value; EvidenceError if it has none."""
    try:
        return _encode(value).encode("utf-8") if _is_plain(value, 1) else _general(value)
    except UnicodeEncodeError:
        raise EvidenceError("a string has a lone surrogate") from None


def _is_plain(value: object, depth: int) -> bool:
    """True when the fast encoder gives RFC 8785's bytes; refuses what neither encoder may see."""
    kind = type(value)
    if kind is str or kind is bool or value is None:
        return True
    if kind is int:
        _require_safe(cast(int, value))
        return True
    if kind is float:
        return False
    if depth > MAX_DEPTH:
        raise EvidenceError(f"nested deeper than {MAX_DEPTH}")
    if kind is dict:
        # Python sorts by code point, RFC 8785 by UTF-16 unit: they agree on ASCII.
        plain = [_require_text(key).isascii() for key in cast(dict[str, object], value)]
        plain += [_is_plain(item, depth + 1) for item in cast(dict[str, object], value).values()]
        return False not in plain
    if kind is list:
        return False not in [_is_plain(item, depth + 1) for item in cast(list[object], value)]
    raise EvidenceError(f"{kind.__name__} is not a JSON type")


def _general(value: object) -> bytes:
    import rfc8785

    try:
        return rfc8785.dumps(value)  # type: ignore[arg-type]
    except rfc8785.CanonicalizationError as error:
        raise EvidenceError(f"no canonical form: {error}") from None


def _require_safe(number: int) -> None:
    if not -MAX_SAFE_INTEGER <= number <= MAX_SAFE_INTEGER:
        raise EvidenceError("an integer beyond 2^53 has no canonical form; write it as a string")


def _require_text(key: object) -> str:
    if type(key) is not str:
        raise EvidenceError(f"a key of type {type(key).__name__} is not JSON")
    return key
