"""docs/explanation/guarantees.md against the tests: what it names exists, and gaps are said to be gaps."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from tests.escape.promises import corpus, levels_of
from tests.gate_proofs import in_gate

from ringfence import IsolationLevel, SandboxPolicy, run
from ringfence.backends.conformance import APART, CHECKS, perform_one
from ringfence.engine.run import BACKENDS

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "explanation" / "guarantees.md").read_text(encoding="utf-8")
MODEL = (ROOT / "THREAT-MODEL.md").read_text(encoding="utf-8")
CHECK_OF = {check.name: check for check in (*CHECKS, *APART)}
ATTACKS = {f"{attack.family}: {attack.name}": levels_of(attack) for attack in corpus()}
UNPROVEN = ("*pending*", "not promised")


def table(header: str, text: str = TEXT) -> list[list[str]]:
    """Header and rows of the table whose header line begins so."""
    lines = (header + text.split(f"\n{header}", 1)[1]).splitlines()
    rows = lines[: next(place for place, line in enumerate(lines) if not line.startswith("|"))]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in (rows[0], *rows[2:])]


def named(cell: str) -> list[str]:
    return re.findall("`([^`]+)`", cell)


def proven_in_the_gate() -> set[str]:
    """Of an attack and of a check the gate has a level at least: tests/unit/test_second_runs.py holds that."""
    return {*ATTACKS, *CHECK_OF, *in_gate()}


HEADER, *ROWS = table("| guarantee | none |")
_, *EVERYWHERE = table("| guarantee | proof |")
_, *PROMISES = table("| promise |", MODEL)
_, *OF_THE_SERVICE = table("| attack | what protects against it |")
NAMED_BY_THE_MODEL = sorted(set(re.findall(r"`(test_\w+)`", MODEL)))
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


@pytest.mark.parametrize("row", PROMISES, ids=lambda row: row[0])
def test_every_promise_names_attacks_and_the_gate_has_each(row: list[str]) -> None:
    assert named(row[-1]) and set(named(row[-1])) <= proven_in_the_gate()


def test_the_output_of_selfcheck_is_that_of_all_its_checks() -> None:
    (block,) = re.findall(r"```text\n(.*?)\n\n(\d+) of \2 promises held on level strict\n```", TEXT, re.DOTALL)
    assert block[0].splitlines() == [f"held      {check.promise}" for check in (*CHECKS, *APART)]
    assert int(block[1]) == len((*CHECKS, *APART)) and f"leaves out the last {len(APART)}" in TEXT


@pytest.mark.parametrize("row", OF_THE_SERVICE, ids=lambda row: row[0])
def test_every_attack_on_the_service_is_tried_in_the_gate(row: list[str]) -> None:
    assert not proven_in_the_gate().isdisjoint(named(row[-1]))


@pytest.mark.parametrize("name", NAMED_BY_THE_MODEL)
def test_every_test_that_the_threat_model_names_is_in_the_gate(name: str) -> None:
    assert name in in_gate()


@pytest.mark.parametrize("level", ["process", "strict"])
def test_every_guarantee_of_a_level_without_an_engine_has_a_proof_in_the_gate(level: str) -> None:
    assert [row[0] for row, cell in zip(ROWS, COLUMNS[level], strict=True)
            if named(cell) and proven_in_the_gate().isdisjoint(named(cell))] == []  # fmt: skip


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


@pytest.mark.parametrize("level", ["process", "strict", "container"])
def test_every_check_of_the_suite_stands_in_the_column_of_its_levels(level: str) -> None:
    checks = CHECKS if level == "process" else (*CHECKS, *APART)
    assert {check.name for check in checks} <= {name for cell in COLUMNS[level] for name in named(cell)}


@pytest.mark.system
@pytest.mark.skipif(sys.platform != "linux", reason="the table is about Linux")
@pytest.mark.parametrize("name", WITHOUT_ISOLATION)
def test_what_is_promised_without_isolation_holds(name: str) -> None:
    finding = perform_one(run, IsolationLevel.NONE, CHECK_OF[name], SandboxPolicy(allow_partial=True))
    assert finding.held and finding.proven, finding.problem
