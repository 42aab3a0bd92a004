"""Check Python code, without running it, for what does not belong in a sandboxed job.

It is advice and a fast reject, never the boundary: code that passes still belongs in a sandbox.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable

from ringfence.validation.result import SecurityValidationResult
from ringfence.validation.rules import Rules

EXAMPLES = """\
examples:
  ringfence validate strategy.py
  ringfence validate src/*.py --sarif > findings.sarif      (for code scanning)
  generate | ringfence validate - --json
  ringfence validate strategy.py --rules rules.yaml         (docs/reference/validator.md says what it can contain)

A path of - is the standard input. The exit code is 0 when no file has an error (there may be warnings), 1 when one has,
and 2 when a file or the rules can't be read.
"""

_SILENT = "--quiet"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", metavar="FILE", help="Python code; - is the standard input")
    parser.add_argument("--rules", metavar="FILE", help="a project's own rules (YAML)")
    parser.add_argument(_SILENT, "-q", action="store_true", help="do not print warnings")
    shape = parser.add_mutually_exclusive_group()
    shape.add_argument("--json", action="store_true", help="print findings as JSON")
    shape.add_argument("--sarif", action="store_true", help="print findings as SARIF 2.1.0")


def execute(arguments: argparse.Namespace) -> int:
    rules = _rules(arguments.rules)
    results = {name: _validated(name, rules) for name in dict.fromkeys(arguments.files)}
    if arguments.sarif:
        _print_sarif(results, rules)
    elif arguments.json:
        _print_json(results)
    else:
        _print_lines(results, quiet=arguments.quiet)
    return 0 if all(result.is_valid for result in results.values()) else 1


def _rules(path: str | None) -> Rules:
    if path is None:
        return Rules()
    from ringfence.validation.rules_file import read_rules

    return read_rules(path)


def _validated(name: str, rules: Rules) -> SecurityValidationResult:
    from ringfence.validation.validator import SecurityValidator

    return SecurityValidator(rules).validate_bytes(_read(name, rules.limits.code_bytes))


def _read(name: str, most: int) -> bytes:
    """Read a little more than is checked: a file that is too long is then a finding like any other."""
    if name == "-":
        return sys.stdin.buffer.read(4 * most + 1)
    from ringfence.model.files import read_file

    return read_file(name, max(64 * 2**20, 4 * most + 1))


def _print_lines(results: dict[str, SecurityValidationResult], *, quiet: bool) -> None:
    from ringfence.model.printed import counted
    from ringfence.model.system_text import escape_controls

    for name, result in results.items():
        for found in result.findings:
            if not (quiet and found.level == "warning"):
                place = f"{name}:{found.line}:{found.column}"
                print(escape_controls(f"{place}: {found.level}: {found.subject}: {found.reason} [{found.rule}]"))
    refused = sum(not result.is_valid for result in results.values())
    print(f"{counted(len(results), 'file')}: {counted(_count(results, 'errors'), 'error')} in {refused}, "
          f"{counted(_count(results, 'warnings'), 'warning')}")  # fmt: skip


def _count(results: dict[str, SecurityValidationResult], field: str) -> int:
    lists: Iterable[list[str]] = (getattr(result, field) for result in results.values())
    return sum(map(len, lists))


def _print_json(results: dict[str, SecurityValidationResult]) -> None:
    from ringfence.cli.json_text import print_json
    from ringfence.model.record import field_names
    from ringfence.validation.result import Finding

    def plain(found: Finding) -> dict[str, object]:
        return {name: getattr(found, name) for name in field_names(found)}

    print_json({"files": [
        {"file": name, "valid": result.is_valid, "findings": [plain(found) for found in result.findings],
         "uses": sorted(result.uses)} for name, result in results.items()]})  # fmt: skip


def _print_sarif(results: dict[str, SecurityValidationResult], rules: Rules) -> None:
    from ringfence import __version__
    from ringfence.cli.json_text import print_json
    from ringfence.validation.sarif import sarif

    print_json(sarif({name: result.findings for name, result in results.items()}, rules, __version__))
