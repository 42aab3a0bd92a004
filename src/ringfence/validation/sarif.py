"""Findings as SARIF 2.1.0, the format in which code-scanning services take them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from urllib.parse import quote

from ringfence.validation.result import Finding
from ringfence.validation.rule import Rule
from ringfence.validation.rules import Rules

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
VERSION = "2.1.0"


def sarif(findings: Mapping[str, Iterable[Finding]], rules: Rules, version: str) -> dict[str, object]:
    """Return the log of one run over files; ``findings``: by the name of the file, as it was given."""
    places = {rule.id: place for place, rule in enumerate(rules.all)}
    results = [_result(name, found, places) for name, each in findings.items() for found in each]
    driver = {
        "name": "ringfence",
        "semanticVersion": version,
        "rules": [_rule(rule, rules) for rule in rules.all],
    }
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "artifacts": [{"location": {"uri": _uri(name)}, "sourceLanguage": "python"} for name in findings],
        "results": results,
    }
    return {"$schema": SCHEMA, "version": VERSION, "runs": [run]}


def _rule(rule: Rule, rules: Rules) -> dict[str, object]:
    configuration: dict[str, object] = {"level": rule.level, "enabled": rule.id not in rules.silenced}
    return {
        "id": rule.id,
        "name": "".join(map(str.capitalize, rule.id.split("-"))),
        "shortDescription": {"text": f"The code {rule.reason}." if _is_verb(rule.reason) else f"{rule.reason}."},
        "defaultConfiguration": configuration,
        "properties": {"tags": ["security", rule.category], "category": rule.category},
    }


def _is_verb(reason: str) -> bool:
    return re.match(r"\w+s\b", reason) is not None


def _result(name: str, finding: Finding, places: Mapping[str, int]) -> dict[str, object]:
    region = {"startLine": finding.line, "startColumn": finding.column}
    location = {"physicalLocation": {"artifactLocation": {"uri": _uri(name)}, "region": region}}
    return {
        "ruleId": finding.rule,
        "ruleIndex": places[finding.rule],
        "level": finding.level,
        "message": {"text": f"{finding.subject}: {finding.reason}"},
        "locations": [location],
    }


def _uri(name: str) -> str:
    """A path as a URI reference: characters with a meaning in URIs are escaped, and so are bytes that are not text."""
    if name == "-":
        return "stdin"
    path = quote(name.encode("utf-8", "surrogateescape"), safe="/-_.~")
    return f"file://{path}" if path.startswith("/") else path
