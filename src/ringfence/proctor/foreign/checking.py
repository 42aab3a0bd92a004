"""Checks a task's file against a table of its keys: one error names the file and all wrong keys."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

from ringfence.errors import PolicyError
from ringfence.model.policy_file import parse_policy, policy_bytes
from ringfence.model.policy_keys import Problem, in_order, unknown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeVar

    Made = TypeVar("Made")

Check = Callable[[object], str]
"""What is wrong with a value, in a few words; empty: nothing."""
Table = Mapping[str, "Check | Table | None"]
"""For each key its check, a table for a section, or None: any value is accepted."""
NOTHING: Mapping[str, object] = MappingProxyType({})


def problems(values: object, table: Table, section: str = "") -> Iterator[Problem]:
    """Everything that is wrong with a section: (key with those above it, what is wrong)."""
    if not isinstance(values, Mapping):
        yield section, f"must be a section with {', '.join(table)}"
        return
    for name, value in values.items():
        key = f"{section}.{name}" if section else str(name)
        if name not in table:
            yield key, unknown(name, tuple(table), f"there are {', '.join(table)}")[1]
            continue
        check = table[name]
        if isinstance(check, Mapping):
            yield from problems(value, check, key)
        elif check is not None and (problem := check(value)):
            yield key, problem


def error(path: str, found: list[Problem]) -> PolicyError:
    """One error with all problems of a file."""
    made = [PolicyError(key, problem, where=f"{path}: ") for key, problem in found]
    return PolicyError(made[0].field, made[0].problem, where=made[0].where, more=tuple(made[1:]))


def first_of(found: list[Problem], values: object) -> PolicyError:
    """One error with all problems of a YAML file, in the order of its keys; the file's reader adds their places."""
    keys = values if isinstance(values, Mapping) else ()
    first, *others = in_order(found, keys)
    return PolicyError(*first, more=tuple(PolicyError(*other) for other in others))


def read_yaml(path: str, made: Callable[[Mapping[str, object]], Made], texts: tuple[str, ...]) -> Made:
    """The content of a YAML file; an error names file, line and key, or only the file if it is empty."""
    try:
        return parse_policy(path, policy_bytes(path), made, texts=texts)
    except PolicyError as wrong:
        if wrong.where:
            raise
        raise error(path, [(each.field, each.problem) for each in (wrong, *wrong.more)]) from wrong


def at(values: Mapping[str, object], key: str, default: object = None) -> object:
    """The value of a key with those above it; ``default`` where it is not there."""
    place: object = values
    for name in key.split("."):
        if not isinstance(place, Mapping) or name not in place:
            return default
        place = place[name]
    return place


def mapping_at(values: Mapping[str, object], key: str) -> Mapping[str, object]:
    found = at(values, key, NOTHING)
    return found if isinstance(found, Mapping) else NOTHING


def texts_at(values: Mapping[str, object], key: str) -> tuple[str, ...]:
    found = at(values, key, ())
    return tuple(map(str, found)) if isinstance(found, list | tuple) else ()


# ---- checks


def text(value: object) -> str:
    return "" if isinstance(value, str) else f"{value!r} is not a string"


def filled(value: object) -> str:
    return text(value) or ("" if str(value).strip() else "is empty")


def flag(value: object) -> str:
    return "" if isinstance(value, bool) else f"{value!r} is not true or false"


def seconds(value: object) -> str:
    return "" if _is_number(value) and value > 0 else f"{value!r} is not a number of seconds greater than 0"  # type: ignore[operator]


def number(value: object) -> str:
    return "" if _is_number(value) else f"{value!r} is not a number"


def count(value: object) -> str:
    sound = isinstance(value, int) and not isinstance(value, bool) and value > 0
    return "" if sound else f"{value!r} is not an integer greater than 0"


def texts(value: object) -> str:
    sound = isinstance(value, list | tuple) and all(isinstance(item, str) for item in value)
    return "" if sound else f"{value!r} is not a list of strings"


def variables(value: object) -> str:
    """Names and values that a process can have."""
    if not isinstance(value, Mapping):
        return "must be a section of names and strings"
    wrong = [name for name, each in value.items() if not isinstance(each, str) or not _is_variable(name, each)]
    return f"{wrong[0]!r} is not a variable with a string" if wrong else ""


def one_of(*words: str) -> Check:
    return lambda value: "" if value in words else f"{value!r} is not one of {', '.join(words)}"


def refused(why: str) -> Check:
    """For keys that we don't honour: an empty value, false and zero ask for nothing."""
    return lambda value: why if value not in (None, False, 0, "", [], {}) else ""


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_variable(name: object, value: str) -> bool:
    return isinstance(name, str) and bool(name) and "=" not in name and "\0" not in f"{name}{value}"
