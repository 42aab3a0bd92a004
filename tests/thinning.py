"""Which cases of a test the passes leave out, in one table: they keep a part of each, by rule and not by choice.

A case that is left out gets a mark: ``once``, so that root runs it and the ordinary user does not, or ``soak``, so that
nobody does. Which mark is in the rule. A test that is not named here runs all its cases, and an attack in a sandbox of
its own is not thinned out: every one of them runs as root and as an ordinary user.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import pytest

Values = Mapping[str, object]


def _together(_: Values) -> object:
    return None


def _family_and_level(values: Values) -> object:
    return getattr(values["attack"], "family", None), values["level"]


def _class_of_cheat(values: Values) -> object:
    return getattr(values["cheat"], "kind", None)


@dataclass(frozen=True, kw_only=True)
class Rule:
    """Of the cases of each test below a place, the last is run and every so manieth before it."""

    place: str
    """How the name of the test begins."""
    every: int
    rest: str
    """The mark that the others get."""
    of: Callable[[Values], object] = _together
    """Cases for which this is the same are counted together: some of each kind stay."""


_CHEATS = "tests/doors/test_corpus_cheats.py::test_the_"
_CORPUS = "tests/escape/test_corpus.py::test_the_attack_fails_"
RULES = (
    # The same sandbox as a new one, made beforehand: what differs is when. Root's pass has a third of each family at
    # each level, and the ordinary user's half of those.
    Rule(place=f"{_CORPUS}in_a_sandbox_that_stood_by", every=3, rest="soak", of=_family_and_level),
    Rule(place=f"{_CORPUS}in_a_sandbox_that_stood_by", every=6, rest="once", of=_family_and_level),
    Rule(place=f"{_CORPUS}as_a_python_job", every=6, rest="soak", of=_family_and_level),
    Rule(place="tests/contract/test_conformance_warm.py", every=3, rest="once"),
    Rule(place=f"{_CHEATS}slower_cheat_wins", every=3, rest="soak", of=_class_of_cheat),
    # Doors are conversions over what the other tests try as both; other people's programs take long.
    Rule(place="tests/doors/", every=3, rest="once"),
    Rule(place="tests/programs/", every=3, rest="once"),
)


def apply(items: Iterable[pytest.Item], rules: tuple[Rule, ...] = RULES) -> None:
    """Mark what the rules leave out, before the marks choose."""
    counted: dict[tuple[Rule, str, object], list[pytest.Item]] = {}
    for item in items:
        case = getattr(item, "callspec", None)
        for rule in rules if case else ():
            if item.nodeid.startswith(rule.place):
                key = (rule, item.nodeid.partition("[")[0], rule.of(case.params))
                counted.setdefault(key, []).append(item)
    for (rule, _, _), cases in counted.items():
        for place, item in enumerate(reversed(cases)):
            if place % rule.every:
                item.add_marker(rule.rest)
