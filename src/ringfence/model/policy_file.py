"""Reads a policy file: YAML's plain part only, with the line and column of every key.

PyYAML parses; this module gives the scalars their meaning, because YAML's own rules read ``010`` as
8, ``12:30:45`` as 45045 and ``no`` as false, and accept a key twice. What could surprise is refused.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from types import MappingProxyType

from ringfence.errors import PolicyError, UsageError
from ringfence.model.files import read_file
from ringfence.model.system_text import escape_controls

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeVar

    Node = Any  # yaml's nodes are not typed finely enough to be of help
    Policy = TypeVar("Policy")

MAX_FILE_BYTES = 64 * 1024
MAX_DEPTH = 16
MAX_ENTRIES = 10_000
MAX_ERRORS = 20
_MAX_QUOTED = 160
_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,39}(\.[A-Za-z][A-Za-z0-9_-]{0,39}){0,3}")
_WORDS: dict[str, object] = {"true": True, "false": False, "null": None, "~": None, "": None}
_DEPTH_CHANGE = {
    "SequenceStartEvent": 1, "MappingStartEvent": 1, "SequenceEndEvent": -1, "MappingEndEvent": -1,
}  # fmt: skip
_NOTHING: Mapping[str, object] = MappingProxyType({})
_AMBIGUOUS = frozenset({"yes", "no", "on", "off", "y", "n"})


def read_policy(
    path: str, from_dict: Callable[[Mapping[str, object]], Policy], absent: Mapping[str, object] = _NOTHING
) -> Policy:
    """Return the policy in a YAML file; every PolicyError says ``file:line:column``. ``absent``: values for fields that
    the file does not name, if not the defaults."""
    return parse_policy(path, policy_bytes(path), from_dict, absent)


def policy_bytes(path: str) -> bytes:
    return read_file(path, MAX_FILE_BYTES, hint="name an existing policy file")


def parse_policy(
    path: str, data: bytes, from_dict: Callable[[Mapping[str, object]], Policy],
    absent: Mapping[str, object] = _NOTHING, texts: Collection[str] = (),
) -> Policy:  # fmt: skip
    """Return the policy in the bytes of a file. ``texts``: keys, with those above them (``git.base_commit``), whose
    plain words are never read as numbers; ``[].name`` is one in a list."""
    root = _parse(path, data)
    places: dict[str, str] = {}
    if root is None:
        return from_dict(absent)
    reader = _Reader(path, places, texts)
    values = reader.value(root, "")
    wrong = [replaced for _, replaced in reader.wrong]
    try:
        policy = from_dict(_over(absent, values, {key for key, _ in reader.wrong}))
    except PolicyError as error:
        wrong += _placed(error, places, f"{path}:1:1: ")
    if wrong:
        raise _together(wrong, f"{path}:1:1: ")
    return policy


def _over(absent: Mapping[str, object], values: object, without: set[str]) -> Mapping[str, object]:
    """The part of the file that can be checked; anything but a mapping is checked as it is."""
    if not isinstance(values, dict):
        return {} if "" in without else values  # type: ignore[return-value]
    return {**absent, **{key: value for key, value in values.items() if key not in without}}


def _placed(error: PolicyError, places: dict[str, str], start: str) -> list[PolicyError]:
    return [PolicyError(each.field, each.problem, where=places.get(each.field, start)) for each in (error, *error.more)]


def _together(wrong: list[PolicyError], start: str) -> PolicyError:
    """All errors as one, by line; a limited number, each with only a short piece of the file.

    The reader of the errors may not be allowed to read that file, e.g. if a link leads to it.
    """
    found = sorted(wrong, key=lambda each: _line_and_column(each.where))
    first, *others = (
        PolicyError(_quoted(each.field), _cut(each.problem), where=each.where) for each in found[:MAX_ERRORS]
    )
    if len(found) > MAX_ERRORS:
        others.append(PolicyError("", f"and {len(found) - MAX_ERRORS} more errors", where=start))
    first.more = tuple(others)
    return first


def _line_and_column(where: str) -> tuple[int, int]:
    _, line, column = where.rstrip(": ").rsplit(":", 2)
    return int(line), int(column)


def _quoted(field: str) -> str:
    """A key that is a word; anything else is a piece of some other file."""
    return field if not field or _WORD.fullmatch(field) else "(a key)"


def _cut(text: str) -> str:
    plain = escape_controls(text)
    return plain if len(plain) <= _MAX_QUOTED else plain[:_MAX_QUOTED] + "…"


def _parse(path: str, data: bytes) -> Node | None:
    import yaml

    try:
        text = data.decode("utf-8")
        _refuse_surprises(path, yaml.parse(text, Loader=yaml.SafeLoader))
        return yaml.compose(text, Loader=yaml.SafeLoader)
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not UTF-8 at byte {error.start}") from error
    except (ValueError, OverflowError) as error:
        # PyYAML lets some through: an escape beyond Unicode, a version of a thousand digits.
        raise UsageError(f"{path!r}: not a policy file: {_cut(str(error))}") from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{path}:{mark.line + 1}:{mark.column + 1}: " if mark else f"{path}: "
        # A user who means sub-domains writes what YAML takes for an alias.
        starred = error.context == "while scanning an alias"
        problem = 'put a word that begins with * in quotes: "*.example.com"' if starred else error.problem
        raise PolicyError("", _cut(problem or "not YAML"), where=place) from error
    except yaml.YAMLError as error:
        raise PolicyError("", _cut(str(error).splitlines()[0]), where=f"{path}: ") from error


def _refuse_surprises(path: str, events: Iterator[Node]) -> None:
    """Aliases can make a small file huge, tags can ask for any type, and depth makes PyYAML take for ever."""
    depth = 0
    for number, event in enumerate(events):
        tagged = getattr(event, "tag", None) is not None
        depth += _DEPTH_CHANGE.get(type(event).__name__, 0)
        mark = event.start_mark
        place = f"{path}:{mark.line + 1}:{mark.column + 1}: "
        if tagged or getattr(event, "anchor", None) is not None:
            raise PolicyError("", "tags, anchors and aliases are not allowed", where=place)
        if number > MAX_ENTRIES:
            raise PolicyError("", f"more than {MAX_ENTRIES} entries", where=place)
        if depth > MAX_DEPTH:
            raise PolicyError("", "nested too deeply", where=place)


class _Reader:
    """Turns nodes into plain values and notes the place of each key that is in no list, as ``top.below``."""

    def __init__(self, path: str, places: dict[str, str], texts: Collection[str] = ()) -> None:
        self.path = path
        self.places = places
        self.texts = texts
        self.wrong: list[tuple[str, PolicyError]] = []
        """(the top-level key above it, what is wrong there); empty: nothing."""

    def _refuse(self, node: Node, key: str, problem: str) -> None:
        self.wrong.append((key, PolicyError(key, problem, where=self.place(node))))

    def _refuse_twice(self, node: Node, key: str, name: str) -> None:
        """The first one is still checked."""
        problem = f"{_quoted(key)} appears a second time" if name else "appears a second time"
        self.wrong.append(("", PolicyError(name or key, problem, where=self.place(node))))

    def place(self, node: Node) -> str:
        return f"{self.path}:{node.start_mark.line + 1}:{node.start_mark.column + 1}: "

    def value(self, node: Node, name: str, keys: str = "") -> object:
        """``name``: the top-level key above it; ``keys``: all keys that lead to it, or to its list."""
        if node.id == "mapping":
            return self._mapping(node, name, keys)
        if node.id == "sequence":
            return [self._item(item, name, keys) for item in node.value]
        return self._text(node) if keys in self.texts else self._scalar(node, name)

    @staticmethod
    def _text(node: Node) -> object:
        """The text as it is; an empty value stays empty."""
        return None if node.style is None and _WORDS.get(node.value, "") is None else node.value

    def _item(self, node: Node, name: str, keys: str) -> object:
        """For a list: errors in its keys name the list's place."""
        return self.value(node, name, keys if node.id == "scalar" else "[]")

    def _mapping(self, node: Node, name: str, keys: str) -> dict[str, object]:
        result: dict[str, object] = {}
        for key_node, value_node in node.value:
            if key_node.id != "scalar":
                self._refuse(key_node, name, "a key must be plain text")
                continue
            key = key_node.value
            if key in result:
                self._refuse_twice(key_node, key, name)
                continue
            below = f"{keys}.{key}" if keys else key
            self.places.setdefault(below, self.place(key_node))
            result[key] = self.value(value_node, name or key, below)
        return result

    def _scalar(self, node: Node, name: str) -> object:
        text = node.value
        if node.style in ("'", '"', "|", ">"):
            return text
        if text in _WORDS:
            return _WORDS[text]
        if text.lower() in _AMBIGUOUS or text.lower() in _WORDS:
            self._refuse(node, name, f"{text} is read differently by different programs; write true, false or quote it")
            return text
        return self._number(node, name)

    def _number(self, node: Node, name: str) -> object:
        text: str = node.value
        digits = text.removeprefix("-").removeprefix("+")
        if not text.isascii() or not digits[:1].isdigit() or not digits.replace(".", "").replace("_", "").isalnum():
            return text
        if digits[0] == "0" and digits[1:2].isalnum():
            self._refuse(node, name, f"{text} has a leading zero or a base; write a plain decimal number or quote it")
            return text
        try:
            return int(text) if "_" not in text else text
        except ValueError:
            pass
        try:
            number = float(text)
        except ValueError:
            return text
        return number if math.isfinite(number) else text
