"""The checks before a container: the validator, and data as bytes. They refuse quickly, but are not the boundary."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from typing import Protocol

from ringfence.docker_sandbox.config import DockerConfig
from ringfence.docker_sandbox.conversation import Data
from ringfence.errors import UsageError
from ringfence.metrics import recorder
from ringfence.metrics.life_log import tell
from ringfence.model.files import read_file
from ringfence.model.system_text import escape_controls

CATEGORIES = ("dangerous_imports", "file_operations", "network_operations")
OTHER = "other"
_SNIPPET = 400


class Judged(Protocol):
    """What a validator says."""

    @property
    def is_valid(self) -> bool: ...
    @property
    def errors(self) -> list[str]: ...
    @property
    def dangerous_imports(self) -> list[str]: ...
    @property
    def file_operations(self) -> list[str]: ...
    @property
    def network_operations(self) -> list[str]: ...


class Validator(Protocol):
    """``SecurityValidator``, or one of the caller's own."""

    def validate(self, code: str) -> Judged: ...


def validator_of(config: DockerConfig) -> Validator:
    """Ours, with the rules that the configuration names."""
    from ringfence.validation import SecurityValidator
    from ringfence.validation.rules_file import read_rules

    return SecurityValidator(read_rules(config.validator_rules) if config.validator_rules else None)


def rejections(validator: Validator, code: str) -> list[str]:
    """Why the code is not run; empty: it may be. Counted by reason, and logged with the piece of code."""
    judged = validator.validate(code)
    if judged.is_valid:
        return []
    reasons = [*_reasons(judged)] or [OTHER]
    for reason in reasons:
        recorder.add("security_rejections_total", reason=reason)
    errors = [escape_controls(str(error)) for error in judged.errors] or ["rejected without a reason"]
    tell("strategy_rejected", errors[0], level=logging.WARNING, reasons=reasons, errors=errors[:20],
         snippet=escape_controls(_snippet(judged, code), keep="\n"))  # fmt: skip
    return errors


def _reasons(judged: Judged) -> Iterator[str]:
    for name in CATEGORIES:
        if getattr(judged, name):
            yield name


def _snippet(judged: Judged, code: str) -> str:
    """The line of the first finding and its neighbours; else how the code begins."""
    lines = code[: 1 << 20].splitlines()
    found = getattr(judged, "findings", ())
    place = int(getattr(found[0], "line", 1)) if found else 1
    return "\n".join(lines[max(0, place - 2) : place + 1])[:_SNIPPET] or code[:_SNIPPET]


def data_of(value: object, most_bytes: int) -> Data:
    """The argument of ``run``: for a path the file's content, anything else has to be JSON."""
    if isinstance(value, os.PathLike):
        path = os.fspath(value)
        if not isinstance(path, str):
            raise UsageError("a path in data must be a string")
        hint = "name an existing file; docker.data_limit says how large it may be"
        return Data(payload=read_file(path, most_bytes, hint=hint), name=os.path.basename(path) or "data", is_file=True)
    try:
        payload = json.dumps(value, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"data: not JSON: {error}", hint="give plain values, or the path of a file") from None
    if len(payload) > most_bytes:
        raise UsageError(f"data has {len(payload):,} bytes; the maximum is {most_bytes:,}",
                         hint="docker.data_limit raises it")  # fmt: skip
    return Data(payload=payload)
