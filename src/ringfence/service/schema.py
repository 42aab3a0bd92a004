"""Shapes of JSON in terms of JSON Schema: one table checks requests and makes the OpenAPI document.

Knows the few words of the standard that the tables use, and one more, ``x-maxSize``. A word that it does not know is a
mistake of ours, and raises.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

Schema = Mapping[str, Any]
_KINDS: dict[str, Callable[[object], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "null": lambda value: value is None,
}
_MOST_PROBLEMS = 10


def problems(value: object, schema: Schema, path: str = "") -> Iterator[str]:
    """Everything that is wrong with a value."""
    if "oneOf" in schema:
        if not any(not [*problems(value, each, path)] for each in schema["oneOf"]):
            yield f"{path or 'the body'} must be {' or '.join(map(_named, schema['oneOf']))}"
        return
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds and not any(_KINDS[kind](value) for kind in kinds):
        yield f"{path or 'the body'} is not of type {' or '.join(kinds)}"
        return
    for word, limit in schema.items():
        yield from _WORDS[word](value, limit, schema, path)


def told(value: object, schema: Schema) -> str:
    """The first of them in one line; empty: it is right."""
    found = problems(value, schema)
    return "; ".join(problem for problem, _ in zip(found, range(_MOST_PROBLEMS), strict=False))


def _named(schema: Schema) -> str:
    return str(schema.get("title") or schema.get("type") or "another")


def _properties(value: Any, known: Mapping[str, Schema], schema: Schema, path: str) -> Iterator[str]:
    for name, each in known.items():
        if isinstance(value, dict) and name in value:
            yield from problems(value[name], each, f"{path}.{name}" if path else name)


def _required(value: Any, names: list[str], schema: Schema, path: str) -> Iterator[str]:
    missing = [name for name in names if isinstance(value, dict) and name not in value]
    yield from (f"{f'{path}.' if path else ''}{name} is missing" for name in missing)


def _additional(value: Any, rest: Any, schema: Schema, path: str) -> Iterator[str]:
    if not isinstance(value, dict):
        return
    for name in value.keys() - schema.get("properties", {}).keys():
        if rest is False:
            yield f"{f'{path}.' if path else ''}{ascii(name[:60])[1:-1]} is unknown"
        elif rest is not True:
            yield from problems(value[name], rest, f"{path}.{ascii(name[:60])[1:-1]}")


def _items(value: Any, each: Schema, schema: Schema, path: str) -> Iterator[str]:
    for place, item in enumerate(value if isinstance(value, list) else ()):
        yield from problems(item, each, f"{path}[{place}]")


def _bound(kind: type | tuple[type, ...], holds: Callable[[Any, Any], bool], word: str) -> Any:
    def check(value: Any, limit: Any, schema: Schema, path: str) -> Iterator[str]:
        if isinstance(value, kind) and not isinstance(value, bool) and not holds(value, limit):
            yield f"{path or 'the body'} {word} {limit}"

    return check


def _no_rule(*_: object) -> Iterator[str]:
    return iter(())


def _size(value: object) -> int:
    """About as many characters as it has as JSON, which is not written: one text may be the whole of a large body."""
    left, count = [value], 0
    while left:
        each = left.pop()
        left += [*each, *each.values()] if isinstance(each, dict) else each if isinstance(each, list) else ()
        count += _AROUND_CHARS + (len(each) if isinstance(each, str) else 0)
    return count


_AROUND_CHARS = 3
"""Beside a text: its quotes and a comma. What is no text is short."""
_NUMBERS = (int, float)
_WORDS: dict[str, Callable[..., Iterator[str]]] = {
    "properties": _properties, "required": _required, "additionalProperties": _additional, "items": _items,
    "enum": lambda value, known, schema, path: iter(() if value in known else (f"{path} is not one of {known}",)),
    "minimum": _bound(_NUMBERS, lambda value, limit: value >= limit, "is less than"),
    "maximum": _bound(_NUMBERS, lambda value, limit: value <= limit, "is more than"),
    "minLength": _bound(str, lambda value, limit: len(value) >= limit, "is shorter than"),
    "maxLength": _bound(str, lambda value, limit: len(value) <= limit, "is longer than"),
    "minItems": _bound(list, lambda value, limit: len(value) >= limit, "has fewer items than"),
    "maxItems": _bound(list, lambda value, limit: len(value) <= limit, "has more items than"),
    "maxProperties": _bound(dict, lambda value, limit: len(value) <= limit, "has more members than"),
    "x-maxSize": _bound(dict, lambda value, limit: _size(value) <= limit, "has, as JSON, more characters than"),
    "pattern": _bound(str, lambda value, limit: re.search(limit, value) is not None, "is not of the form"),
    **dict.fromkeys(("type", "title", "description", "default", "format", "example"), _no_rule),
}  # fmt: skip


def from_query(text: str, schema: Schema) -> object:
    """The value of a text in a URL; the text itself if it is no value of that type."""
    kind = schema.get("type")
    if kind == "boolean":
        return {"true": True, "false": False, "1": True, "0": False}.get(text, text)
    if kind == "integer" and re.fullmatch(r"-?[0-9]{1,18}", text):
        return int(text)
    return text
