"""A submission that knows how counter-tests are made, and guesses from the text of a test file which tests are real.

Where it sees a test beside its twin, it compares them; else it judges each alone. It votes: what occurs more often is
real. It knows what authors write: conditions that are not negated, common exceptions, round numbers, rows in order,
longer lists, words in lower case.
"""

from __future__ import annotations

import ast
from collections import Counter
from itertools import pairwise
from random import Random

COMMON = ("ValueError", "TypeError", "KeyError", "IndexError", "AttributeError", "RuntimeError", "OSError")
Said = tuple[str, bool, object]
"""What is called, whether the condition is turned round, and what is expected."""


def said(function: ast.FunctionDef) -> Said:
    """Return what a test says, whatever its form is."""
    statement = function.body[0]
    if isinstance(statement, ast.With):
        call = statement.items[0].context_expr
        assert isinstance(call, ast.Call)
        return ast.unparse(statement.body[0]), False, ast.unparse(call.args[0])
    assert isinstance(statement, ast.Assert)
    test, turned = statement.test, False
    while isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        test, turned = test.operand, not turned
    if not isinstance(test, ast.Compare):
        return ast.unparse(test), turned, None
    turned ^= isinstance(test.ops[0], ast.NotEq | ast.NotIn)
    return ast.unparse(test.left), turned, eval(compile(ast.Expression(test.comparators[0]), "", "eval"))


def functions(text: str) -> dict[str, Said]:
    return {node.name: said(node) for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)}


def atoms(value: object) -> list[object]:
    if isinstance(value, list | tuple | set):
        return [atom for each in value for atom in atoms(each)]
    return [atom for each in value.values() for atom in atoms(each)] if isinstance(value, dict) else [value]


def looks(value: object) -> tuple[float, ...]:
    """How natural it looks: higher is better."""
    if isinstance(value, list | tuple) and value and all(isinstance(each, int) for each in value):
        steps = [two - one for one, two in pairwise(value)]
        return float(len(set(steps)) == 1), float(steps == sorted(steps)), float(all(s >= 0 for s in steps)), len(value)
    if isinstance(value, str):
        spoken = sum(one in "aeiou" and two not in "aeiou" for one, two in pairwise(value))
        common = float(value in COMMON) * (10 - COMMON.index(value)) if value in COMMON else 0.0
        return common, float(value == value.lower()), float(len(value)), float(spoken)
    if isinstance(value, int):
        return (float(len(str(value)) - len(str(value).rstrip("0"))),)
    return (float(len(value)),) if isinstance(value, dict | set) else (0.0,)


def together(text: str, rng: Random) -> set[str]:
    """Guess the real ones of a file that has both of each."""
    found, real = functions(text), set()
    votes = Counter(atom for *_, value in found.values() for atom in map(repr, atoms(value)))
    groups: dict[str, list[str]] = {}
    for name, (called, *_) in found.items():
        groups.setdefault(called, []).append(name)
    for names in groups.values():

        def score(name: str) -> tuple[object, ...]:
            _, turned, value = found[name]
            own = [votes[repr(atom)] for atom in atoms(value)]
            return not turned, looks(value)[:1], sum(own) / max(1, len(own)), looks(value), rng.random()

        real.add(max(names, key=score))
    return real


def alone(text: str, rng: Random) -> set[str]:
    """Guess the real ones of a file that has one of each. Both runs have to come to the same, so where nothing tells,
    it goes by what is the same in both: whether a number is even."""
    found, real = functions(text), set()
    votes = Counter(atom for *_, value in found.values() for atom in set(map(repr, atoms(value))))
    for name, (_, turned, value) in found.items():
        own = [votes[repr(atom)] for atom in atoms(value)]
        if turned:
            continue
        if value is None or max(own, default=0) > 1 or sum(map(ord, repr(value))) % 2 == 0:
            real.add(name)
    return real
