"""Remove ringfence's containers, running or stopped, whose owner has exited."""

from __future__ import annotations

import argparse

EXAMPLES = """\
examples:
  ringfence cleanup
  ringfence cleanup --dry-run --json

A container's labels name the process that owns it. If a caller is killed, its guardian removes its containers; this
command is for those that outlive both, e.g. after the engine or the machine went down.
The exit code is 0 when none is left, 1 when one could not be removed, 2 when no engine answers.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="only list them")
    parser.add_argument("--json", action="store_true", help="print it as JSON")


def execute(arguments: argparse.Namespace) -> int:
    from ringfence.container import orphans
    from ringfence.container.api import connect

    client = connect()
    found = orphans.find(client)
    gone, problems = ([], {}) if arguments.dry_run else orphans.remove(client, found)
    if arguments.json:
        _print_json(found, gone, problems)
    else:
        _print(found, gone, problems)
    return 1 if problems else 0


TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.container.orphans import Orphan


def _print_json(found: list[Orphan], gone: list[Orphan], problems: dict[str, str]) -> None:
    from ringfence.cli.json_text import print_json

    removed = {each.id for each in gone}
    print_json({"orphans": [
        {"id": each.id, "name": each.name, "kind": each.kind, "state": each.state, "removed": each.id in removed,
         "problem": problems.get(each.id, "")} for each in found
    ]})  # fmt: skip


def _print(found: list[Orphan], gone: list[Orphan], problems: dict[str, str]) -> None:
    from ringfence.model.system_text import escape_controls

    removed = {each.id for each in gone}
    for each in found:
        what = "removed" if each.id in removed else problems.get(each.id, "orphaned")
        print(escape_controls(f"{each.id[:12]}  {each.kind:<10} {each.state:<10} {what}"))
    if not found:
        print("no orphaned containers")
