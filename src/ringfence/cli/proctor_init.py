"""Write a task to start from, with a grader that works."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

EXAMPLES = """\
examples:
  %(prog)s ./task
  proctor run --task ./task --agent "my-agent --solve" --out ./out
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="DIR", help="a new directory")


def execute(arguments: argparse.Namespace) -> int:
    from ringfence.proctor.template import write_task

    write_task(arguments.folder)
    print(f"wrote {arguments.folder}; read instruction.md there, then: proctor run --help")
    return 0
