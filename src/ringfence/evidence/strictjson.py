"""Strict JSON: the one reader for every evidence file (docs/reference/formats.md, section 1).

Owns: what is refused beyond RFC 8259, so that two readers can never see two meanings in one file.
Does not: look at members or types (shape), or write JSON (canonical).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from typing import NoReturn

from ringfence.errors import EvidenceError

MAX_DOCUMENT_BYTES = 64 << 20
MAX_COMMAS = 4_000_000
# of commas, [ and { together: a bound on the number of values, and so on memory, that costs nothing to check
MAX_DEPTH = 64
MAX_SAFE_INTEGER = 2**53 - 1
_MAX_NUMBER_CHARS = 64


def parse(data: bytes) -> object:
    """Read one document. Anything ambiguous is an EvidenceError, never a value."""
    if len(data) > MAX_DOCUMENT_BYTES:
        raise EvidenceError(f"larger than {MAX_DOCUMENT_BYTES >> 20} MiB")
    if sum(map(data.count, (b",", b"[", b"{"))) > MAX_COMMAS:
        raise EvidenceError(f"more than {MAX_COMMAS:,} commas and brackets")
    value = decode(data)
    _inspect(value)
    return value


def decode(data: bytes) -> object:
    """Like parse, but leaves depth and surrogates to the caller's next step (canonical checks both)."""
    try:
        return _decode(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise EvidenceError(f"not UTF-8 at byte {error.start}") from None
    except RecursionError:
        raise EvidenceError(f"nested deeper than {MAX_DEPTH}") from None
    except json.JSONDecodeError as error:
        raise EvidenceError(f"not JSON: {error.msg} at character {error.pos}") from None


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise EvidenceError(f"the key {twice[:80]!r} occurs twice")
    return members


def _integer(text: str) -> int:
    value = int(text) if len(text) <= _MAX_NUMBER_CHARS else MAX_SAFE_INTEGER + 1
    if abs(value) > MAX_SAFE_INTEGER:
        raise EvidenceError(f"the integer {text[:24]} is beyond 2^53 and would be read differently elsewhere")
    return value


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise EvidenceError(f"the number {text[:24]} is too large")
    return value


def _refuse_constant(text: str) -> NoReturn:
    raise EvidenceError(f"{text} is not JSON")


def _inspect(document: object) -> None:
    """Depth and lone surrogates, level by level: the input chooses the depth, not our stack."""
    level, depth = [document], 1
    while level:
        below: list[object] = []
        for value in level:
            if type(value) is str:
                _require_scalar_text(value)
            elif depth > MAX_DEPTH:
                raise EvidenceError(f"nested deeper than {MAX_DEPTH}")
            elif type(value) is dict:
                _require_scalar_text("".join(value))
                below.extend(_kept(value.values()))
            elif type(value) is list:
                below.extend(_kept(value))
        level, depth = below, depth + 1


def _kept(values: Iterable[object]) -> Iterator[object]:
    """Containers, and strings that may hold a surrogate: nothing else needs a look."""
    return (v for v in values if type(v) is dict or type(v) is list or (type(v) is str and not v.isascii()))


def _require_scalar_text(text: str) -> None:
    if text.isascii():
        return
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise EvidenceError("a string has an unpaired surrogate (not valid Unicode)") from None


_decode = json.JSONDecoder(
    object_pairs_hook=_unique, parse_int=_integer, parse_float=_finite, parse_constant=_refuse_constant
).decode
