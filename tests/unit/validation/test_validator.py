"""``SecurityValidator``: the interface of the specification, corpora, every rule, and what must not bring it down."""

from __future__ import annotations

import ast
import re
import sys
import threading
import warnings
from dataclasses import fields
from pathlib import Path

import pytest

from ringfence.validation import Rules, SecurityValidationResult, SecurityValidator
from ringfence.validation.rules import Limits

MATERIAL = Path(__file__).resolve().parents[2] / "material" / "validator"


def snippets(name: str) -> list[tuple[str, str]]:
    """(title, code) of each piece of a file of pieces."""
    parts = re.split(r"^#### (.*)\n", (MATERIAL / name).read_text("utf-8"), flags=re.MULTILINE)
    return list(zip(parts[1::2], parts[2::2], strict=True))


MALICIOUS, HONEST, RULE_CASES = snippets("malicious.txt"), snippets("honest.txt"), snippets("rules.txt")
VALIDATOR = SecurityValidator()
TEXT = re.compile(r"line \d+, column \d+: .+: .+ \[[a-z-]+\]", re.DOTALL)
MADE_IN_CODE = {"unfinished", "null-byte", "code-size", "nesting", "not-text", "too-many", "work"}


def rules_of(code: str) -> set[str]:
    return {finding.rule for finding in VALIDATOR.validate(code).findings}


def test_the_corpora_are_as_large_as_they_should_be() -> None:
    assert len(MALICIOUS) >= 150 and len(HONEST) >= 150


@pytest.mark.parametrize(("title", "code"), MALICIOUS, ids=[title for title, _ in MALICIOUS])
def test_malicious_code_is_rejected_with_line_column_and_reason(title: str, code: str) -> None:
    valid, errors = VALIDATOR.validate_code(code)
    assert not valid and errors
    assert all(TEXT.fullmatch(error) and "[unfinished]" not in error for error in errors)


@pytest.mark.parametrize(("title", "code"), HONEST, ids=[title for title, _ in HONEST])
def test_honest_code_passes(title: str, code: str) -> None:
    assert VALIDATOR.validate_code(code) == (True, [])


def test_every_rule_has_a_case() -> None:
    assert {title for title, _ in RULE_CASES} | MADE_IN_CODE == {rule.id for rule in Rules().all}


@pytest.mark.parametrize(("rule", "code"), RULE_CASES, ids=[title for title, _ in RULE_CASES])
def test_each_rule_finds_what_it_is_for_and_nothing_once_it_is_silenced(rule: str, code: str) -> None:
    found = [each for each in VALIDATOR.validate(code).findings if each.rule == rule]
    assert found and all(each.category == VALIDATOR.rules.by_id[rule].category for each in found)
    silent = SecurityValidator(Rules(silenced={rule: "a test"}))
    left = [each for each in silent.validate(code).findings if each.rule == rule]
    assert bool(left) is (rule == "syntax"), "what can't be read is refused all the same"


@pytest.mark.parametrize("code", ["import socket\nsocket.socket()", "from socket import socket\nsocket()"])
def test_a_class_with_the_name_of_its_module_is_no_module_reached_through_another(code: str) -> None:
    assert rules_of(code) == {"network-module", "network-call"}
    assert "through-module" in rules_of("import socket\nsocket._socket")


# ---- the interface


def test_the_result_has_the_fields_of_the_specification_first() -> None:
    names = [each.name for each in fields(SecurityValidationResult)]
    assert names[:6] == ["is_valid", "errors", "warnings", "dangerous_imports", "file_operations", "network_operations"]


def test_a_result_sorts_findings_by_level_and_category() -> None:
    result = VALIDATOR.validate("import os, socket\nos.system('x')\nopen('/etc/x')\nopen('y')\n")
    assert not result.is_valid
    assert [len(each) for each in (result.errors, result.warnings)] == [3, 1]
    assert ["os.system" in text for text in result.dangerous_imports] == [True]
    assert ["socket" in text for text in result.network_operations] == [True]
    assert len(result.file_operations) == 2
    assert [finding.line for finding in result.findings] == [1, 2, 3, 4]
    assert result.errors[1].startswith("line 2, column 1: os.system: ")


@pytest.mark.parametrize(("method", "code"), [
    ("_check_dangerous_imports", "import os\nos.system('x')"),
    ("_check_dangerous_imports", "import subprocess"),
    ("_check_dangerous_imports", "eval('1')"),
    ("_check_file_operations", "open('/root/x')"),
    ("_check_network_operations", "import urllib.request"),
])  # fmt: skip
def test_each_check_takes_a_tree_and_tells_its_own_category(method: str, code: str) -> None:
    checks = ("_check_dangerous_imports", "_check_file_operations", "_check_network_operations")
    told = {name: getattr(VALIDATOR, name)(ast.parse(code)) for name in checks}
    assert [name for name in checks if told[name]] == [method]


