"""Reads a project's own rules by the reader of policy files, so that an error names file, line, column and key."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping

from ringfence.errors import PolicyError
from ringfence.model.policy_file import parse_policy, policy_bytes
from ringfence.model.policy_keys import Problem, in_order, unknown
from ringfence.validation.result import CATEGORIES, ERROR, LEVELS
from ringfence.validation.rule import Rule
from ringfence.validation.rule_table import RULES
from ringfence.validation.rules import Limits, Rules, changed

_SECTIONS = ("add", "silence", "tune", "limits", "paths")
_LISTS = ("modules", "names", "calls", "attributes", "methods")
_ADDED = frozenset({"category", "reason", "level", *_LISTS})
_TUNED = frozenset({"level", "allow", *_LISTS})
_ID = re.compile(r"[a-z][a-z0-9]*(?:-[a-z0-9]+)*")
_DOTTED = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*")
# Code that can't be examined is refused, whatever a file says.
_ALWAYS = frozenset({"syntax", "nesting", "code-size", "null-byte", "not-text", "unfinished", "work"})
_LEAST = {"code_bytes": 1, "nesting": 1, "chain": 1, "findings": 1}
_MOST = {"code_bytes": 16 * 2**20, "nesting": 200, "chain": 20_000, "findings": 100_000}
_ELSEWHERE = "docs/reference/validator.md lists them all"


def read_rules(path: str | os.PathLike[str]) -> Rules:
    """Return the rules that come with ringfence, changed by a file."""
    name = os.fspath(path)
    return parse_policy(name, policy_bytes(name), rules_of)


def rules_of(values: Mapping[str, object]) -> Rules:
    """The same of plain data."""
    if not isinstance(values, Mapping):
        raise PolicyError("", f"rules must be a mapping, not {type(values).__name__}")
    problems = [unknown(key, _SECTIONS, _ELSEWHERE) for key in values if key not in _SECTIONS]
    for name in values:
        problems += _checked(name, values[name])
    if problems:
        first, *others = in_order(problems, values)
        raise PolicyError(*first, more=tuple(PolicyError(*each) for each in others))
    return _made(values)


def _checked(name: str, value: object) -> Iterator[Problem]:
    if name not in _CHECKS:
        return
    if value is None:
        yield name, "is empty"
    elif name != "paths" and not isinstance(value, Mapping):
        yield name, f"must be a mapping, not {type(value).__name__}"
    else:
        yield from _CHECKS[name](value)


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


# ---- checks: each yields what is wrong, none raises


def _check_added(value: object) -> Iterator[Problem]:
    known = {rule.id for rule in RULES}
    for id_, fields in _mapping(value).items():
        key = f"add.{id_}"
        if not _ID.fullmatch(id_):
            yield key, "an id must consist of lower-case letters, digits and hyphens: no-tensorflow"
        elif id_ in known:
            yield key, "a rule with that id already exists; change it under tune"
        if not isinstance(fields, Mapping):
            yield key, "must be a mapping with category, reason and what to look for"
            continue
        yield from _check_fields(key, fields, _ADDED)
        yield from ((key, f"{name} is missing") for name in ("category", "reason") if name not in fields)
        if not any(fields.get(name) for name in _LISTS):
            yield key, f"must say what to look for, with one of {', '.join(_LISTS)}"


def _check_fields(key: str, fields: Mapping[str, object], allowed: frozenset[str]) -> Iterator[Problem]:
    for name, value in fields.items():
        place = f"{key}.{name}"
        if name not in allowed:
            yield place, unknown(name, allowed, _ELSEWHERE)[1]
        elif name in ("category", "level"):
            choices = CATEGORIES if name == "category" else LEVELS
            if value not in choices:
                yield place, f"{value!r} is not one of {', '.join(choices)}"
        elif name == "reason":
            if not _is_reason(value):
                yield place, "must be a sentence that says why"
        else:
            yield from _check_words(place, value)


def _check_words(place: str, value: object) -> Iterator[Problem]:
    if not isinstance(value, list) or not value:
        yield place, "must be a list of names"
        return
    wrong = [word for word in value if not isinstance(word, str) or not _DOTTED.fullmatch(word)]
    yield from ((place, f"{word!r} is not a name such as os.system") for word in wrong)


def _is_reason(value: object) -> bool:
    return isinstance(value, str) and len(value.strip()) >= 8


def _check_silenced(value: object) -> Iterator[Problem]:
    known = {rule.id for rule in RULES}
    for id_, reason in _mapping(value).items():
        if id_ not in known:
            yield f"silence.{id_}", unknown(id_, known, _ELSEWHERE)[1].replace("key", "rule")
        elif id_ in _ALWAYS:
            yield f"silence.{id_}", "code that can't be examined is always refused; limits say how much is examined"
        elif not _is_reason(reason):
            yield f"silence.{id_}", "needs a reason, in a sentence"


def _check_tuned(value: object) -> Iterator[Problem]:
    known = {rule.id for rule in RULES}
    for id_, fields in _mapping(value).items():
        if id_ not in known:
            yield f"tune.{id_}", unknown(id_, known, _ELSEWHERE)[1].replace("key", "rule")
        elif not isinstance(fields, Mapping) or not fields:
            yield f"tune.{id_}", f"must be a mapping with some of {', '.join(sorted(_TUNED))}"
        elif id_ in _ALWAYS:
            yield f"tune.{id_}", "code that can't be examined is always refused; limits say how much is examined"
        else:
            yield from _check_fields(f"tune.{id_}", fields, _TUNED)


def _check_limits(value: object) -> Iterator[Problem]:
    for name, number in _mapping(value).items():
        if name not in _LEAST:
            yield f"limits.{name}", unknown(name, frozenset(_LEAST), _ELSEWHERE)[1]
        elif type(number) is not int or not _LEAST[name] <= number <= _MOST[name]:
            yield f"limits.{name}", f"{number!r} is not a whole number from {_LEAST[name]} to {_MOST[name]:,}"


def _check_paths(value: object) -> Iterator[Problem]:
    if not isinstance(value, list) or not value:
        yield "paths", "must be a list of directories whose files may be used, such as /tmp"
        return
    for path in value:
        if not isinstance(path, str) or not path.startswith("/") or os.path.normpath(path) != path:
            yield "paths", f"{path!r} is not an absolute path without . and .. in it"


_CHECKS: dict[str, Callable[[object], Iterator[Problem]]] = {
    "add": _check_added,
    "silence": _check_silenced,
    "tune": _check_tuned,
    "limits": _check_limits,
    "paths": _check_paths,
}


# ---- made of what was checked


def _made(values: Mapping[str, object]) -> Rules:
    tuned = _mapping(values.get("tune"))
    rules = [_tuned(rule, _mapping(tuned.get(rule.id))) for rule in RULES]
    added = [_added(id_, _mapping(fields)) for id_, fields in _mapping(values.get("add")).items()]
    limits = Limits(**_mapping(values.get("limits")))  # type: ignore[arg-type]
    paths = values.get("paths", ["/tmp"])
    silenced = {str(id_): str(reason) for id_, reason in _mapping(values.get("silence")).items()}
    # A project's own rules come first: the first that names a word has it.
    return Rules([*added, *rules], limits=limits, paths=paths, silenced=silenced)  # type: ignore[arg-type]


def _added(id_: str, fields: Mapping[str, object]) -> Rule:
    rule = Rule(id=id_, category=str(fields["category"]), reason=str(fields["reason"]).strip(),
                level=str(fields.get("level", ERROR)))  # fmt: skip
    return changed(rule, **{name: tuple(_words(fields.get(name))) for name in _LISTS})


def _tuned(rule: Rule, fields: Mapping[str, object]) -> Rule:
    """Lists are extended; ``allow`` removes from them."""
    changes: dict[str, object] = {}
    for name, value in fields.items():
        changes[name] = value if name == "level" else (*getattr(rule, name), *_words(value))
    return changed(rule, **changes) if changes else rule


def _words(value: object) -> list[str]:
    return [str(word) for word in value] if isinstance(value, list) else []
