"""``SecurityValidator``: code in, findings out. The whole path, from text to result."""

from __future__ import annotations

import ast
import threading
import warnings

from ringfence.model.record import replace
from ringfence.validation import source_text
from ringfence.validation.checks import Checker, Report
from ringfence.validation.nested import sources_of
from ringfence.validation.result import (
    DANGEROUS_IMPORTS,
    ERROR,
    FILE_OPERATIONS,
    NETWORK_OPERATIONS,
    SecurityValidationResult,
    result_of,
)
from ringfence.validation.rules import Rules
from ringfence.validation.scopes import Gatherer

_FATAL = frozenset({"code-size", "null-byte", "nesting", "not-text"})
_PARSING = threading.Lock()


class SecurityValidator:
    """Says whether code is fit for a sandboxed job, and why not. It is no boundary: see docs/reference/validator.md.

    >>> SecurityValidator().validate_code("import math\\nprint(math.pi)")
    (True, [])
    >>> SecurityValidator().validate_code("import os\\nos.system('id')")[1]
    ['line 2, column 1: os.system: starts, replaces or ends processes [process-call]']
    """

    def __init__(self, rules: Rules | None = None) -> None:
        self._rules = rules or Rules()

    @property
    def rules(self) -> Rules:
        return self._rules

    def __call__(self, code: str) -> list[str]:
        """Return the errors, for callers that take a function. Text that is not Python won't run as such: no error."""
        found = self.validate(code).findings
        return [str(each) for each in found if each.level == ERROR and each.rule != "syntax"]

    def validate_code(self, code: str) -> tuple[bool, list[str]]:
        """Return whether the code is valid, and the errors."""
        result = self.validate(code)
        return result.is_valid, result.errors

    def validate(self, code: str) -> SecurityValidationResult:
        """Return everything that was found. This returns for any code."""
        try:
            return self._validate(code)
        except RecursionError:
            return self._in_a_thread(code)
        except Exception as error:
            # A bug of ours must not let the code through that triggered it.
            return self._refused("unfinished", 1, 1, type(error).__name__)

    def validate_bytes(self, data: bytes) -> SecurityValidationResult:
        """The same for the bytes of a file: UTF-8, or what its first two lines declare, if that is harmless."""
        try:
            return self.validate(source_text.decoded(data))
        except ValueError as error:
            return self._refused("encoding", 1, 1, str(error))

    def _in_a_thread(self, code: str) -> SecurityValidationResult:
        """Try again with an unused stack: the caller may be deep in a recursion of its own."""
        results: list[SecurityValidationResult] = []

        def work() -> None:
            try:
                results.append(self._validate(code))
            except (RecursionError, MemoryError):
                pass

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        thread.join()
        return results[0] if results else self._refused("nesting", 1, 1, "this code")

    def _validate(self, code: str) -> SecurityValidationResult:
        if not isinstance(code, str):
            return self._refused("not-text", 1, 1, type(code).__name__)
        report = Report(self._rules, code)
        places = source_text.Places(code)
        for rule, place, subject in source_text.problems(code, self._rules.limits):
            self._at(report, places, rule, place, subject)
            if rule in _FATAL:
                return result_of(report.findings)
        tree = self._parsed(code, report)
        if tree is not None:
            self._check(tree, report)
        return result_of(report.findings, report.uses | self._uses(report))

    def _at(self, report: Report, places: source_text.Places, rule: str, place: int, subject: str) -> None:
        known = self._rules.by_id.get(rule)
        if known is not None and not report.is_full:
            report.place(known, *places.of(place), subject)

    def _refused(self, rule: str, line: int, column: int, subject: str) -> SecurityValidationResult:
        """Limits can be silenced; code that can't be examined is refused all the same."""
        known = self._rules.by_id.get(rule) or next(each for each in Rules().all if each.id == rule)
        report = Report(self._rules, "")
        report.place(known, line, column, subject)
        return result_of(report.findings)

    def _parsed(self, code: str, report: Report) -> ast.Module | None:
        why = ""
        try:
            return parse(code)
        except SyntaxError as error:
            rule, line, column, subject = "syntax", error.lineno or 1, error.offset or 1, "syntax error"
            why = error.msg or ""
        except MemoryError:
            rule, line, column, subject = "nesting", 1, 1, "this code"
        except ValueError as error:
            rule, line, column, subject = "not-text", 1, 1, str(error)
        known = self._rules.by_id.get(rule) or next(each for each in Rules().all if each.id == rule)
        report.place(replace(known, reason=why) if why else known, line, max(1, column), subject)
        return None

    def _check(self, tree: ast.AST, report: Report) -> None:
        gathered = Gatherer()
        checker = Checker(self._rules, report, gathered)
        body = getattr(tree, "body", None)
        module = gathered.gather(list(body) if isinstance(body, list) else [tree])
        checker.check(gathered.scopes)
        inner = sources_of(checker, tree)
        if inner:
            done = len(gathered.scopes)
            gathered.gather(inner, module)
            checker.check(gathered.scopes[done:])
        checker.finish()

    @staticmethod
    def _uses(report: Report) -> set[str]:
        rules = {each.rule for each in report.findings}
        categories = {each.category for each in report.findings}
        told = {"network": NETWORK_OPERATIONS in categories, "files": FILE_OPERATIONS in categories,
                "environment": bool(rules & {"environment", "environment-dump"})}  # fmt: skip
        return {name for name, used in told.items() if used}

    # ---- by category, on a tree that somebody else has parsed

    def _check_dangerous_imports(self, ast_tree: ast.AST) -> list[str]:
        return self._of_category(ast_tree, DANGEROUS_IMPORTS)

    def _check_file_operations(self, ast_tree: ast.AST) -> list[str]:
        return self._of_category(ast_tree, FILE_OPERATIONS)

    def _check_network_operations(self, ast_tree: ast.AST) -> list[str]:
        return self._of_category(ast_tree, NETWORK_OPERATIONS)

    def _of_category(self, tree: ast.AST, category: str) -> list[str]:
        for node in ast.walk(tree):
            if isinstance(node, ast.stmt | ast.expr | ast.arg | ast.ExceptHandler) and not hasattr(node, "lineno"):
                node.lineno, node.col_offset = 1, 0
        report = Report(self._rules, "")
        self._check(tree, report)
        found = result_of(report.findings).findings
        return [str(each) for each in found if each.category == category and each.level == ERROR]


def parse(code: str) -> ast.Module:
    """``ast.parse`` without its warnings, e.g. about an invalid escape in a string."""
    if "\\" not in code:
        return ast.parse(code)
    with _PARSING, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(code)
