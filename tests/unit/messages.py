"""Every message that the package can raise, by the source: ``python -m tests.unit.messages`` prints them for reading.

A message is what an error of ours or of the standard library is made with, what a helper that makes one is given, or
what a ``Lack`` says: its text, its ``hint``, its ``fixes``. A name is followed to what the function, its module or the
module that it comes from assigns to it. Parts that are filled in at run time are shown as ``{…}``. ``… messages cli``
prints those of one directory.
"""

from __future__ import annotations

import ast
import builtins
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.unit.source import nodes_of, tree_of
from tests.unit.test_layers import MODULES, PACKAGE

Values = Mapping[str, list[ast.expr]]
"""Expressions by the name that they are given."""
_PLAIN = {name for name, kind in vars(builtins).items() if isinstance(kind, type) and issubclass(kind, Exception)}
_BESIDE = ("hint", "fixes", "fix", "problem", "missing")
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class Message(NamedTuple):
    """One text, where it stands and of which error it is a part."""

    place: str
    error: str
    part: str
    text: str


def messages() -> Iterator[Message]:
    """All of them, in the order of the files."""
    for path in MODULES:
        yield from of_module(str(path.relative_to(PACKAGE)), nodes_of(path), errors(), _imported(path))


@cache
def errors() -> frozenset[str]:
    """The names of all exception classes of the package and of Python."""
    return exceptions(node for path in MODULES for node in nodes_of(path))


def exceptions(nodes: Iterable[ast.AST]) -> frozenset[str]:
    """Python's own exceptions, and the classes among these nodes that are made from one."""
    bases = {node.name: {*map(_name, node.bases)} for node in nodes if isinstance(node, ast.ClassDef)}
    found = {*_PLAIN, "Exception", "BaseException"}
    while more := {name for name, above in bases.items() if above & found} - found:
        found |= more
    return frozenset(found)


def of_module(module: str, nodes: Sequence[ast.AST], known: frozenset[str], imported: Values) -> Iterator[Message]:
    """The messages of one module, whose nodes begin with its tree."""
    asked = {*known, *_helpers(nodes, known), "Lack"}
    raised = {node.exc for node in nodes if isinstance(node, ast.Raise)}
    for node, values in _calls(nodes[0], {**imported, **_assigned([nodes[0]])}):
        if _name(node.func) and (_name(node.func) in asked or node in raised):
            yield from _of_call(node, module, values)


def _helpers(nodes: Iterable[ast.AST], known: frozenset[str]) -> set[str]:
    """Functions that return an error, or make one of what they are given."""
    functions = [node for node in nodes if isinstance(node, _FUNCTIONS) and not node.name.startswith("__")]
    return {each.name for each in functions if _returns(each, known) or _makes(each, known)}


def _returns(function: ast.FunctionDef | ast.AsyncFunctionDef, known: frozenset[str]) -> bool:
    parts = ast.walk(function.returns) if function.returns else ()
    return any(_name(each) in known for each in parts if isinstance(each, ast.expr))


def _makes(function: ast.FunctionDef | ast.AsyncFunctionDef, known: frozenset[str]) -> bool:
    given = {each.arg for each in (*function.args.args, *function.args.kwonlyargs)}
    made = (each for each in ast.walk(function) if isinstance(each, ast.Call) and _name(each.func) in known)
    texts = (text for each in made for text in (*each.args, *(word.value for word in each.keywords)))
    return any(isinstance(text, ast.Name) and text.id in given for text in texts)


def _calls(node: ast.AST, values: Values) -> Iterator[tuple[ast.Call, Values]]:
    """Every call below a node, with the values of the names there."""
    for child in ast.iter_child_nodes(node):
        inside = {**values, **_assigned(child.body)} if isinstance(child, _FUNCTIONS) else values
        if isinstance(child, ast.Call):
            yield child, values
        yield from _calls(child, inside)


def _assigned(body: Iterable[ast.AST]) -> Values:
    """What these statements, and those in them, assign to names; not what functions and classes in them do."""
    found: defaultdict[str, list[ast.expr]] = defaultdict(list)
    waiting: list[ast.AST] = [*body]
    while waiting:
        node = waiting.pop(0)
        if isinstance(node, (*_FUNCTIONS, ast.ClassDef, ast.Lambda)):
            continue
        waiting += ast.iter_child_nodes(node)
        targets = node.targets if isinstance(node, ast.Assign) else \
            [node.target] if isinstance(node, (ast.AnnAssign, ast.NamedExpr)) else []  # fmt: skip
        value = getattr(node, "value", None)
        for target in targets if isinstance(value, ast.expr) else []:
            both = (target, value) if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) else None
            for name, each in zip(both[0].elts, both[1].elts, strict=False) if both else [(target, value)]:
                if isinstance(name, ast.Name):
                    found[name.id].append(each)
    return found


@cache
def _imported(path: Path) -> Values:
    """The constants that a module takes from others of the package."""
    found = {}
    for node in nodes_of(path):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ringfence"):
            place = PACKAGE.parent.joinpath(*str(node.module).split("."))
            source = next((each for each in (place.with_suffix(".py"), place / "__init__.py") if each.exists()), None)
            values = _assigned(tree_of(source).body) if source else {}
            found |= {each.asname or each.name: values[each.name] for each in node.names if each.name in values}
    return found


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _of_call(node: ast.Call, module: str, values: Values | None = None) -> Iterator[Message]:
    given = [*(("text", each) for each in node.args), *((word.arg, word.value) for word in node.keywords)]
    for part, value in given:
        for text in _texts(value, values or {}) if part == "text" or part in _BESIDE else ():
            if " " in text.strip():
                yield Message(f"{module}:{node.lineno}", _name(node.func), str(part), text)


def _texts(node: ast.expr, values: Values) -> Iterator[str]:
    """What the expression can come to, as far as it is written there, or where its names get their values."""
    if isinstance(node, ast.IfExp):
        yield from (*_texts(node.body, values), *_texts(node.orelse, values))
    elif isinstance(node, ast.BoolOp):
        for each in node.values:
            yield from _texts(each, values)
    elif isinstance(node, (ast.Tuple, ast.List)):
        for each in node.elts:
            yield from _texts(each, values)
    elif isinstance(node, ast.Name):
        others = {name: value for name, value in values.items() if name != node.id}
        for each in values.get(node.id, []):
            yield from _texts(each, others)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "format":
        yield from _texts(node.func.value, values)
    else:
        text = _text(node)
        if text:
            yield text


def _text(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else "{…}" for part in node.values)  # type: ignore[misc]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = _text(node.left), _text(node.right)
        return (left or "{…}") + (right or "{…}") if left or right else ""
    return ""


if __name__ == "__main__":
    chosen = sys.argv[1] if len(sys.argv) > 1 else ""
    for message in messages():
        if message.place.startswith(chosen):
            print(f"{message.place}: {message.error}.{message.part}: {message.text}")
