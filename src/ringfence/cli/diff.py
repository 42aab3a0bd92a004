"""Show what a kept sandbox changed: text as a diff, the rest by name."""

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
    parser.add_argument("paths", nargs="*", metavar="PATH", help="only these files")


def execute(arguments: argparse.Namespace) -> int:
    with Kept(registry_of(arguments), arguments.sandbox) as kept:
        parts = [kept.transaction.diff(path) for path in kept.paths(arguments.paths)]
        print_diff("".join(parts) if arguments.paths else kept.transaction.diff())
    return 0
