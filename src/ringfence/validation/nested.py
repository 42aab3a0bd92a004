"""Code inside the code: statements given to timers, and docstring examples where doctest runs them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.validation.checks import Checker

_MOST = 200
_MOST_CHARACTERS = 20_000
_EXAMPLE = re.compile(r"^[ \t]*(?:>>>|\.\.\.) ?(.*)$", re.MULTILINE)


def sources_of(checker: Checker, tree: ast.AST) -> list[ast.AST]:
    """The statements of all of them, each with the place of its container. What does not parse does not run."""
    calls = checker.calls
    texts = [*calls.sources, *checker.gathered.annotations]
    if checker.imports & {"cProfile", "profile"}:
        texts += calls.runs
    if calls.tests is not None:
        texts += [(example, node) for node in ast.walk(tree) for example in _examples(node)]
    return [statement for text, node in texts[:_MOST] for statement in _statements(text[:_MOST_CHARACTERS], node)]


def _statements(text: str, origin: ast.AST) -> list[ast.stmt]:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt | ast.expr):
            node.lineno, node.col_offset = getattr(origin, "lineno", 1), getattr(origin, "col_offset", 0)
    return tree.body


def _examples(node: ast.AST) -> Iterator[str]:
    body = getattr(node, "body", None)
    if not isinstance(body, list) or not body or not isinstance(body[0], ast.Expr):
        return
    text = getattr(body[0].value, "value", None)
    if isinstance(text, str) and ">>>" in text:
        yield "\n".join(_EXAMPLE.findall(text))
