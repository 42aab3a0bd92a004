"""The package's modules as trees: each is read and parsed once for all tests of a worker."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path


@cache
def text_of(path: Path) -> str:
    """The source of a module."""
    return path.read_text(encoding="utf-8")


@cache
def tree_of(path: Path) -> ast.Module:
    """Its tree, which nobody changes."""
    return ast.parse(text_of(path))


@cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """All nodes of it."""
    return tuple(ast.walk(tree_of(path)))
