"""Which cases of a test the passes leave out, in one table: they keep a part of each, by rule and not by choice.

A case that is left out gets a mark: ``once``, so that root runs it and the ordinary user does not, ``long``, so that
only ``make test-all`` does, or ``soak``, so that neither does. Which mark is in the rule. A test that is not named here
runs all its cases. In ``make test-all`` every attack in a sandbox of its own runs as root and as an ordinary user.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import pytest

from tests import over_a_second

Values = Mapping[str, object]
STRICT, PARTIAL = "strict", "strict_partial"
"""As tests/escape/attack.py has them; to load it in every pass takes long."""


def _together(_: Values) -> object:
    return None


def _family_and_level(values: Values) -> object:
    return getattr(values["attack"], "family", None), values["level"]


def _class_of_cheat(values: Values) -> object:
    return getattr(values["cheat"], "kind", None)


def _any(_: str) -> bool:
    return True


def _shown_with_namespaces(name: str) -> bool:
    """An attack on what is left of ``strict`` without namespaces, when the gate tries it on the whole level too."""
    whole = name.removesuffix(f"-{PARTIAL}]")
    return whole != name and not over_a_second.is_listed(f"{whole}-{STRICT}]")


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
    only: Callable[[str], bool] = _any
    """Whether the rule is for the case of this name."""


_CHEATS = "tests/doors/test_corpus_cheats.py::test_the_"
_CORPUS = "tests/escape/test_corpus.py::test_the_attack_fails"
_EGRESS = "tests/escape/test_egress.py::test_the_attack_fails"
_INTERPRETER = "tests/unit/python_jobs/test_interpreter.py::test_"
RULES = (
    # The same sandbox as a new one, made beforehand: what differs is when. Root's pass has a third of each family at
    # each level, and the ordinary user's half of those.
    Rule(place=f"{_CORPUS}_in_a_sandbox_that_stood_by", every=3, rest="soak", of=_family_and_level),
    Rule(place=f"{_CORPUS}_in_a_sandbox_that_stood_by", every=6, rest="once", of=_family_and_level),
    Rule(place=f"{_CORPUS}_as_a_python_job", every=6, rest="soak", of=_family_and_level),
    Rule(place=f"{_CORPUS}[", every=3, rest="long", of=_family_and_level, only=_shown_with_namespaces),
    Rule(place=f"{_EGRESS}_in_a_sandbox_that_stood_by", every=3, rest="long"),
    Rule(place="tests/contract/test_conformance_warm.py", every=3, rest="once"),
    Rule(place="tests/contract/test_conformance_warm.py", every=2, rest="long"),
    # One interpreter or the other, a hundred times.
    Rule(place=f"{_INTERPRETER}a_program_does_the_same_as_under_a_new_interpreter", every=4, rest="long"),
    Rule(place=f"{_INTERPRETER}the_lines_of_a_source_that_is_in_no_file_are_shown", every=4, rest="long"),
    Rule(place="tests/unit/python_jobs/test_pack.py::test_what_stands_in_the_callers_main", every=4, rest="long"),
    Rule(place=f"{_CHEATS}cheat_wins_against_a_careless_grader", every=3, rest="long", of=_class_of_cheat),
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
            if item.nodeid.startswith(rule.place) and rule.only(item.nodeid):
                key = (rule, item.nodeid.partition("[")[0], rule.of(case.params))
                counted.setdefault(key, []).append(item)
    for (rule, _, _), cases in counted.items():
        for place, item in enumerate(reversed(cases)):
            if place % rule.every:
                item.add_marker(rule.rest)
