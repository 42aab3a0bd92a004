"""Texts for people decide nothing: who rewords a table or a reason must not change what is enforced or returned."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

import pytest
from tests.unit.source import nodes_of
from tests.unit.test_layers import MODULES, PACKAGE

pytestmark = pytest.mark.unmeasured

TEXTS = {"mechanism", "reason", "details"}
QUESTIONS = {"startswith", "endswith", "find", "rfind", "index", "count", "partition", "rpartition", "split", "rsplit",
             "removeprefix", "removesuffix"}  # fmt: skip


def _is_text(node: ast.AST) -> bool:
    """Whether it is such a text: by attribute, by key, or what an error says."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "str":
        return any(isinstance(word, ast.Name) and word.id == "error" for word in node.args)
    if isinstance(node, ast.Subscript):
        return isinstance(node.slice, ast.Constant) and node.slice.value in TEXTS
    return isinstance(node, ast.Attribute) and node.attr in TEXTS


def _decisions(nodes: Iterable[ast.AST]) -> Iterator[int]:
    """The lines that compare such a text, or take it apart."""
    for node in nodes:
        asked: list[ast.expr] = [node.left, *node.comparators] if isinstance(node, ast.Compare) else []
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in QUESTIONS:
            asked.append(node.func.value)
        if isinstance(node, ast.Match):
            asked.append(node.subject)
        if any(map(_is_text, asked)):
            yield node.lineno


def _levels_named(nodes: Iterable[ast.AST]) -> Iterator[int]:
    """The lines that compare with a level by its name."""
    for node in nodes:
        for each in [node.left, *node.comparators] if isinstance(node, ast.Compare) else []:
            if isinstance(each, ast.Attribute) and getattr(each.value, "id", "") == "IsolationLevel":
                yield node.lineno


ABOVE_THE_BACKENDS = {"engine", "attest", "pytest_runner", "manager", "cli", "integrations"}


def test_no_door_decides_by_the_name_of_a_level() -> None:
    """A new level is one file and one row: what others have to know of it, it says by its traits."""
    trees = ((path.relative_to(PACKAGE), nodes_of(path)) for path in MODULES)
    doors = ((name, nodes) for name, nodes in trees if name.parts[0] in ABOVE_THE_BACKENDS)
    assert not [f"{name}:{line}" for name, nodes in doors for line in _levels_named(nodes)]
    assert [*_levels_named(ast.walk(ast.parse("policy.isolation is IsolationLevel.STRICT")))] == [1]


def test_no_text_for_people_decides_anything() -> None:
    trees = ((path.relative_to(PACKAGE), nodes_of(path)) for path in MODULES)
    assert not [f"{name}:{line}" for name, nodes in trees for line in _decisions(nodes)]


@pytest.mark.parametrize("code", [
    '"cgroup" in entry.mechanism', 'entry.mechanism == "Landlock"', 'row["mechanism"] != "none"',
    '"No such file" in str(error)', 'outcome.reason.partition("; ")[2]', 'box.enforced["x"].mechanism.startswith("c")',
])  # fmt: skip
def test_the_check_sees_such_a_decision(code: str) -> None:
    assert [*_decisions(ast.walk(ast.parse(code)))] == [1]
