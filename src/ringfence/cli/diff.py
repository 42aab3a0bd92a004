"""Show what a kept sandbox changed: texts, links and modes as git shows them, the rest by name."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from ringfence.checkpoint.diff.texts import MAX_TEXT_CHARS
from ringfence.cli.json_text import print_json
from ringfence.cli.stored_sandbox import StoredSandbox, add_id, add_json, find, print_diff, registry_of
from ringfence.errors import BusyError
from ringfence.manager.registry import Registry

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

EXAMPLES = """\
examples:
  ringfence diff 3f2a
  ringfence diff 3f2a src/a.py
  ringfence diff 3f2a | less
  ringfence diff 3f2a --json | jq '.changes[].path'

On a terminal, output is coloured and control characters are escaped; elsewhere it suits patch -p1.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    add_id(parser)
    add_json(parser)
    parser.add_argument("paths", nargs="*", default=[], metavar="PATH", help="only these, and what is below them")


def execute(arguments: argparse.Namespace) -> int:
    registry = registry_of(arguments)
    try:
        opened = StoredSandbox(registry, arguments.sandbox)
    except BusyError:
        if not _showed_question(registry, arguments):
            raise
        return 0
    with opened as kept:
        chosen = kept.resolve(arguments.paths) if arguments.paths else None
        paths = kept.paths(arguments.paths) if arguments.paths else None
        if arguments.json:
            print_json(_as_data(kept, chosen, paths))
        else:
            print_diff(kept.transaction.diffs(paths))
    return 0


def _showed_question(registry: Registry, arguments: argparse.Namespace) -> bool:
    """A program works in it. If its operator is asked about a commit, the changes in question were kept for this."""
    text = "" if arguments.json or arguments.paths else registry.question(find(registry, arguments.sandbox))
    if text:
        print("ringfence: it is in use; this is what its operator was asked about last", file=sys.stderr)
        print_diff([text])
    return bool(text)


def _as_data(kept: StoredSandbox, chosen: Mapping[str, str] | None, paths: list[str] | None) -> dict[str, object]:
    """``chosen``: the changed paths that were named; absent: all."""
    found = kept.transaction.changes()
    rows = [{"path": each.path, "kind": each.kind} for each in found if chosen is None or each.path in chosen]
    text = "".join(kept.transaction.diffs(paths, most=MAX_TEXT_CHARS))
    return {"id": kept.sandbox_id, "changes": rows, "changes_complete": found.complete, "diff": text}
