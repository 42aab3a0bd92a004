"""Carry over what a kept sandbox changed, all of it or some paths; on a conflict nothing is written."""

from __future__ import annotations

from ringfence.cli.blocks import counted
from ringfence.cli.json_text import print_json
from ringfence.cli.kept import Kept, add_id, add_json, registry_of, shown_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

EXAMPLES = """\
examples:
  ringfence commit 3f2a
  ringfence commit 3f2a src/a.py docs

When nothing is left in it, the sandbox is removed. Where somebody else changed the same files since, they are named,
nothing is written and the exit code is 1.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    add_id(parser)
    add_json(parser)
    parser.add_argument("paths", nargs="*", default=[], metavar="PATH", help="only these, and what is below them")


def execute(arguments: argparse.Namespace) -> int:
    with Kept(registry_of(arguments), arguments.sandbox) as kept:
        if arguments.paths:
            kept.meant(arguments.paths)
        done = kept.transaction.commit(kept.paths(arguments.paths) if arguments.paths else None)
        left = 0 if kept.remove_if_done() else len(kept.transaction.changes())
    if arguments.json:
        print_json({"id": kept.sandbox_id, "carried_over": done.paths, "not_carried_over": done.left, "left": left})
        return 0
    for path in done.left:
        print(f"not carried over, because it is no file, folder or link: {shown_path(path)}")
    rest = f"; left in {kept.sandbox_id}: {left}" if left else ""
    print(f"{counted(len(done.paths), 'path')} carried over{rest}")
    return 0
