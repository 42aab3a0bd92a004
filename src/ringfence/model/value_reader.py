"""Reads what ``model/values.py`` writes, out of hands that are not trusted.

Reading executes nothing, imports only the standard library's value types, and builds nothing larger than a
fixed multiple of the bytes that arrived: lists and objects of two bytes become some sixty. It does not tell
an honest value from a dishonest one: whatever it returns is the guest's word.
"""

from __future__ import annotations

import binascii
import json
import re
import sys
from _collections_abc import Callable
from itertools import accumulate

from ringfence.model.values import MAX_BYTES, MAX_DEPTH

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_EQUAL_HASHES = 64
"""Numbers have no random hash: more keys than this with one hash are an attack on whoever reads them."""

_JSON_LEVELS_EACH = 3  # {"$dict": [[key, value]]}


class Undecodable(Exception):
    """Bytes that no ``encode`` makes, or that are larger or deeper than the reader allows."""


def decode(data: bytes, *, max_bytes: int = MAX_BYTES, max_depth: int = MAX_DEPTH) -> object:
    """The value; Undecodable, and nothing else, whatever the bytes are.

    >>> decode(b'{"$tuple":[1,{"a":null}]}')
    (1, {'a': None})
    """
    if len(data) > max_bytes:
        raise Undecodable(f"{len(data)} bytes, {max_bytes} are allowed")
    _check_depth(data, max_depth * _JSON_LEVELS_EACH + 1)
    try:
        return _decoder().decode(str(data, "utf-8", "surrogatepass"))
    except RecursionError:
        raise Undecodable("nested too deep") from None
    except (ValueError, TypeError, LookupError, ArithmeticError, AttributeError, MemoryError) as error:
        raise Undecodable(f"not an encoded value ({type(error).__name__})") from None


# Takes a string that is never closed as one match: starting anew at every quote would take quadratic time.
_STRINGS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_NOT_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")
_STEP = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}


def _check_depth(data: bytes, max_levels: int) -> None:
    """Before parsing: how deep the parser may go is the host's setting, and it may be beyond its stack."""
    if data.count(b"[") + data.count(b"{") <= max_levels:
        return
    brackets = _STRINGS.sub(b"", data).translate(None, _NOT_BRACKETS)
    if max(accumulate(map(_STEP.__getitem__, brackets)), default=0) > max_levels:
        raise Undecodable("nested too deep")


def _short_int(digits: str) -> int:
    if len(digits) > 20:
        raise ValueError("a longer number has another form")
    return int(digits)


def _decoder() -> json.JSONDecoder:
    # Python's own bound on digits makes long numbers harmless, unless the host has lifted it.
    return _DECODER if 0 < sys.get_int_max_str_digits() <= 4300 else _WARY_DECODER


def _listed(content: Any) -> list[Any]:
    if type(content) is not list:
        raise ValueError("not a list")
    return content


def _keys(keys: list[Any]) -> list[Any]:
    """The keys, refused when so many have the same hash that a dict of them takes quadratic time."""
    if len(keys) <= MAX_EQUAL_HASHES:
        return keys
    from collections import Counter

    if max(Counter(map(hash, keys)).values()) > MAX_EQUAL_HASHES:
        raise ValueError("too many keys with one hash")
    return keys


def _read_dict(content: Any) -> dict[Any, Any]:
    pairs = [(key, item) for key, item in _listed(content)]
    _keys([key for key, _ in pairs])
    return dict(pairs)


def _read_complex(content: Any) -> complex:
    real, imaginary = map(float, _listed(content))
    return complex(real, imaginary)


def _read_decimal(content: Any) -> object:
    from decimal import Decimal

    if type(content) is not str:
        raise ValueError("not a text")
    return Decimal(content)


def _read_uuid(content: Any) -> object:
    from uuid import UUID

    return UUID(hex=content)


def _read_time(name: str) -> Callable[[Any], object]:
    def read(content: Any) -> object:
        import datetime

        text, fold = _listed(content)
        return getattr(datetime, name).fromisoformat(text).replace(fold=fold)

    return read


def _read_date(content: Any) -> object:
    from datetime import date

    return date.fromisoformat(content)


def _read_timedelta(content: Any) -> object:
    from datetime import timedelta

    days, seconds, microseconds = _listed(content)
    return timedelta(days=days, seconds=seconds, microseconds=microseconds)


_READERS: dict[str, Callable[[Any], object]] = {
    "$int": lambda content: int(content, 16),
    "$tuple": lambda content: tuple(_listed(content)),
    "$dict": _read_dict,
    "$set": lambda content: set(_keys(_listed(content))),
    "$frozenset": lambda content: frozenset(_keys(_listed(content))),
    "$bytes": lambda content: binascii.a2b_base64(content, strict_mode=True),
    "$complex": _read_complex,
    "$decimal": _read_decimal,
    "$uuid": _read_uuid,
    "$datetime": _read_time("datetime"),
    "$date": _read_date,
    "$time": _read_time("time"),
    "$timedelta": _read_timedelta,
}


def _untagged(found: dict[str, Any]) -> object:
    if len(found) == 1:
        (word,) = found
        if word[:1] == "$":
            return _READERS[word](found[word])
    return found


_DECODER = json.JSONDecoder(object_hook=_untagged)
_WARY_DECODER = json.JSONDecoder(object_hook=_untagged, parse_int=_short_int)
