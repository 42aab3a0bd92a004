"""Reads what ``python_jobs/encode.py`` writes, from a sender that is not trusted.

Reading executes nothing, imports only the standard library's value types, and builds nothing larger than a
fixed multiple of the bytes that arrived: lists and objects of two bytes become some sixty. It takes time in
proportion to the bytes too, so it bounds what a dict or a set of chosen keys would cost (ADR 0040). It does not
tell an honest value from a dishonest one: whatever it returns is the guest's word.
"""

from __future__ import annotations

import binascii
import json
import os
import re
import sys
from _collections_abc import Callable, Iterator
from itertools import accumulate, groupby
from operator import ne

from ringfence.python_jobs.encode import MAX_BYTES, MAX_DEPTH, MAX_PLAIN_KEYS, has_random_hash

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_EQUAL_HASHES = 64
"""Numbers have no random hash: more keys than this with one hash are an attack on the reader."""
MAX_COMPARISONS = 1 << 24
"""What telling apart keys with the same hash may cost, over all containers of a value."""

_JSON_LEVELS_EACH = 3  # {"$dict": [[key, value]]}


class Undecodable(Exception):
    """Bytes that ``encode`` never makes, or that are larger or deeper than the reader allows."""


def decode(
    data: bytes, beside: bytes | memoryview = b"", *, max_bytes: int = MAX_BYTES, max_depth: int = MAX_DEPTH
) -> object:
    """The value; Undecodable, and nothing else, whatever the bytes are. ``beside``: the bytes beside the text.

    >>> decode(b'{"$tuple":[1,{"a":null}]}')
    (1, {'a': None})
    """
    if len(data) > max_bytes:
        raise Undecodable(f"{len(data)} bytes, {max_bytes} are allowed")
    _check_depth(data, max_depth * _JSON_LEVELS_EACH + 1)
    if _SEED_IS_KNOWN:
        _check_names(data)
    try:
        return _decoder(data, beside).decode(str(data, "utf-8", "surrogatepass"))
    except RecursionError:
        raise Undecodable("nested too deep") from None
    except (ValueError, TypeError, LookupError, ArithmeticError, AttributeError, MemoryError) as error:
        raise Undecodable(f"not an encoded value ({type(error).__name__})") from None


# Matches a string that is never closed as one: starting anew at every quote would take quadratic time.
_STRINGS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_NOT_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")
_STEP = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}


def _check_depth(data: bytes, max_levels: int) -> None:
    """Checked before parsing: the parser's depth limit is the host's setting, and may exceed its stack."""
    if data.count(b"[") + data.count(b"{") <= max_levels:
        return
    brackets = _STRINGS.sub(b"", data).translate(None, _NOT_BRACKETS)
    if max(accumulate(map(_STEP.__getitem__, brackets)), default=0) > max_levels:
        raise Undecodable("nested too deep")


_NAMES = re.compile(rb'"([^"\\]*+(?:\\.[^"\\]*+)*+)"?[ \t\r\n]*+(:?)', re.DOTALL)


def _seed_is_known() -> bool:
    """Whether a guest may know the hash of a string here: PYTHONHASHSEED is a number."""
    asked = "" if sys.flags.ignore_environment else os.environ.get("PYTHONHASHSEED", "")
    return not sys.flags.hash_randomization or asked not in ("", "random")


_SEED_IS_KNOWN = _seed_is_known()


def _check_names(data: bytes) -> None:
    """Checked before parsing: the parser keeps each name of an object once in a dict of its own, of any size.

    Equal names are found by sorting, since a set of them is just what must not be made.
    """
    names = sorted(name for name, colon in _NAMES.findall(data) if colon)
    if sum(1 for _ in groupby(names)) > MAX_PLAIN_KEYS:
        raise Undecodable(f"more than {MAX_PLAIN_KEYS} names, and PYTHONHASHSEED is set")


def _short_int(digits: str) -> int:
    if len(digits) > 20:
        raise ValueError("a longer number has another form")
    return int(digits)


def _decoder(data: bytes, beside: bytes | memoryview) -> json.JSONDecoder:
    # Python's own bound on digits makes long numbers harmless, unless the host has lifted it.
    bounded = 0 < sys.get_int_max_str_digits() <= 4300
    if bounded and not beside and not _WITH_KEYS.search(data):
        return _WITHOUT_KEYS
    return _made(MAX_PLAIN_KEYS, None if bounded else _short_int, beside)


