"""What tests ask of a program: calls with arguments, and the right answers, read from ``assert`` without running it.

``assert double(21) == 42`` is a call and an answer that is compared outside. Any other form is for ``replay``, which
runs the tests themselves, apart from the program.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Sequence

from ringfence.errors import UsageError
from ringfence.model.record import record


@record
class Call:
    """One call of a function of the program."""

    name: str
    args: tuple[object, ...]
    kwargs: tuple[tuple[str, object], ...] = ()


@record
class Check:
    """A call, its required result, and the line that says so."""

    call: Call
    right: object
    line: str


def parsed(tests: str) -> ast.Module:
    try:
        return ast.parse(tests)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise UsageError(f"the tests can't be read: {error}", hint="write one assert per line") from None


def plain_checks(tree: ast.Module) -> list[Check] | None:
    """All statements as checks; None where one of them is more than that."""
    found = [_check(statement) for statement in tree.body]
    return None if None in found or not found else [check for check in found if check is not None]


def _check(statement: ast.stmt) -> Check | None:
    if not isinstance(statement, ast.Assert) or not isinstance(statement.test, ast.Compare):
        return None
    compared = statement.test
    if len(compared.ops) != 1 or not isinstance(compared.ops[0], ast.Eq):
        return None
    sides: Sequence[ast.expr] = (compared.left, compared.comparators[0])
    for asked, answer in (sides, sides[::-1]):
        call, right = _call(asked), _literal(answer)
        if call is not None and right is not None:
            return Check(call=call, right=right[0], line=ast.unparse(statement))
    return None


def _call(node: ast.expr) -> Call | None:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or hasattr(builtins, node.func.id):
        return None
    args = [_literal(each) for each in node.args]
    kwargs = [(each.arg, _literal(each.value)) for each in node.keywords]
    if None in args or any(name is None or value is None for name, value in kwargs):
        return None
    named = tuple((str(name), value[0]) for name, value in kwargs if value is not None)
    return Call(name=node.func.id, args=tuple(each[0] for each in args if each is not None), kwargs=named)


def _literal(node: ast.expr) -> tuple[object] | None:
    try:
        return (ast.literal_eval(node),)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None


def free_names(tree: ast.Module) -> tuple[str, ...]:
    """Names that the tests use and nobody has defined there: functions of the program."""
    used: set[str] = set()
    made: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            (used if isinstance(node.ctx, ast.Load) else made).add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            made.add(node.name)
        elif isinstance(node, ast.arg):
            made.add(node.arg)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            made |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ExceptHandler) and node.name:
            made.add(node.name)
    return tuple(sorted(used - made - set(dir(builtins))))
