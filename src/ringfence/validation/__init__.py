"""The validator: reads Python code without running it and says what in it does not belong in a sandboxed job.

Owns: rules as data, a reader of them, one pass over the code, findings. It is advice and a fast reject, never the
boundary: an author can write code in which nothing is found. It starts nothing and opens nothing.
"""

from __future__ import annotations

from ringfence.validation.result import Finding, SecurityValidationResult
from ringfence.validation.rule import Rule
from ringfence.validation.rules import Rules
from ringfence.validation.tightening import tightened
from ringfence.validation.validator import SecurityValidator

__all__ = ["Finding", "Rule", "Rules", "SecurityValidationResult", "SecurityValidator", "tightened"]
