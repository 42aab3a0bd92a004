"""Every message that the package can raise, by the source: ``python -m tests.unit.messages`` prints them for reading.

A message is what an error of ours or of the standard library is made with: its text, its ``hint``, its ``fixes``.
Parts that are filled in at run time are shown as ``{…}``. ``… messages cli`` prints those of one directory.
"""

from __future__ import annotations

import ast
import builtins
import sys
from collections.abc import Iterator
from typing import NamedTuple

from tests.unit.source import nodes_of
from tests.unit.test_layers import MODULES, PACKAGE

from ringfence import errors

_OURS = {name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, BaseException)}
_PLAIN = {name for name, kind in vars(builtins).items() if isinstance(kind, type) and issubclass(kind, Exception)}
_BESIDE = ("hint", "fixes", "problem")


class Message(NamedTuple):
    """One text, where it stands and of which error it is a part."""

    place: str
    error: str
    part: str
    text: str


def messages() -> Iterator[Message]:
    """All of them, in the order of the files."""
    for path in MODULES:
        name = str(path.relative_to(PACKAGE))
        for node in nodes_of(path):
            if isinstance(node, ast.Call) and _name(node.func) in _OURS | _PLAIN:
                yield from _of_call(node, name)


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _of_call(node: ast.Call, module: str) -> Iterator[Message]:
    given = [*(("text", each) for each in node.args), *((word.arg, word.value) for word in node.keywords)]
    for part, value in given:
        for text in _texts(value) if part == "text" or part in _BESIDE else ():
            if " " in text.strip():
                yield Message(f"{module}:{node.lineno}", _name(node.func), str(part), text)


def _texts(node: ast.expr) -> Iterator[str]:
    """What the expression can come to, as far as it is written there."""
    if isinstance(node, ast.IfExp):
        yield from (*_texts(node.body), *_texts(node.orelse))
    elif isinstance(node, (ast.Tuple, ast.List)):
        for each in node.elts:
            yield from _texts(each)
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
        return _text(node.left) + _text(node.right)
    return ""


if __name__ == "__main__":
    chosen = sys.argv[1] if len(sys.argv) > 1 else ""
    for message in messages():
        if message.place.startswith(chosen):
            print(f"{message.place}: {message.error}.{message.part}: {message.text}")
