"""docs/explanation/guarantees.md against the tests: what it names exists, and gaps are said to be gaps."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from tests.escape.promises import corpus, levels_of

from ringfence import IsolationLevel, SandboxPolicy, run
from ringfence.backends.conformance import CHECKS, perform_one
from ringfence.engine.run import BACKENDS

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "explanation" / "guarantees.md").read_text(encoding="utf-8")
CHECK_OF = {check.name: check for check in CHECKS}
ATTACKS = {f"{attack.family}: {attack.name}": levels_of(attack) for attack in corpus()}
UNPROVEN = ("*pending*", "not promised")


def table(header: str) -> list[list[str]]:
    """Header and rows of the table whose header line begins so."""
    lines = (header + TEXT.split(f"\n{header}", 1)[1]).splitlines()
    rows = lines[: next(place for place, line in enumerate(lines) if not line.startswith("|"))]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in (rows[0], *rows[2:])]


def named(cell: str) -> list[str]:
    return re.findall("`([^`]+)`", cell)


HEADER, *ROWS = table("| guarantee | none |")
_, *EVERYWHERE = table("| guarantee | proof |")
COLUMNS = {level: [row[place] for row in ROWS] for place, level in enumerate(HEADER) if place}
CELLS = [*(cell for row in ROWS for cell in row[1:]), *(row[1] for row in EVERYWHERE)]
NAMES = sorted({name for cell in CELLS for name in named(cell)})
WITHOUT_ISOLATION = sorted({name for cell in COLUMNS["none"] for name in named(cell)})


@pytest.fixture(scope="module")
def functions() -> set[str]:
    files = (ROOT / "tests").rglob("test_*.py")
    sources = (file.read_text(encoding="utf-8") for file in files)
    return {name for text in sources for name in re.findall(r"^def (test_\w+)\(", text, re.MULTILINE)}


@pytest.mark.parametrize("name", NAMES)
def test_everything_that_the_table_names_exists(name: str, functions: set[str]) -> None:
    assert name in CHECK_OF or name in functions or name in ATTACKS


@pytest.mark.parametrize("level", COLUMNS)
def test_an_attack_stands_only_in_the_column_of_a_level_that_promises_it(level: str) -> None:
    attacks = {name for cell in COLUMNS[level] for name in named(cell)} & ATTACKS.keys()
    assert [name for name in attacks if level not in ATTACKS[name]] == []


@pytest.mark.parametrize("cell", sorted(set(CELLS)))
def test_a_cell_names_its_proof_or_says_that_there_is_none(cell: str) -> None:
    left = cell
    for name in named(cell):
        left = left.replace(f"`{name}`", "")
    assert (not left.strip(", ") and named(cell)) or cell in UNPROVEN


def test_the_columns_are_the_isolation_levels() -> None:
    assert set(COLUMNS) == {str(level) for level in IsolationLevel}


def test_a_level_that_is_not_there_proves_nothing() -> None:
    for level in (level for level in IsolationLevel if level not in BACKENDS):
        assert set(COLUMNS[level]) <= set(UNPROVEN)


@pytest.mark.parametrize("check", sorted(CHECK_OF))
def test_every_check_of_the_suite_stands_in_the_column_of_the_process_level(check: str) -> None:
    assert check in {name for cell in COLUMNS["process"] for name in named(cell)}


@pytest.mark.system
@pytest.mark.skipif(sys.platform != "linux", reason="the table is about Linux")
@pytest.mark.parametrize("name", WITHOUT_ISOLATION)
def test_what_is_promised_without_isolation_holds(name: str) -> None:
    finding = perform_one(run, IsolationLevel.NONE, CHECK_OF[name], SandboxPolicy(allow_partial=True))
    assert finding.held and finding.proven, finding.problem
