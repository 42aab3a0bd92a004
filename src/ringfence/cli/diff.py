"""Show what a kept sandbox changed: text as a diff, the rest by name."""

from __future__ import annotations

from ringfence.cli.kept import Kept, add_id, print_diff, registry_of, shown_path

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
        print_diff(_some(kept, arguments.paths) if arguments.paths else kept.transaction.diff())
    return 0


def _some(kept: Kept, words: list[str]) -> str:
    texts = ((path, kind, kept.transaction.diff(path)) for path, kind in kept.meant(words).items())
    return "".join(text or f"{shown_path(path)}: {kind}\n" for path, kind, text in texts if text or kind)
