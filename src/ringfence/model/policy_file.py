"""Reads a policy file: YAML's plain part only, with the line and column of every key.

PyYAML parses; this module gives the scalars their meaning, because YAML's own rules read ``010`` as
8, ``12:30:45`` as 45045 and ``no`` as false, and accept a key twice. What could surprise is refused.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from ringfence.errors import PolicyError, UsageError
from ringfence.model.files import read_file
from ringfence.model.policy import SandboxPolicy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Node = Any  # yaml's nodes are not typed finely enough to be of help

MAX_FILE_BYTES = 64 * 1024
MAX_DEPTH = 16
MAX_ENTRIES = 10_000
MAX_ERRORS = 20
_MAX_QUOTED = 160
_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,39}")
_WORDS: dict[str, object] = {"true": True, "false": False, "null": None, "~": None, "": None}
_DEPTH_CHANGE = {
    "SequenceStartEvent": 1, "MappingStartEvent": 1, "SequenceEndEvent": -1, "MappingEndEvent": -1,
}  # fmt: skip
_AMBIGUOUS = frozenset({"yes", "no", "on", "off", "y", "n"})


def read_policy(path: str) -> SandboxPolicy:
    """The policy in a YAML file; every PolicyError says ``file:line:column``."""
    root = _parse(path)
    places: dict[str, str] = {}
    if root is None:
        return SandboxPolicy()
    reader = _Reader(path, places)
    values = reader.value(root, "")
    try:
        return SandboxPolicy.from_dict(values)  # type: ignore[arg-type]
    except PolicyError as wrong:
        raise _placed(wrong, places, f"{path}:1:1: ") from None


def _placed(wrong: PolicyError, places: dict[str, str], start: str) -> PolicyError:
    """The errors with their places, by line; only so many, and only a short piece of what the file says.

    Whoever is shown them may not be meant to read that file, e.g. where a link leads to it.
    """
    order = {place: number for number, place in enumerate(places.values())}
    found = sorted((wrong, *wrong.more), key=lambda each: order.get(places.get(each.field, start), -1))
    first, *others = (
        PolicyError(_quoted(each.field), _cut(each.problem), where=places.get(each.field, start))
        for each in found[:MAX_ERRORS]
    )
    if len(found) > MAX_ERRORS:
        others.append(PolicyError("", f"and {len(found) - MAX_ERRORS} more errors", where=start))
    first.more = tuple(others)
    return first


def _quoted(field: str) -> str:
    """A key that is a word; anything else is a piece of some other file."""
    return field if not field or _WORD.fullmatch(field) else "(a key)"


def _cut(text: str) -> str:
    plain = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
    return plain if len(plain) <= _MAX_QUOTED else plain[:_MAX_QUOTED] + "…"


def _parse(path: str) -> Node | None:
    import yaml

    try:
        text = read_file(path, MAX_FILE_BYTES, hint="name an existing policy file").decode("utf-8")
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
        raise PolicyError("", _cut(error.problem or "not YAML"), where=place) from error
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
    """Turns nodes into plain values and notes where each key of the top level stands."""

    def __init__(self, path: str, places: dict[str, str]) -> None:
        self.path = path
        self.places = places

    def place(self, node: Node) -> str:
        return f"{self.path}:{node.start_mark.line + 1}:{node.start_mark.column + 1}: "

    def value(self, node: Node, name: str) -> object:
        if node.id == "mapping":
            return self._mapping(node, name)
        if node.id == "sequence":
            return [self.value(item, name) for item in node.value]
        return self._scalar(node, name)

    def _mapping(self, node: Node, name: str) -> dict[str, object]:
        result: dict[str, object] = {}
        for key_node, value_node in node.value:
            if key_node.id != "scalar":
                raise PolicyError(_quoted(name), "a key is plain text", where=self.place(key_node))
            key = key_node.value
            if key in result:
                raise PolicyError(_quoted(key), "stands here a second time", where=self.place(key_node))
            if not name:
                self.places[key] = self.place(key_node)
            result[key] = self.value(value_node, name or key)
        return result

    def _scalar(self, node: Node, name: str) -> object:
        text = node.value
        if node.style in ("'", '"', "|", ">"):
            return text
        if text in _WORDS:
            return _WORDS[text]
        if text.lower() in _AMBIGUOUS or text.lower() in _WORDS:
            problem = f"{text} is read in different ways by different programs; write true, false or quote it"
            raise PolicyError(_quoted(name), _cut(problem), where=self.place(node))
        return self._number(node, name)

    def _number(self, node: Node, name: str) -> object:
        text: str = node.value
        digits = text.removeprefix("-").removeprefix("+")
        if not text.isascii() or not digits[:1].isdigit() or not digits.replace(".", "").replace("_", "").isalnum():
            return text
        if digits[0] == "0" and digits[1:2].isalnum():
            problem = f"{text} has a leading zero or a base; write a plain decimal number or quote it"
            raise PolicyError(_quoted(name), _cut(problem), where=self.place(node))
        try:
            return int(text) if "_" not in text else text
        except ValueError:
            pass
        try:
            number = float(text)
        except ValueError:
            return text
        return number if math.isfinite(number) else text