def _made(
    max_keys: int, parse_int: Callable[[str], int] | None = None, beside: bytes | memoryview = b""
) -> json.JSONDecoder:
    return json.JSONDecoder(object_hook=_Reading(max_keys, beside).value, parse_int=parse_int)


class _Reading:
    """Reads the tagged objects of one value, and holds what its keys, and the bytes beside it, may cost together."""

    def __init__(self, max_keys: int, beside: bytes | memoryview = b"") -> None:
        self._beside = memoryview(beside)
        self._beside_left = len(beside)
        self._keys_left = max_keys
        self._comparisons_left = MAX_COMPARISONS

    def value(self, found: dict[str, Any]) -> object:
        if len(found) != 1:
            return found
        (word,) = found
        if word[:1] != "$":
            return found
        content = found[word]
        if word in _READERS:
            return _READERS[word](content)
        if word == "$beside":
            return self._bytes(*_listed(content))
        return self._dict(content) if word == "$dict" else _SETS[word](self._admitted(_listed(content)))

    def _bytes(self, start: Any, length: Any) -> bytes:
        """No more bytes in total than there are: many places could name the same ones."""
        if type(start) is not int or type(length) is not int or not 0 <= start <= start + length <= len(self._beside):
            raise ValueError("not a place beside the text")
        self._beside_left -= length
        if self._beside_left < 0:
            raise ValueError("more than there is beside the text")
        return bytes(self._beside[start : start + length])

    def _dict(self, content: Any) -> dict[Any, Any]:
        pairs = [(key, item) for key, item in _listed(content)]
        self._admitted([key for key, _ in pairs])
        return dict(pairs)

    def _admitted(self, keys: list[Any]) -> list[Any]:
        """The keys, refused before a table of them would take more than linear time."""
        if _SEED_IS_KNOWN:
            self._keys_left -= len(keys)
        else:
            self._keys_left -= sum(not has_random_hash(key) for key in keys)
        if self._keys_left < 0:
            raise Undecodable(f"more than {MAX_PLAIN_KEYS} keys whose hash is not a secret")
        for group in _colliding(keys):
            self._comparisons_left -= len(group) * sum(map(_weight, group))
            if len(group) > MAX_EQUAL_HASHES or self._comparisons_left < 0:
                raise Undecodable("too many keys with one hash")
        return keys


def _colliding(keys: list[Any]) -> Iterator[list[Any]]:
    """The keys that share a hash, hash by hash. By sorting: a dict of hashes costs what a dict of keys costs."""
    chosen = [key for key in keys if type(key) not in (str, bytes)]
    ordered = sorted(map(hash, chosen))
    if all(map(ne, ordered, ordered[1:])):
        return
    for _, group in groupby(sorted(chosen, key=hash), key=hash):
        alike = list(group)
        if len(alike) > 1:
            yield alike


def _weight(key: Any) -> int:
    """What comparing this key with another of the same hash may cost, in steps of some nanoseconds.

    In sets each member may be compared with each member of the other. A number turned into a Decimal takes quadratic
    time.
    """
    kind = type(key)
    if kind is tuple:
        return 1 + sum(map(_weight, key))
    if kind is frozenset:
        return min((1 + sum(map(_weight, key))) ** 2, MAX_COMPARISONS)  # squares of squares are long numbers
    if kind is int:
        return int(1 + (key.bit_length() >> 6) ** 2)
    if kind in (str, bytes):
        return 1 + (len(key) >> 6)
    return 1 + (len(str(key)) >> 6)


def _listed(content: Any) -> list[Any]:
    if type(content) is not list:
        raise ValueError("not a list")
    return content


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
    "$bytes": lambda content: binascii.a2b_base64(content, strict_mode=True),
    "$complex": _read_complex,
    "$decimal": _read_decimal,
    "$uuid": _read_uuid,
    "$datetime": _read_time("datetime"),
    "$date": _read_date,
    "$time": _read_time("time"),
    "$timedelta": _read_timedelta,
}
_SETS: dict[str, Callable[[list[Any]], object]] = {"$set": set, "$frozenset": frozenset}
_WITH_KEYS = re.compile(rb'"\$(?:dict|set|frozenset)"')
# For the many values that need neither: making one takes a while. A sender that escapes such a word gets no keys.
_WITHOUT_KEYS = _made(0)
