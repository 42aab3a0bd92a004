"""Show what a kept sandbox changed: texts, links and modes as git shows them, the rest by name."""

from __future__ import annotations

from ringfence.cli.kept import Kept, add_id, print_diff, registry_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

EXAMPLES = """\
examples:
  ringfence diff 3f2a
  ringfence diff 3f2a src/a.py
  ringfence diff 3f2a | less

In colour on a terminal, where control characters are spelled out; elsewhere it can be given to patch -p1.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    add_id(parser)
    parser.add_argument("paths", nargs="*", default=[], metavar="PATH", help="only these, and what is below them")


def execute(arguments: argparse.Namespace) -> int:
    with Kept(registry_of(arguments), arguments.sandbox) as kept:
        if arguments.paths:
            kept.meant(arguments.paths)
        print_diff(kept.transaction.diffs(kept.paths(arguments.paths) if arguments.paths else None))
    return 0
