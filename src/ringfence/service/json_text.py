"""JSON as the service writes it: by the standard library's encoder, which is quick, where the value is plain."""

from __future__ import annotations

import json

from ringfence.model import printed


class Written(str):
    """A value that is JSON already."""


def json_text(value: object) -> str:
    """Return one line of JSON. What the encoder can't write, e.g. a number without end, is as ``printed`` has it."""
    if isinstance(value, Written):
        return value
    try:
        return _encode(value)
    except (ValueError, TypeError):
        return printed.json_text(value, indent=None)


def json_in_steps(value: object) -> str:
    """The same for a thread, where texts may be megabytes long: the encoder lets nobody else run until it is through
    with one."""
    if isinstance(value, Written):
        return value
    if isinstance(value, str) and len(value) > STEP_CHARS:
        steps = range(0, len(value), STEP_CHARS)
        return f'"{"".join([json_text(value[begin : begin + STEP_CHARS])[1:-1] for begin in steps])}"'
    if isinstance(value, list | tuple) and len(value) > STEP_VALUES:
        steps = range(0, len(value), STEP_VALUES)
        return f"[{','.join([json_text(value[begin : begin + STEP_VALUES])[1:-1] for begin in steps])}]"
    if isinstance(value, dict) and all(isinstance(name, str) for name in value):
        return f"{{{','.join([f'{json_text(name)}:{json_in_steps(each)}' for name, each in value.items()])}}}"
    return json_text(value)


STEP_CHARS, STEP_VALUES = 64 << 10, 256
_encode = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode
