"""Where a test says what it expects, and how each such spot is made wrong. Pure: syntax trees of single tests.

A spot is used only where the test and the changed one contradict each other, whatever the code under test does: an
equality with another value, a negated condition, another exception. ``"b" in x`` does not contradict ``"a" in x``, so
it is only negated. A spot must also be reached whenever the test comes to its end: a statement in a branch, in a loop
over what the code under test returned or after a ``return`` might be skipped, and then both would pass for an honest
program.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Iterator
from random import Random

from ringfence.model.record import record
from ringfence.proctor.plausible import World, same, values_in, wrong

TestFunction = ast.FunctionDef | ast.AsyncFunctionDef
Change = Callable[[Random, World], bool]
_EQUAL_CALLS = frozenset({
    "assertEqual", "assertListEqual", "assertDictEqual", "assertTupleEqual", "assertSetEqual", "assertSequenceEqual",
    "assertMultiLineEqual",
})  # fmt: skip
_OPPOSITES = (
    ("assertEqual", "assertNotEqual"), ("assertTrue", "assertFalse"), ("assertIn", "assertNotIn"),
    ("assertIs", "assertIsNot"), ("assertIsNone", "assertIsNotNone"), ("assertIsInstance", "assertNotIsInstance"),
    ("assertLess", "assertGreaterEqual"), ("assertGreater", "assertLessEqual"),
    ("assertAlmostEqual", "assertNotAlmostEqual"), ("assertRegex", "assertNotRegex"),
)  # fmt: skip
_TURNED_CALL = {one: other for pair in _OPPOSITES for one, other in (pair, pair[::-1])}
_WITH_MESSAGES = frozenset({*_TURNED_CALL, *_EQUAL_CALLS})
_ALMOST = frozenset({"assertAlmostEqual", "assertNotAlmostEqual"})
_OF_ONE_VALUE = frozenset({"assertTrue", "assertFalse", "assertIsNone", "assertIsNotNone"})
_TURNED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
    ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE, ast.LtE: ast.Gt,
}  # fmt: skip
_RAISING = frozenset({"raises", "assertRaises", "assertRaisesRegex"})
_EXCHANGED = (("ValueError", "RuntimeError"), ("TypeError", "NameError"), ("KeyError", "OSError"),
              ("IndexError", "ZeroDivisionError"), ("AttributeError", "ImportError"))  # fmt: skip
"""Each replaces the other, so neither gives itself away. No program makes a class that is both."""
_OTHER_EXCEPTION = {one: other for pair in _EXCHANGED for one, other in (pair, pair[::-1])}
_OTHER_EXCEPTIONS = ("ZeroDivisionError", "OSError", "NameError", "EOFError", "RuntimeError", "ImportError")
"""For all others, such as ``FileNotFoundError``."""
_PASSING_ROOTS = frozenset({
    "pytest", "mock", "unittest", "monkeypatch", "warnings", "tempfile", "open", "patch", "caplog",
})  # fmt: skip
"""Modules whose context managers let an exception inside them pass."""
_CASE_DIGITS = 10


@record
class Spot:
    """One place that can be made wrong."""

    change: Change
    """Changes the tree; false: nothing here can be made wrong after all."""
    by_value: bool = True
    """Another value is expected. Else a condition is negated, which is easier to see through."""
    case: str = ""
    """The id of the one case that it is about; empty: of all of them."""


def spots(function: TestFunction) -> list[Spot]:
    """Return all of them, in the order of the text."""
    found = [*_of_cases(function)]
    for statement in reached(function.body):
        found += _of_statement(statement, function)
    return found


def reached(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Return the statements that run whenever the test comes to its end without an exception."""
    for statement in body:
        yield statement
        if _enters(statement):
            yield from reached(getattr(statement, "body", []))
        if any(isinstance(node, ast.Return | ast.Break | ast.Continue) for node in _own(statement)):
            return


def _enters(statement: ast.stmt) -> bool:
    """Whether the statements in it run too."""
    if isinstance(statement, ast.With | ast.AsyncWith):
        return all(_is_passing(_dotted(item.context_expr)) for item in statement.items)
    return isinstance(statement, ast.For) and _runs(statement.iter)


def _own(node: ast.AST) -> Iterator[ast.AST]:
    """Itself and what is below it, without the insides of functions and classes."""
    yield node
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
        for child in ast.iter_child_nodes(node):
            yield from _own(child)


def _runs(iterated: ast.expr) -> bool:
    """Whether a loop over it certainly runs: a literal that is not empty, or a range with a positive length."""
    if isinstance(iterated, ast.List | ast.Tuple):
        return any(not isinstance(each, ast.Starred) for each in iterated.elts)
    if _dotted(iterated) != ["range"] or not isinstance(iterated, ast.Call) or len(iterated.args) != 1:
        return False
    count = getattr(iterated.args[0], "value", 0)
    return isinstance(count, int) and count > 0


def _is_passing(name: list[str]) -> bool:
    if not name or name[-1] in _RAISING:
        return False
    return name[0] in _PASSING_ROOTS or name == ["self", "subTest"]


def _dotted(node: ast.expr) -> list[str]:
    """The name of what is called, in its parts; empty: it is not a call of a name."""
    parts: list[str] = []
    inner: ast.expr = node.func if isinstance(node, ast.Call) else node
    while isinstance(inner, ast.Attribute):
        parts.append(inner.attr)
        inner = inner.value
    return [inner.id, *reversed(parts)] if isinstance(inner, ast.Name) else []


def _of_statement(statement: ast.stmt, function: TestFunction) -> Iterator[Spot]:
    if isinstance(statement, ast.Assert):
        for compare in _equalities(statement.test):
            yield from _of_equality(compare, function)
        yield Spot(change=_turning(statement), by_value=False)
    elif isinstance(statement, ast.With) and len(statement.items) == 1:
        yield from _of_raising(statement.items[0].context_expr)
    elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        yield from _of_method(statement.value, function)


# ---- asserts


def _equalities(test: ast.expr) -> Iterator[ast.Compare]:
    """The comparisons for equality that all have to hold."""
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        for each in test.values:
            yield from _equalities(each)
    elif isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq):
        yield test


def _of_equality(compare: ast.Compare, function: TestFunction) -> Iterator[Spot]:
    """Yield a spot of the right side, or else of the left."""
    if values_in(compare.left) and values_in(compare.comparators[0]) and _plain_literals(compare):
        return

    def set_right(node: ast.expr) -> None:
        compare.comparators[0] = node

    def set_left(node: ast.expr) -> None:
        compare.left = node

    yield from _of_expected(compare.comparators[0], set_right, function)
    yield from _of_expected(compare.left, set_left, function)


def _plain_literals(compare: ast.Compare) -> bool:
    return not any(isinstance(node, ast.Name | ast.Call) for node in ast.walk(compare))


def _of_expected(node: ast.expr, put: Callable[[ast.expr], None], function: TestFunction) -> Iterator[Spot]:
    """A value in the comparison itself, or the value of a variable that is used there alone."""
    if isinstance(node, ast.Name):
        assigned = _only_assignment(node.id, function)
        if assigned is None:
            return
        statement: ast.Assign = assigned
        node, put = statement.value, lambda new: setattr(statement, "value", new)

    def change(rng: Random, world: World) -> bool:
        other = wrong(node, world, rng)
        if other is not None:
            put(other)
        return other is not None

    yield Spot(change=change)


def _only_assignment(name: str, function: TestFunction) -> ast.Assign | None:
    """Where it gets its value, if it is assigned exactly once at the top, and used exactly once."""
    used = [node for node in ast.walk(function) if isinstance(node, ast.Name) and node.id == name]
    if len(used) != 2 or sum(isinstance(node.ctx, ast.Load) for node in used) != 1:
        return None
    assigned = [each for each in function.body if isinstance(each, ast.Assign) and each.targets[0] in used]
    return assigned[0] if len(assigned) == 1 and len(assigned[0].targets) == 1 else None


def _turning(statement: ast.Assert) -> Change:
    def change(rng: Random, world: World) -> bool:
        statement.test = turned(statement.test)
        return True

    return change


