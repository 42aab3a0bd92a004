"""docs/reference/platforms.md says what the tables say, and the table of deviations is true."""

from __future__ import annotations

import ast

from tests import platforms

from ringfence.backends.conformance import CHECKS, ON_WINDOWS, checks_here

_OF_POSIX = ("os.fork", "signal", "getsid", "/proc", "/dev/null", "os.pread", "_thread", "'big'")
"""What the probes use of what Windows has not, or does not count."""


def test_the_document_is_what_the_tables_make() -> None:
    assert platforms.PATH.read_text(encoding="utf-8") == platforms.text(), "run python -m tests.platforms"


def test_a_check_is_left_out_where_its_probe_needs_what_windows_has_not() -> None:
    needing = {check.name for check in CHECKS if any(word in check.probe for word in _OF_POSIX)}
    assert needing == set(ON_WINDOWS)


def test_all_others_run_there() -> None:
    assert {check.name for check in checks_here(windows=True)} == {check.name for check in CHECKS} - set(ON_WINDOWS)
    assert checks_here(windows=False) == CHECKS
    assert {"deadline", "memory", "output", "environment"} <= {check.name for check in checks_here(windows=True)}


def test_what_attacks_the_same_is_there() -> None:
    program = platforms.PATH.parents[2] / "tests" / "programs" / "windows_checks.py"
    functions = {node.name for node in ast.walk(ast.parse(program.read_text())) if isinstance(node, ast.FunctionDef)
                 and node.decorator_list}  # fmt: skip
    assert {instead for _, instead in ON_WINDOWS.values() if instead} <= functions
