"""What a JSON value must look like, as data.

Owns: telling apart a missing member, an unknown one and a wrong value, each with its path.
Does not: parse, or know any format (schema). The recursion follows the shape, never the input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from typing import Any

from ringfence.model.record import made_by, record


class Fault(StrEnum):
    MISSING = "missing"
    UNKNOWN = "unknown"
    TYPE = "type"


@record
class Problem:
    fault: Fault
    path: str
    text: str

    def __str__(self) -> str:
        return f"{self.path or 'the document'} {self.text}"


@record
class Leaf:
    """A value that a predicate accepts; ``expected`` completes «… must be»."""

    accepts: Callable[[object], bool]
    expected: str


@record
class Record:
    """An object with these members and no others."""

    required: Mapping[str, Shape]
    optional: Mapping[str, Shape] = made_by(default_factory=dict)


@record
class Items:
    """An array; ``rule``, called once every item is right, says what is wrong with the whole, or ''."""

    item: Shape
    rule: Callable[[list[Any]], str] = lambda items: ""


@record
class Table:
    """An object with free keys."""

    key: Leaf
    value: Shape


@record
class Choice:
    """An object whose string member ``tag`` picks its record."""

    tag: str
    records: Mapping[str, Record]


Shape = Leaf | Record | Items | Table | Choice


def problems(value: object, shape: Shape, path: str = "") -> Iterator[Problem]:
    """Everything that is wrong with a value, in the order of the document."""
    match shape:
        case Leaf():
            if not shape.accepts(value):
                yield _wrong(path, f"must be {shape.expected}")
        case Record():
            yield from _record(value, shape, path)
        case Items():
            yield from _items(value, shape, path)
        case Table():
            yield from _table(value, shape, path)
        case Choice():
            yield from _choice(value, shape, path)


def _record(value: object, shape: Record, path: str) -> Iterator[Problem]:
    if not isinstance(value, dict):
        yield _wrong(path, "must be an object")
        return
    for name in shape.required:
        if name not in value:
            yield Problem(fault=Fault.MISSING, path=_join(path, name), text="is missing")
    for name, member in value.items():
        known = shape.required.get(name) or shape.optional.get(name)
        if known is None:
            yield Problem(fault=Fault.UNKNOWN, path=_join(path, name), text="is not a known member")
        else:
            yield from problems(member, known, _join(path, name))


def _items(value: object, shape: Items, path: str) -> Iterator[Problem]:
    if not isinstance(value, list):
        yield _wrong(path, "must be an array")
        return
    sound = True
    for index, item in enumerate(value):
        for problem in problems(item, shape.item, f"{path}[{index}]"):
            sound = False
            yield problem
    if sound and (complaint := shape.rule(value)):
        yield _wrong(path, complaint)


def _table(value: object, shape: Table, path: str) -> Iterator[Problem]:
    if not isinstance(value, dict):
        yield _wrong(path, "must be an object")
        return
    for name, member in value.items():
        if not shape.key.accepts(name):
            yield _wrong(_join(path, name), f"must have a key that is {shape.key.expected}")
        yield from problems(member, shape.value, _join(path, name))


def _choice(value: object, shape: Choice, path: str) -> Iterator[Problem]:
    tag = value.get(shape.tag) if isinstance(value, dict) else None
    record = shape.records.get(tag) if isinstance(tag, str) else None
    if record is not None:
        yield from _record(value, record, path)
    elif isinstance(value, dict) and shape.tag not in value:
        yield Problem(fault=Fault.MISSING, path=_join(path, shape.tag), text="is missing")
    else:
        yield _wrong(path, f"must be an object with a {shape.tag} of {' or '.join(shape.records)}")


def _wrong(path: str, text: str) -> Problem:
    return Problem(fault=Fault.TYPE, path=path, text=text)


def _join(path: str, name: str) -> str:
    shown = ascii(name[:60])[1:-1]  # a key may hold terminal escapes
    return f"{path}.{shown}" if path else shown
