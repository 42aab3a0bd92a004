"""Python values as bytes that are safe to read: what a call gives back crosses the border in this form.

JSON (UTF-8, surrogates let through) with objects of one ``$word`` key for what JSON has no word for. Long bytes come
beside the text unchanged, and the text says where. Only exact types are sent: a subclass would silently come back as
something else. Shared parts are copied; a value that contains itself is refused. This is the writing half, which runs
inside the sandbox; ``python_jobs/decode.py`` is the other. How a message is framed is ``python_jobs/reply.py``'s.
"""

from __future__ import annotations

import binascii
import json
from _collections_abc import Callable, Iterable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_BYTES = 16 << 20
MAX_DEPTH = 64
MAX_PLAIN_KEYS = 1 << 15
"""Limit of keys and members whose hash is no secret, over all dicts and sets of a value. A sender that chooses them can
make a table of them take quadratic time; this many take a second at worst.
"""

MIN_BESIDE_BYTES = 1024
"""Bytes from this length on go beside the text; shorter ones into it, in base64."""
MAX_TEXT_BESIDE_BYTES = 4096
"""What the text may take beyond ``max_bytes``, so that bytes may be as long as a value may be."""

_AS_IS = frozenset({type(None), bool, float, str})
_SMALL = 1 << 63
_PLACE_CHARS = 60


class Unsendable(Exception):
    """A value with something in it that has no encoding."""

    def __init__(self, type_name: str, hint: str = "", place: str = "value") -> None:
        super().__init__(f"{place}: a {type_name} can't be sent{'; ' if hint else ''}{hint}")
        self.type_name, self.hint, self.place = type_name, hint, place


class TooLarge(Exception):
    """A value whose encoding is larger than allowed."""


def encode(value: object, *, max_bytes: int = MAX_BYTES) -> bytes:
    """The bytes of a value; Unsendable names the type and the place of what can't be sent, TooLarge.

    >>> encode((1, {"a": None}))
    b'{"$tuple":[1,{"a":null}]}'
    """
    text = _encoded(value, _Room(max_bytes))
    if len(text) > max_bytes:
        raise TooLarge(f"the value takes {len(text)} bytes, {max_bytes} are allowed")
    return text


def encode_apart(value: object, *, max_bytes: int = MAX_BYTES) -> tuple[bytes, list[bytes]]:
    """The same with long bytes beside the text, one after the other; places in the text are offsets into them."""
    room = _Room(max_bytes, beside=[])
    text = _encoded(value, room)
    allowed = max_bytes + (MAX_TEXT_BESIDE_BYTES if room.beside else 0)
    if len(text) > max_bytes or len(text) + room.beside_bytes > allowed:
        raise TooLarge(f"the value takes {len(text) + room.beside_bytes} bytes, {max_bytes} are allowed")
    return text, room.beside or []


class _Room:
    """What is left of the bounds while a value is written."""

    def __init__(self, max_bytes: int = 0, max_keys: int = MAX_PLAIN_KEYS, beside: list[bytes] | None = None) -> None:
        self.left = self.max_bytes = max_bytes
        self.keys_left = max_keys
        self.beside = beside
        self.beside_bytes = 0

    def put_beside(self, data: bytes) -> list[int]:
        """Its place: the first byte, and how many."""
        assert self.beside is not None
        place = [self.beside_bytes, len(data)]
        self.beside_bytes += len(data)
        if self.beside_bytes > self.max_bytes:
            raise TooLarge(f"the value takes {self.beside_bytes} bytes and more, {self.max_bytes} are allowed")
        self.beside.append(data)
        return place


def _encoded(value: object, room: _Room) -> bytes:
    try:
        text = _JSON.encode(_plain(value, MAX_DEPTH, room))
    except Unsendable as unsendable:
        place = _place(value, MAX_DEPTH) or "value"
        raise Unsendable(unsendable.type_name, unsendable.hint, place) from None
    return text.encode("utf-8", "surrogatepass")


_JSON = json.JSONEncoder(ensure_ascii=False, check_circular=False, separators=(",", ":"))


def _plain(value: Any, depth: int, room: _Room) -> object:
    kind = type(value)
    if kind in _AS_IS:
        return value
    if kind is int:
        # In hexadecimal: decimal takes quadratic time, and Python refuses more than 4300 digits.
        return value if -_SMALL < value < _SMALL else {"$int": format(value, "x")}
    if kind is bytes and room.beside is not None and len(value) >= MIN_BESIDE_BYTES:
        return {"$beside": room.put_beside(value)}
    container = _CONTAINERS.get(kind)
    if container is None:
        return _leaf(value)
    if depth == 0:
        raise Unsendable("value nested so deep", "or it contains itself")
    # Every item takes two bytes or more: parts that are shared many times over end here, not in the memory.
    room.left -= 2 * len(value)
    if room.left < 0:
        raise TooLarge("the value has more items than fit into the bytes that are allowed")
    return container(value, depth - 1, room)


def _items(values: Any, depth: int, room: _Room) -> list[object]:
    kinds = set(map(type, values))
    if kinds <= _AS_IS or (kinds == {int} and min(values) > -_SMALL and max(values) < _SMALL):
        return values if type(values) is list else list(values)
    return [_plain(item, depth, room) for item in values]


