"""The result of a validation: findings as data, and the lists of texts that the specification asks for."""

from __future__ import annotations

from collections.abc import Iterable

from ringfence.model.record import made_by, record

ERROR, WARNING = "error", "warning"
LEVELS = (ERROR, WARNING)
DANGEROUS_IMPORTS, FILE_OPERATIONS = "dangerous_imports", "file_operations"
NETWORK_OPERATIONS, OBFUSCATION, LIMITS = "network_operations", "obfuscation", "limits"
CATEGORIES = (DANGEROUS_IMPORTS, FILE_OPERATIONS, NETWORK_OPERATIONS, OBFUSCATION, LIMITS)


@record
class Finding:
    """One thing that a rule has found. Lines and columns begin with 1, and columns are characters."""

    rule: str
    category: str
    level: str
    line: int
    column: int
    subject: str
    """What was found, in the words of the code: ``os.system``, ``open('/etc/passwd')``."""
    reason: str

    def __str__(self) -> str:
        return f"line {self.line}, column {self.column}: {self.subject}: {self.reason} [{self.rule}]"


@record(kw_only=False)
class SecurityValidationResult:
    """``is_valid`` is false as soon as there is one error. Each text names line, column, reason and rule."""

    is_valid: bool
    errors: list[str]
    warnings: list[str]
    dangerous_imports: list[str]
    """Findings of this category, errors and warnings; the same holds for the two below."""
    file_operations: list[str]
    network_operations: list[str]
    findings: tuple[Finding, ...] = ()
    """The same as data, by line."""
    uses: frozenset[str] = made_by(default_factory=frozenset)
    """What the code may use as far as can be told: ``network``, ``files``, ``environment``, ``unknown`` for libraries
    that nobody has examined. See ``tightened``."""


def result_of(found: Iterable[Finding], uses: Iterable[str] = ()) -> SecurityValidationResult:
    findings = tuple(sorted(found, key=lambda each: (each.line, each.column, each.rule)))
    errors = [str(each) for each in findings if each.level == ERROR]
    return SecurityValidationResult(
        is_valid=not errors,
        errors=errors,
        warnings=[str(each) for each in findings if each.level == WARNING],
        dangerous_imports=_of(findings, DANGEROUS_IMPORTS),
        file_operations=_of(findings, FILE_OPERATIONS),
        network_operations=_of(findings, NETWORK_OPERATIONS),
        findings=findings,
        uses=frozenset(uses),
    )


def _of(findings: tuple[Finding, ...], category: str) -> list[str]:
    return [str(each) for each in findings if each.category == category]
