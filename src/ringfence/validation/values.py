"""What an expression is known to be: a thing by its full name, a constant, the start of one, a path, or one of several.

``None`` stands for what is not known. Values are small and made by the thousand, so they are plain classes with slots.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

MAX_ALTERNATIVES = 16
MAX_STRING = 32 * 1024
_ENDLESS = 1 << 40


class Ref:
    """Something that is imported or built in, by its full name: ``os``, ``os.system``, ``builtins.eval``."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name


class Const:
    """A string, bytes, number, boolean or None."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value


class Start:
    """A string whose beginning alone is known."""

    __slots__ = ("value",)

    def __init__(self, value: str) -> None:
        self.value = value


class PathOf:
    """A pathlib path; ``at`` is where it leads: a Const, a Start, or None where that is not known."""

    __slots__ = ("at",)

    def __init__(self, at: Const | Start | None) -> None:
        self.at = at


class Items:
    """A list, tuple or set whose elements can be told apart."""

    __slots__ = ("size", "values")

    def __init__(self, values: tuple[Value | None, ...]) -> None:
        self.values = values
        self.size: int = min(sum(map(size, values)) + 1, _ENDLESS)
        """As if each were written out: a list that is in itself twice has double the size, with no more memory."""


class Pairs:
    """A dictionary with constant keys."""

    __slots__ = ("values",)

    def __init__(self, values: dict[object, Value | None]) -> None:
        self.values = values


class Many:
    """A value that is one of several; ``None`` among them: or something else."""

    __slots__ = ("values",)

    def __init__(self, values: tuple[Value | None, ...]) -> None:
        self.values = values


Value = Ref | Const | Start | PathOf | Items | Pairs | Many


def size(value: Value | None) -> int:
    """How many characters and items it has."""
    if isinstance(value, PathOf):
        value = value.at
    if isinstance(value, Items):
        return value.size
    text = value.value if isinstance(value, Const | Start) else None
    return len(text) if isinstance(text, str | bytes) else 1


def one_of(values: Iterable[Value | None]) -> Value | None:
    """Several values as one; too many count as unknown, and so do values that are all unknown."""
    found: list[Value | None] = []
    names: set[str] = set()
    for value in values:
        for choice in value.values if isinstance(value, Many) else (value,):
            if not isinstance(choice, Ref) or choice.name not in names:
                found.append(choice)
            if isinstance(choice, Ref):
                names.add(choice.name)
    known = [value for value in found if value is not None]
    if not known or len(known) > MAX_ALTERNATIVES:
        return None
    if len(found) == 1:
        return known[0]
    return Many((*known, *([None] if len(known) < len(found) else [])))


def each(value: Value | None) -> Iterator[Value | None]:
    """All that a value can be."""
    if isinstance(value, Many):
        yield from value.values
    else:
        yield value


def strings(value: Value | None) -> Iterator[str]:
    """The strings that a value can be, of long ones the beginning; bytes as the strings they spell."""
    for known in each(value):
        if isinstance(known, Const):
            if isinstance(known.value, str):
                yield known.value[:MAX_STRING]
            elif isinstance(known.value, bytes):
                yield known.value[:MAX_STRING].decode("latin-1")
