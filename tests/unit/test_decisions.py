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


def _levels_named(nodes: Iterable[ast.AST], bound: Iterable[str] = ()) -> Iterator[int]:
    """The lines that ask for a level by its name: by comparison, also with a name for some of them, or by a call."""
    nodes = [*nodes]
    named = {*bound, *_bound_to_levels(nodes)}
    for node in nodes:
        asked: list[ast.expr] = [node.left, *node.comparators] if isinstance(node, ast.Compare) else []
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in QUESTIONS_OF_LEVELS:
            asked += node.args
        listed = [each for one in asked for each in getattr(one, "elts", [one])]
        if any(_is_level(each) or getattr(each, "id", getattr(each, "attr", "")) in named for each in listed):
            yield node.lineno


def _is_level(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "IsolationLevel"


def _bound_to_levels(nodes: Iterable[ast.AST]) -> set[str]:
    """Names that a module gives to several levels at once."""
    return {name.id for node in nodes if isinstance(node, ast.Assign) and any(map(_is_level, _elements(node.value)))
            for name in node.targets if isinstance(name, ast.Name)}  # fmt: skip


def _elements(value: ast.expr) -> list[ast.expr]:
    """Of a list, a tuple or a set, also one that is made by a call."""
    given = value.args[0] if isinstance(value, ast.Call) and value.args else value
    return given.elts if isinstance(given, ast.List | ast.Tuple | ast.Set) else []


QUESTIONS_OF_LEVELS = {"is_weaker", "backend_for", "traits_of"}
ABOVE_THE_BACKENDS = {"engine", "attest", "pytest_runner", "manager", "cli", "integrations", "service",
                      "docker_sandbox", "proctor", "client", "corpus"}  # fmt: skip


def test_no_door_decides_by_the_name_of_a_level() -> None:
    """A new level is one file and one row: what others have to know of it, it says by its traits."""
    trees = ((path.relative_to(PACKAGE), nodes_of(path)) for path in MODULES)
    doors = ((name, nodes) for name, nodes in trees if name.parts[0] in ABOVE_THE_BACKENDS)
    bound = _bound_to_levels(nodes_of(PACKAGE / "model" / "limits.py"))
    assert bound == {"HOST_LEVELS"}
    assert not [f"{name}:{line}" for name, nodes in doors for line in _levels_named(nodes, bound)]


@pytest.mark.parametrize("code", [
    "policy.isolation is IsolationLevel.STRICT", "policy.isolation in (IsolationLevel.NONE,)", "level in HOST_LEVELS",
    "OURS = (IsolationLevel.NONE, IsolationLevel.STRICT); level not in OURS", "level in limits.HOST_LEVELS",
    "OURS = frozenset({IsolationLevel.NONE}); level in OURS", "is_weaker(IsolationLevel.PROCESS, level)",
])  # fmt: skip
def test_the_check_sees_each_way_to_name_a_level(code: str) -> None:
    assert [*_levels_named(ast.walk(ast.parse(code)), {"HOST_LEVELS"})] == [1]


def test_no_text_for_people_decides_anything() -> None:
    trees = ((path.relative_to(PACKAGE), nodes_of(path)) for path in MODULES)
    assert not [f"{name}:{line}" for name, nodes in trees for line in _decisions(nodes)]


@pytest.mark.parametrize("code", [
    '"cgroup" in entry.mechanism', 'entry.mechanism == "Landlock"', 'row["mechanism"] != "none"',
    '"No such file" in str(error)', 'outcome.reason.partition("; ")[2]', 'box.enforced["x"].mechanism.startswith("c")',
])  # fmt: skip
def test_the_check_sees_such_a_decision(code: str) -> None:
    assert [*_decisions(ast.walk(ast.parse(code)))] == [1]
