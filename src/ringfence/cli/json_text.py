"""What ``--json`` prints: always JSON, whatever a guest put into the result."""

from __future__ import annotations

from ringfence.model.printed import json_text

# What some errors carry beside their message.
_MORE = ("paths", "missing", "step", "pid")


def print_json(value: object, *, indent: int | None = 2) -> None:
    print(json_text(value, indent=indent))


def error_object(error: Exception, code: int) -> dict[str, object]:
    """An error as data: every field of a policy error, every path of a conflict."""
    hints = getattr(error, "fixes", ()) or (getattr(error, "hint", ""),)
    told: dict[str, object] = {"error": str(error), "kind": type(error).__name__, "exit_code": code}
    wrong = [error, *getattr(error, "more", ())] if hasattr(error, "field") else []
    fields = [{name: getattr(each, name) for name in ("field", "problem", "where")} for each in wrong]
    told |= {"hint": "\n".join(filter(None, hints)), "fields": fields}
    return told | {name: getattr(error, name) for name in _MORE if hasattr(error, name)}
