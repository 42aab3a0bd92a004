"""List the kept sandboxes, the oldest first, or remove old ones."""

from __future__ import annotations

import sys
import time

from ringfence.cli.json_text import print_json
from ringfence.cli.stored_sandbox import StoredSandbox, add_json, add_root, all_of, registry_of, shown_path
from ringfence.errors import BusyError, SandboxError, UsageError
from ringfence.manager.registry import Damaged, Metadata, Registry
from ringfence.manager.stored import OLD_ROOT, old_ones
from ringfence.model.limits import format_size, parse_duration
from ringfence.model.printed import counted
from ringfence.model.system_text import escape_controls

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

EXAMPLES = """\
examples:
  ringfence sandboxes
  ringfence sandboxes --json
  ringfence sandboxes --prune 24h        remove those that nobody has used for a day
  ringfence sandboxes --root sandboxes --trust sandbox_3f2a91bc04d7      use one of an earlier version
"""
_UNITS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))
_WIDEST = 40


def configure(parser: argparse.ArgumentParser) -> None:
    add_json(parser)
    parser.add_argument("--prune", metavar="AGE", help="remove those that were not used for this long: 90m, 24h")
    parser.add_argument("--trust", metavar="ID", help="accept one without a valid seal as yours, e.g. of an earlier "
                        "version; everything in it is then trusted")  # fmt: skip
    add_root(parser)


def execute(arguments: argparse.Namespace) -> int:
    registry = registry_of(arguments)
    if arguments.trust is not None:
        found = [_as_data(registry, registry.trust(arguments.trust))]
        text = f"{found[0]['id']} is accepted as yours; it is based on {_over(found[0])}"
    elif arguments.prune is not None:
        found = _pruned(registry, _seconds(arguments.prune))
        text = "\n".join(f"{each['id']} {_fate(each)}" for each in found) or "no sandbox is that old"
    else:
        found = [_as_data(registry, each) for each in all_of(registry)]
        rows = [("ID", "MADE", "COMMAND", "OVER", "CHANGED", "SIZE"), *(_row(each) for each in found)]
        text = columns(rows) if found else "no sandboxes are kept"
        text += "".join(f"\n{each['id']}: {escape_controls(str(each['problem']))}" for each in found if _has_more(each))
    if arguments.json:
        print_json(found)
    else:
        print(text)
    _tell_of_old_ones(registry)
    return 0


def _tell_of_old_ones(registry: Registry) -> None:
    """Mention old sandboxes, without reading them."""
    count = len(old_ones(registry.root))
    if count:
        print(f"ringfence: ./{OLD_ROOT} holds {counted(count, 'sandbox')} of an earlier version, or of somebody else; "
              f"see: ringfence sandboxes --root {OLD_ROOT}", file=sys.stderr)  # fmt: skip


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
        with StoredSandbox(registry, each.sandbox_id, finish=False) as kept:  # to list them changes nothing
            changes = kept.transaction.changes()
            found["changed"] = len(changes)
            found["changes_complete"] = changes.complete
            found["bytes"] = kept.transaction.layer_bytes() + kept.transaction.used_bytes()
    except BusyError as error:
        found["in_use_by"] = error.pid
    except SandboxError as error:
        found["problem"] = str(error)
    return found


def _has_more(each: dict[str, object]) -> bool:
    """A problem for which there is no room in its row."""
    return "problem" in each and "created_s" in each


def _row(each: dict[str, object]) -> tuple[str, ...]:
    if "created_s" not in each:
        return str(each["id"]), "", escape_controls(str(each["problem"])), "", "", ""
    command = each["command"]
    over = _over(each)
    more = "" if each.get("changes_complete", True) else " and more"
    changed = f"in use ({each['in_use_by']})" if "in_use_by" in each else f"{each.get('changed', '?')}{more}"
    size = format_size(int(str(each["bytes"]))) if "bytes" in each else ""
    words = " ".join(map(str, command))  # type: ignore[call-overload]
    return str(each["id"]), age(float(str(each["created_s"]))), _cut(escape_controls(words)), over, changed, size


def _over(each: dict[str, object]) -> str:
    return ", ".join(map(shown_path, each["bases"])) or "its own directory"  # type: ignore[call-overload]


def _cut(text: str) -> str:
    return text if len(text) <= _WIDEST else text[: _WIDEST - 1] + "…"


def _pruned(registry: Registry, older_than_s: float) -> list[dict[str, object]]:
    """The sandboxes that were old enough: removed, or with the problem that prevented it."""
    sound = [each.sandbox_id for each in all_of(registry) if not isinstance(each, Damaged)]
    found = [_dropped(registry, each) for each in sound if registry.idle_hours(each) * 3600 >= older_than_s]
    registry.sweep()
    return found


def _dropped(registry: Registry, sandbox_id: str) -> dict[str, object]:
    try:
        registry.remove_unused(sandbox_id, force=False)
    except SandboxError as error:
        return {"id": sandbox_id, "removed": False, "problem": str(error)}
    return {"id": sandbox_id, "removed": True}


def _fate(each: dict[str, object]) -> str:
    return "removed" if each["removed"] else f"stays: {each['problem']}"


def _seconds(text: str) -> float:
    try:
        return parse_duration(text)
    except ValueError:
        raise UsageError(f"--prune: {text!r} is not an age", hint="write for example 90m or 24h") from None


def age(created_s: float) -> str:
    """``3 min ago``."""
    passed = max(0, int(time.time() - created_s))
    size, name = next((row for row in _UNITS if passed >= row[0]), _UNITS[-1])
    return f"{passed // size} {name} ago"


def columns(rows: list[tuple[str, ...]]) -> str:
    widths = [max(len(row[number]) for row in rows) for number in range(len(rows[0]))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)
    return "\n".join(lines)
