"""How long the functions of the package are.

    python -m tests.unit.lengths [HOW_MANY]

prints the figures and the longest. A function's length is the number of lines that its statements take: without its
decorators, signature and docstring, without blank lines and lines that only comment. What a function inside it takes
counts for that one.
"""

from __future__ import annotations

import ast
import statistics
import sys
from pathlib import Path
from typing import NamedTuple

from tests.unit.source import nodes_of, text_of

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "ringfence"
Definition = ast.FunctionDef | ast.AsyncFunctionDef


class Length(NamedTuple):
    """One function, and how many lines it has."""

    lines: int
    name: str


def lengths_of(source: str, file: str = "") -> list[Length]:
    """Of each function in a module."""
    return _lengths(source, tuple(ast.walk(ast.parse(source))), file)


def _lengths(source: str, nodes: tuple[ast.AST, ...], file: str) -> list[Length]:
    code = _lines_with_code(source, nodes)
    functions = [node for node in nodes if isinstance(node, Definition)]
    return [Length(len(_own(node, functions) & code), f"{file}:{node.lineno} {node.name}") for node in functions]


def _lines_with_code(source: str, nodes: tuple[ast.AST, ...]) -> set[int]:
    """All but blank ones and comments; in a string of many lines those count too."""
    words = ((number, line.strip()) for number, line in enumerate(source.splitlines(), 1))
    strings = [node for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)]
    inside = {line for node in strings for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)}
    return inside | {number for number, line in words if line and not line.startswith("#")}


def _own(function: Definition, functions: list[Definition]) -> set[int]:
    """Its lines, without those of functions in it."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    deeper = [node for node in functions if node.col_offset > function.col_offset]
    inner = [node for node in deeper if function.lineno <= node.lineno <= (function.end_lineno or 0)]
    return {line for node in body for line in _span(node)} - {line for node in inner for line in _span(node)}


def _span(node: ast.stmt) -> range:
    decorators = [each.lineno for each in getattr(node, "decorator_list", ())]
    return range(min([node.lineno, *decorators]), (node.end_lineno or node.lineno) + 1)


def of_the_package() -> list[Length]:
    """Of all functions, the longest first."""
    files = sorted(PACKAGE.rglob("*.py"))
    found = [each for path in files for each in _lengths(text_of(path), nodes_of(path), str(path.relative_to(PACKAGE)))]
    return sorted(found, reverse=True)


def figures(found: list[Length]) -> tuple[float, float]:
    """The median, and what nine of ten do not exceed."""
    lines = [each.lines for each in found]
    return statistics.median(lines), statistics.quantiles(lines, n=10, method="inclusive")[-1]


def main(how_many: int) -> None:
    found = of_the_package()
    median, p90 = figures(found)
    print(f"{len(found)} functions: median {median:g}, p90 {p90:g}, longest {found[0].lines}")
    for each in found[:how_many]:
        print(f"{each.lines:4} {each.name}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 30)