def turned(test: ast.expr) -> ast.expr:
    """Return a condition that holds where this one does not."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return test.operand
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        return ast.Compare(left=test.left, ops=[_TURNED[type(test.ops[0])]()], comparators=test.comparators)
    return ast.UnaryOp(op=ast.Not(), operand=test)


# ---- exceptions, and the methods of unittest


def _of_raising(call: ast.expr) -> Iterator[Spot]:
    if not isinstance(call, ast.Call) or not call.args or (_dotted(call) or [""])[-1] not in _RAISING:
        return
    named = call.args[0]
    name = named.id if isinstance(named, ast.Name) else ""
    raised = getattr(builtins, name, None)
    if not isinstance(raised, type) or not issubclass(raised, Exception) or raised is Exception:
        return
    others = [each for each in _OTHER_EXCEPTIONS if not _related(getattr(builtins, each), raised)]
    others = [_OTHER_EXCEPTION[name]] if name in _OTHER_EXCEPTION else others

    def change(rng: Random, world: World) -> bool:
        call.args[0] = ast.Name(id=rng.choice(others), ctx=ast.Load())
        return True

    yield Spot(change=change)


def _related(one: type, other: type) -> bool:
    return issubclass(one, other) or issubclass(other, one)


def _of_method(call: ast.Call, function: TestFunction) -> Iterator[Spot]:
    name = _dotted(call)
    if len(name) != 2 or name[0] != "self":
        return
    if name[1] in _RAISING:
        yield from _of_raising(call)
    if (name[1] in _EQUAL_CALLS or (name[1] == "assertAlmostEqual" and not call.keywords)) and len(call.args) == 2:
        yield from _of_argument(call, 1, function)
        yield from _of_argument(call, 0, function)
    if name[1] in _TURNED_CALL:
        yield Spot(change=_renaming(call, _TURNED_CALL[name[1]]), by_value=False)


def _of_argument(call: ast.Call, place: int, function: TestFunction) -> Iterator[Spot]:
    def put(node: ast.expr) -> None:
        call.args[place] = node

    return _of_expected(call.args[place], put, function)


def _renaming(call: ast.Call, name: str) -> Change:
    def change(rng: Random, world: World) -> bool:
        assert isinstance(call.func, ast.Attribute)
        call.func.attr = name
        return True

    return change


# ---- tables of cases


def tables(function: TestFunction) -> Iterator[tuple[ast.Call, list[str], list[ast.expr]]]:
    """Return each ``parametrize`` whose rows are written in the text, with its names and rows."""
    for call in function.decorator_list:
        if not isinstance(call, ast.Call) or _dotted(call)[-1:] != ["parametrize"] or len(call.args) != 2:
            continue
        names, rows = _names(call.args[0]), getattr(call.args[1], "elts", [])
        if names and rows and not any(isinstance(row, ast.Starred | ast.Call) for row in rows):
            yield call, names, rows


def _names(node: ast.expr) -> list[str]:
    try:
        value = ast.literal_eval(node)
    except (ValueError, SyntaxError):
        return []
    words = value.split(",") if isinstance(value, str) else value
    return [str(word).strip() for word in words]


def name_cases(function: TestFunction, rng: Random) -> None:
    """Give each case an id that does not reveal its values: a test and its twin then have the same ids."""
    for call, _, rows in tables(function):
        if not call.keywords:
            ids: list[ast.expr] = [ast.Constant(f"{rng.getrandbits(4 * _CASE_DIGITS):0{_CASE_DIGITS}x}") for _ in rows]
            call.keywords.append(ast.keyword(arg="ids", value=ast.List(elts=ids, ctx=ast.Load())))


def _of_cases(function: TestFunction) -> Iterator[Spot]:
    """What a case expects: the column whose name is one side of an equality, and used nowhere else."""
    expected = _compared_names(function)
    for call, names, rows in tables(function):
        ids = next((each.value for each in call.keywords if each.arg == "ids"), None)
        if not isinstance(ids, ast.List) or len(ids.elts) != len(rows):
            continue
        for column, name in enumerate(names):
            if name in expected and _is_used_once(name, function):
                for row, word in zip(rows, ids.elts, strict=True):
                    yield from _of_case(row, column, len(names), str(getattr(word, "value", "")))


def _of_case(row: ast.expr, column: int, width: int, case: str) -> Iterator[Spot]:
    if not isinstance(row, ast.Tuple | ast.List) or len(row.elts) != width or width < 2 or not _is_ours(case):
        return

    def change(rng: Random, world: World) -> bool:
        other = wrong(row.elts[column], world, rng)
        if other is not None:
            row.elts[column] = other
        return other is not None

    yield Spot(change=change, case=case)


def _is_ours(case: str) -> bool:
    """Whether ``name_cases`` gave it that id; an id of the author's may be a part of another."""
    return len(case) == _CASE_DIGITS and not set(case) - set("0123456789abcdef")


def _compared_names(function: TestFunction) -> set[str]:
    found: list[ast.expr] = []
    for statement in reached(function.body):
        if isinstance(statement, ast.Assert):
            for compare in _equalities(statement.test):
                found += [compare.left, *compare.comparators]
    return {node.id for node in found if isinstance(node, ast.Name)}


def _is_used_once(name: str, function: TestFunction) -> bool:
    return sum(isinstance(node, ast.Name) and node.id == name for node in ast.walk(function)) == 1


# ---- what stays of a test in the file that is run


def rewrite(function: TestFunction, rng: Random, *, turn: bool) -> None:
    """Write the expectations in equivalent forms, chosen at random. ``turn``: also ``a == b`` as ``not a != b``, which
    is the same for sanely compared values; it must have been tried on the reference."""
    for statement in reached(function.body):
        if isinstance(statement, ast.Assert):
            for compare in _equalities(statement.test):
                compare.left, compare.comparators = same(compare.left, rng), [same(compare.comparators[0], rng)]
            if turn and rng.random() < 0.3 and [*_equalities(statement.test)] == [statement.test]:
                statement.test = ast.UnaryOp(op=ast.Not(), operand=turned(statement.test))


def without_words(function: TestFunction) -> None:
    """Remove what is there for people and reveals the right values: docstring and messages."""
    if ast.get_docstring(function, clean=False) is not None:
        function.body = function.body[1:] or [ast.Pass()]
    for node in ast.walk(function):
        if isinstance(node, ast.Assert):
            node.msg = None
        elif isinstance(node, ast.Call) and len(name := _dotted(node)) == 2 and name[1] in _WITH_MESSAGES:
            node.keywords = [each for each in node.keywords if each.arg != "msg"]
            del node.args[_arguments(name[1]) :]


def _arguments(method: str) -> int:
    """How many come before the message."""
    return 1 if method in _OF_ONE_VALUE else 3 if method in _ALMOST else 2
