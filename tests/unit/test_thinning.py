"""The table by which passes are thinned out: some of each kind stay, and no rule is for a test that is gone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from tests import thinning
from tests.conftest import ROOT
from tests.escape.attack import PARTIAL, STRICT
from tests.escape.promises import LEVELS


class _Item:
    def __init__(self, name: str, **values: object) -> None:
        self.nodeid = f"tests/doors/test_a.py::{name}[{values}]" if values else f"tests/doors/test_a.py::{name}"
        self.marks: list[str] = []
        if values:
            self.callspec = SimpleNamespace(params=values)

    def add_marker(self, mark: str) -> None:
        self.marks.append(mark)


def _kept(items: list[Any], rule: thinning.Rule) -> list[Any]:
    thinning.apply(items, (rule,))
    assert {mark for item in items for mark in item.marks} <= {rule.rest}
    return [item for item in items if not item.marks]


def test_the_last_case_stays_and_every_third_before_it() -> None:
    rule = thinning.Rule(place="tests/doors/", every=3, rest="once")
    items = [_Item("test_it", number=number) for number in range(8)]
    assert [item.callspec.params["number"] for item in _kept(items, rule)] == [1, 4, 7]


def test_each_test_and_each_kind_of_case_keeps_some() -> None:
    rule = thinning.Rule(place="tests/doors/", every=9, rest="soak", of=lambda values: values["kind"])
    names = ("test_a", "test_b")
    items = [_Item(name, kind=kind, number=number) for name in names for kind in "xy" for number in "123"]
    assert [item.callspec.params["number"] for item in _kept(items, rule)] == ["3"] * 4


def test_what_has_no_cases_and_what_lies_elsewhere_is_left_alone() -> None:
    items = [_Item("test_a"), _Item("test_b")]
    assert _kept(items, thinning.Rule(place="tests/doors/", every=2, rest="once")) == items
    items = [_Item("test_a", number=number) for number in range(3)]
    assert _kept(items, thinning.Rule(place="tests/escape/", every=2, rest="once")) == items


@pytest.mark.parametrize("rule", thinning.RULES, ids=lambda rule: rule.place)
def test_a_rule_is_for_something_that_is_there(rule: thinning.Rule) -> None:
    path, _, name = rule.place.partition("::")
    assert (ROOT / path).exists() and rule.rest in ("once", "long", "soak")
    assert not name or f"def {name.replace('[', '(')}" in (ROOT / path).read_text()


ATTACK = "tests/escape/test_corpus.py::test_the_attack_fails[family-{name}-{level}]"


def test_an_attack_without_namespaces_is_left_out_where_the_gate_has_the_whole_level(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slow = ATTACK.format(name="slow", level=STRICT)
    monkeypatch.setattr(thinning.over_a_second, "listed", lambda: frozenset({slow}))
    told = {
        (name, level): thinning._shown_with_namespaces(ATTACK.format(name=name, level=level))
        for name in ("quick", "slow")
        for level in LEVELS
    }
    assert [case for case, shown in told.items() if shown] == [("quick", PARTIAL)]
    assert (thinning.STRICT, thinning.PARTIAL) == (STRICT, PARTIAL)
