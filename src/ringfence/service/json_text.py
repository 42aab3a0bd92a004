"""JSON as the service writes it: by the standard library's encoder, which is quick, where the value is plain."""

from __future__ import annotations

import json

from ringfence.model import printed


class Written(str):
    """A value that is JSON already."""


def json_text(value: object) -> str:
    """One line. What the encoder can't write, such as a number without end, is written as ``printed`` has it."""
    if isinstance(value, Written):
        return value
    try:
        return _encode(value)
    except (ValueError, TypeError):
        return printed.json_text(value, indent=None)


_encode = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode
