"""What ``--json`` prints: always JSON, whatever a guest put into the result."""

from __future__ import annotations

import math
from _collections_abc import Mapping


def print_json(value: object, *, indent: int | None = 2) -> None:
    print(json_text(value, indent=indent))


def json_text(value: object, *, indent: int | None = 2) -> str:
    """A number that JSON has no word for is null, half a character is an escape, any other object its text.

    >>> json_text([float("nan"), "\\ud800"], indent=None)
    '[null, "\\\\\\\\ud800"]'
    """
    import json

    return json.dumps(_plain(value), indent=indent, allow_nan=False)


def _plain(value: object) -> object:
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {_text(str(name)): _plain(item) for name, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return _text(str(value))


def _text(text: str) -> str:
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")
