"""Every docstring begins as a sentence does; every example in one is run, and gives what is written under it."""

from __future__ import annotations

import ast
import doctest
import importlib
import re
import sys
from pathlib import Path

import pytest
from tests.unit.source import nodes_of

pytestmark = pytest.mark.system

SOURCE = Path(__file__).resolve().parents[2] / "src"
WITH_EXAMPLES = sorted(path for path in SOURCE.rglob("*.py") if ">>> " in path.read_text(encoding="utf-8"))
WITH_DOCSTRINGS = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def _name(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts)


@pytest.mark.parametrize("path", WITH_EXAMPLES, ids=_name)
def test_the_examples_of_a_docstring_give_what_is_written(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if sys.platform != "linux" and path.parent.name == "engine":
        pytest.skip("these run jobs")
    monkeypatch.chdir(tmp_path)
    found = doctest.testmod(importlib.import_module(_name(path)))
    assert found.attempted and not found.failed


def _openings() -> list[str]:
    """Where each docstring is, and how it begins."""
    found: list[str] = []
    for path in sorted(SOURCE.rglob("*.py")):
        nodes = [node for node in nodes_of(path) if isinstance(node, WITH_DOCSTRINGS)]
        found += [f"{_name(path)}: {(ast.get_docstring(node) or '')[:60]}" for node in nodes]
    return found


def test_no_docstring_begins_with_a_word_that_belongs_to_the_one_before_it() -> None:
    """«Of one box.» and «One of them.» are no sentences: who reads one alone does not know what it is."""
    openings = _openings()
    assert len(openings) > 1000
    assert not [each for each in openings if re.search(r": (Of |One (of )?[a-z]+\.(\s|$))", each)]