def test_a_check_takes_an_expression_and_a_tree_without_places() -> None:
    assert VALIDATOR._check_dangerous_imports(ast.parse("eval('1')", mode="eval"))
    tree = ast.Module(body=[ast.Import(names=[ast.alias(name="pty")])], type_ignores=[])
    assert VALIDATOR._check_dangerous_imports(tree)


def test_columns_are_characters() -> None:
    (finding,) = VALIDATOR.validate("äöü = 1; x = eval('ß')").findings
    assert (finding.line, finding.column) == (1, 14)


def test_a_finding_shows_nothing_that_a_terminal_obeys() -> None:
    (error,) = VALIDATOR.validate("open('/etc/\\x1b[2J')").errors
    assert error.isprintable()


# ---- what must not bring it down


DEEP = {
    "brackets": "(" * 10_000 + ")" * 10_000,
    "lists": "[" * 10_000 + "]" * 10_000,
    "open brackets": "{" * 10_000,
    "calls": "f" + "()" * 10_000,
    "attributes": "a" + ".b" * 10_000,
    "sums": "1" + "+1" * 10_000,
    "minus": "-" * 10_000 + "1",
    "not": "not " * 10_000 + "1",
    "lambda": "lambda: " * 10_000 + "1",
    "powers": "1" + "**1" * 10_000,
    "choices": "1 if 1 else " * 10_000 + "1",
    "elif": "if 1:\n  pass\n" + "elif 1:\n  pass\n" * 10_000,
    "indents": "\n".join(" " * i + "if 1:" for i in range(10_000)),
    "f-string": 'f"{' + "1+" * 10_000 + '1}"',
    "f-string calls": 'f"{f' + "()" * 10_000 + '}"',
}


@pytest.mark.parametrize("kind", DEEP)
def test_ten_thousand_of_anything_in_each_other_are_refused(kind: str) -> None:
    assert rules_of(DEEP[kind]) <= {"nesting", "syntax", "code-size"} and not VALIDATOR.validate(DEEP[kind]).is_valid


def test_depth_is_bounded_before_the_parser_sees_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many calls in each other the caller allows: the parser's stack is C's."""
    monkeypatch.setattr(ast, "parse", lambda *_: pytest.fail("it was parsed"))
    for kind in ("brackets", "calls", "attributes", "sums", "minus", "f-string", "f-string calls"):
        assert rules_of(DEEP[kind]) == {"nesting"}


def test_ten_megabytes_are_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ast, "parse", lambda *_: pytest.fail("it was parsed"))
    assert rules_of("x = 1\n" * 1_700_000) == {"code-size"}


def test_a_null_byte_is_refused_by_its_place() -> None:
    (finding,) = VALIDATOR.validate("x = 1\ny = '\0'\n").findings
    assert (finding.rule, finding.line, finding.column) == ("null-byte", 2, 6)


@pytest.mark.parametrize("code", [b"x = 1", None, 3, "x = '\ud800'"])
def test_what_is_no_text_is_refused(code: object) -> None:
    result = VALIDATOR.validate(code)  # type: ignore[arg-type]
    assert [finding.rule for finding in result.findings] == ["not-text"]


def test_a_mistake_of_ours_refuses_what_made_it_happen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ringfence.validation.checks.Checker.check", lambda *_: {}["x"])
    assert rules_of("x = 1") == {"unfinished"}


def test_findings_end_somewhere() -> None:
    result = VALIDATOR.validate("eval('1')\n" * 5000)
    assert len(result.findings) == Limits().findings + 1
    assert "too-many" in {finding.rule for finding in result.findings}


def test_a_caller_deep_in_a_recursion_gets_the_same_answer() -> None:
    def deep(left: int) -> bool:
        return deep(left - 1) if left else VALIDATOR.validate("x = [1, (2, [3])]\n").is_valid

    used = len(__import__("inspect").stack(0))
    for left in range(25, 80, 5):
        assert deep(sys.getrecursionlimit() - used - left)


def test_warnings_of_the_parser_are_not_shown_and_no_errors() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert VALIDATOR.validate_code("x = '\\d'")[0]


def test_threads_share_a_validator() -> None:
    results: list[bool] = []
    code = dict(MALICIOUS)["walk: getattr os chr"] + "x = '\\d'\n"
    threads = [threading.Thread(target=lambda: results.append(VALIDATOR.validate(code).is_valid)) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [False] * 20


LOOP = "z = ''.join([y for c in 'ab'])\n[[z.x]]\n"


@pytest.mark.parametrize("loop", ["", LOOP])
def test_a_loop_does_not_change_what_a_name_means_outside_of_it(loop: str) -> None:
    """``y`` is ``c`` of the module, whatever the loop calls its items."""
    code = f"c = '/etc/passwd'\ny = c\n{loop}open(y)\n[[z.x]]\n"
    assert "file-outside" in rules_of(code)


def test_a_loop_that_spells_costs_no_more_than_its_bound() -> None:
    letters = "[" + ",".join(["115"] * 250) + "]"
    inner = "+".join(f"chr(c)+'{i}'" for i in range(100))
    assert not VALIDATOR.validate("import os\n" + f"getattr(os, ''.join({inner} for c in {letters}))\n" * 50).is_valid
