"""The validator: reads Python code without running it and says what in it does not belong into a sandboxed job.

Owns: rules as data, a reader of them, one pass over the code, findings. It is advice and a fast reject, never the
boundary: whoever writes the code can write it so that nothing is found. It starts nothing and opens nothing.
"""

from __future__ import annotations

from ringfence.validation.result import Finding, SecurityValidationResult
from ringfence.validation.rule import Rule
from ringfence.validation.rules import Rules
from ringfence.validation.tightening import tightened
from ringfence.validation.validator import SecurityValidator

__all__ = ["Finding", "Rule", "Rules", "SecurityValidationResult", "SecurityValidator", "tightened"]
