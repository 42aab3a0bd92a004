"""Carry over what a kept sandbox changed, all of it or some paths; on a conflict nothing is written."""

from __future__ import annotations

from ringfence.cli.blocks import counted
from ringfence.cli.kept import Kept, add_id, registry_of, shown_path

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
    parser.add_argument("paths", nargs="*", default=[], metavar="PATH", help="only these, and what is below them")


def execute(arguments: argparse.Namespace) -> int:
    with Kept(registry_of(arguments), arguments.sandbox) as kept:
        if arguments.paths:
            kept.meant(arguments.paths)
        done = kept.transaction.commit(kept.paths(arguments.paths) if arguments.paths else None)
        for path in done.left:
            print(f"not carried over, because it is no file, folder or link: {shown_path(path)}")
        gone = kept.remove_if_done()
        left = "" if gone else f"; left in {kept.sandbox_id}: {len(kept.transaction.changes())}"
    print(f"{counted(len(done.paths), 'path')} carried over{left}")
    return 0