def _mapping(mapping: Any, depth: int, room: _Room) -> object:
    kinds = set(map(type, mapping))
    if kinds <= {str} and not (len(mapping) == 1 and next(iter(mapping))[:1] == "$"):
        return dict(zip(mapping, _items(list(mapping.values()), depth, room), strict=True))
    _spend_keys(mapping, room)
    keys, items = _items(list(mapping), depth, room), _items(list(mapping.values()), depth, room)
    return {"$dict": list(zip(keys, items, strict=True))}


def _members(word: str) -> Callable[[Any, int, _Room], object]:
    def members(values: Any, depth: int, room: _Room) -> object:
        _spend_keys(values, room)
        return {word: _items(values, depth, room)}

    return members


def _spend_keys(keys: Iterable[object], room: _Room) -> None:
    room.keys_left -= sum(not has_random_hash(key) for key in keys)
    if room.keys_left < 0:
        raise TooLarge(f"it has more than {MAX_PLAIN_KEYS} keys that are not strings; return a list of pairs")


def has_random_hash(key: object) -> bool:
    """Whether the hash of a key differs from process to process, so that nobody outside can choose it.

    The empty string has the same hash everywhere.
    """
    if type(key) is tuple:
        return any(type(part) in _RANDOM and part for part in key)
    return type(key) in _RANDOM and bool(key)


_RANDOM = frozenset({str, bytes})


_CONTAINERS: dict[type, Callable[[Any, int, _Room], object]] = {
    list: _items,
    dict: _mapping,
    tuple: lambda values, depth, room: {"$tuple": _items(values, depth, room)},
    set: _members("$set"),
    frozenset: _members("$frozenset"),
}


def _moment(value: Any) -> list[object]:
    if value.tzinfo is not None and type(value.tzinfo).__qualname__ != "timezone":
        raise Unsendable("time with a named time zone", "make it .astimezone(datetime.timezone.utc)")
    return [value.isoformat(), value.fold]


# By name: a value of a type whose module was never loaded can't exist, so nothing is loaded to find out.
_LEAVES: dict[str, tuple[str, Callable[[Any], object]]] = {
    "builtins.bytes": ("$bytes", lambda value: binascii.b2a_base64(value, newline=False).decode("ascii")),
    "builtins.complex": ("$complex", lambda value: [value.real, value.imag]),
    "decimal.Decimal": ("$decimal", str),
    "uuid.UUID": ("$uuid", lambda value: value.hex),
    "datetime.datetime": ("$datetime", _moment),
    "datetime.date": ("$date", lambda value: value.isoformat()),
    "datetime.time": ("$time", _moment),
    "datetime.timedelta": ("$timedelta", lambda value: [value.days, value.seconds, value.microseconds]),
}

# What a function that returned such a thing most likely should return.
_HINTS: tuple[tuple[Callable[[Any], bool], str], ...] = (
    (lambda value: hasattr(value, "__dataclass_fields__"), "return dataclasses.asdict(it)"),
    (lambda value: hasattr(value, "tolist"), "return its .tolist()"),
    (lambda value: hasattr(value, "__fspath__"), "return str(it)"),
    (lambda value: hasattr(value, "_value_") and hasattr(value, "_name_"), "return its .value"),
    (lambda value: isinstance(value, bytearray | memoryview), "return bytes(it)"),
    (lambda value: isinstance(value, tuple), "return tuple(it)"),
    (lambda value: isinstance(value, dict), "return dict(it)"),
    (lambda value: hasattr(value, "__next__"), "return list(it)"),
)


def _leaf(value: Any) -> object:
    kind = type(value)
    name = f"{kind.__module__}.{kind.__qualname__}"
    if name not in _LEAVES:
        hint = next((said for fits, said in _HINTS if fits(value)), "return plain values")
        raise Unsendable(name.removeprefix("builtins."), hint)
    tag, write = _LEAVES[name]
    return {tag: write(value)}


def _place(value: Any, depth: int, path: str = "value") -> str:
    """The place of the first thing that can't be sent; only looked for once we know that there is one."""
    if depth < 0:
        return path[:_PLACE_CHARS] + "…"
    if type(value) in _CONTAINERS:
        return next(filter(None, (_place(part, depth - 1, path + step) for step, part in _parts(value))), "")
    try:
        _plain(value, 0, _Room())
    except Unsendable:
        return path
    return ""


def _parts(value: Any) -> Iterable[tuple[str, object]]:
    if type(value) is dict:
        yield from ((f" (key {_short(key)})", key) for key in value)
        yield from ((f"[{_short(key)}]", part) for key, part in value.items())
    elif type(value) in (set, frozenset):
        yield from ((" (member)", part) for part in value)
    else:
        yield from ((f"[{number}]", part) for number, part in enumerate(value))


def _short(key: object) -> str:
    text = repr(key) if type(key) in _AS_IS or type(key) is int else type(key).__name__
    return text if len(text) <= _PLACE_CHARS else text[:_PLACE_CHARS] + "…"
