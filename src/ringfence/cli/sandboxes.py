"""List the kept sandboxes, the oldest first, or remove old ones."""

from __future__ import annotations

import time

from ringfence.cli.kept import Kept, add_root, all_of, drop, harmless, registry_of, shown_path
from ringfence.errors import BusyError, SandboxError, UsageError
from ringfence.manager.registry import Damaged, Metadata, Registry

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

EXAMPLES = """\
examples:
  ringfence sandboxes
  ringfence sandboxes --json
  ringfence sandboxes --prune 24h        remove those that nobody has used for a day
"""
_UNITS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))
_SIZES = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B"))
_WIDEST = 40


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.add_argument("--prune", metavar="AGE", help="remove those that were not used for so long: 90m, 24h")
    add_root(parser)


def execute(arguments: argparse.Namespace) -> int:
    registry = registry_of(arguments)
    if arguments.prune is not None:
        return _prune(registry, _seconds(arguments.prune))
    found = [_as_data(registry, each) for each in all_of(registry)]
    if arguments.json:
        import json

        print(json.dumps(found, indent=2))
        return 0
    rows = [("ID", "MADE", "COMMAND", "OVER", "CHANGED", "SIZE"), *(_row(each) for each in found)]
    print(columns(rows) if found else "no sandboxes are kept")
    return 0


def _as_data(registry: Registry, each: Metadata | Damaged) -> dict[str, object]:
    if isinstance(each, Damaged):
        return {"id": each.sandbox_id, "problem": each.problem}
    found: dict[str, object] = {
        "id": each.sandbox_id,
        "created_s": each.created_s,
        "command": list(each.command),
        "bases": list(each.bases),
        "isolation": each.isolation,
    }
    try:
        with Kept(registry, each.sandbox_id) as kept:
            found["changed"] = len(kept.transaction.changes())
            found["bytes"] = kept.transaction.layer_bytes() + kept.transaction.used_bytes()
    except BusyError as error:
        found["in_use_by"] = error.pid
    except SandboxError as error:
        found["problem"] = str(error)
    return found


def _row(each: dict[str, object]) -> tuple[str, ...]:
    if "created_s" not in each:
        return str(each["id"]), "", harmless(str(each["problem"])), "", "", ""
    command, bases = (each[name] for name in ("command", "bases"))
    over = ", ".join(map(shown_path, bases)) or "its own folder"  # type: ignore[call-overload]
    changed = f"in use ({each['in_use_by']})" if "in_use_by" in each else str(each.get("changed", "?"))
    size = size_text(int(str(each["bytes"]))) if "bytes" in each else ""
    words = " ".join(map(str, command))  # type: ignore[call-overload]
    return str(each["id"]), age(float(str(each["created_s"]))), _cut(harmless(words)), over, changed, size


def _cut(text: str) -> str:
    return text if len(text) <= _WIDEST else text[: _WIDEST - 1] + "…"


def _prune(registry: Registry, older_than_s: float) -> int:
    removed = 0
    for each in all_of(registry):
        if registry.idle_hours(each.sandbox_id) * 3600 < older_than_s or isinstance(each, Damaged):
            continue
        try:
            drop(registry, each.sandbox_id)
        except SandboxError as error:
            print(f"{each.sandbox_id} stays: {error}")
            continue
        removed += 1
        print(f"{each.sandbox_id} removed")
    registry.sweep()
    return 0


def _seconds(text: str) -> float:
    from ringfence.model.limits import parse_duration

    try:
        return parse_duration(text)
    except ValueError:
        raise UsageError(f"{text!r} is no age", hint="write 90m or 24h") from None


def age(created_s: float) -> str:
    """``3 min ago``."""
    passed = max(0, int(time.time() - created_s))
    size, name = next((row for row in _UNITS if passed >= row[0]), _UNITS[-1])
    return f"{passed // size} {name} ago"


def size_text(count: int) -> str:
    size, name = next((row for row in _SIZES if count >= row[0]), _SIZES[-1])
    return f"{count / size:.0f} {name}"


def columns(rows: list[tuple[str, ...]]) -> str:
    widths = [max(len(row[number]) for row in rows) for number in range(len(rows[0]))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)
    return "\n".join(lines)
