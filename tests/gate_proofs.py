"""Which tests are in the gate, by name and without collecting: a promise must be attacked there.

A test is out of the gate if its file or its decorators carry a mark that the gate leaves out, or if it stands in
``over_a_second.txt`` without its cases.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from tests import over_a_second

TESTS = Path(__file__).resolve().parent
_OUT = frozenset({"long", "guest", "soak", "unsteady", "over_a_second"})


@cache
def in_gate() -> frozenset[str]:
    """The names of test functions of which the gate runs a case at least."""
    return frozenset(name for file in sorted(TESTS.rglob("test_*.py")) for name in _of_file(file))


def _of_file(file: Path) -> Iterator[str]:
    body = ast.parse(file.read_text(encoding="utf-8")).body
    if _marks(node.value for node in body if isinstance(node, ast.Assign) and _is_pytestmark(node)) & _OUT:
        return
    path = file.relative_to(TESTS.parent).as_posix()
    for node in body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            is_out = _marks(node.decorator_list) & _OUT or f"{path}::{node.name}" in over_a_second.listed()
            if not is_out:
                yield node.name


def _is_pytestmark(node: ast.Assign) -> bool:
    return any(isinstance(target, ast.Name) and target.id == "pytestmark" for target in node.targets)


def _marks(expressions: Iterable[ast.expr]) -> set[str]:
    """Each ``mark`` in ``pytest.mark.NAME``, except where it stands at a single case."""
    return {name for expression in expressions for name in _marks_in(expression)}


def _marks_in(expression: ast.AST) -> Iterator[str]:
    if isinstance(expression, ast.Call) and _name(expression.func) in ("parametrize", "param"):
        return
    if isinstance(expression, ast.Attribute) and _name(expression.value) == "mark":
        yield expression.attr
    for child in ast.iter_child_nodes(expression):
        yield from _marks_in(child)


def _name(expression: ast.AST) -> str:
    return expression.attr if isinstance(expression, ast.Attribute) else getattr(expression, "id", "")
