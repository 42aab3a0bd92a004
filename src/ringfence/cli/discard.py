"""Throw away what kept sandboxes changed."""

from __future__ import annotations

from ringfence.cli.blocks import counted
from ringfence.cli.kept import Kept, add_root, drop, find, registry_of
from ringfence.errors import SandboxError
from ringfence.manager.registry import Registry

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

EXAMPLES = """\
examples:
  ringfence discard 3f2a
  ringfence discard 3f2a 91bc
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("sandboxes", nargs="+", metavar="ID", help="of sandboxes, or the beginnings of them")
    add_root(parser)


def execute(arguments: argparse.Namespace) -> int:
    registry = registry_of(arguments)
    for sandbox_id in dict.fromkeys(find(registry, word) for word in arguments.sandboxes):
        if _is_managed(registry, sandbox_id):
            with Kept(registry, sandbox_id) as kept:
                restored = counted(kept.transaction.discard(), "path")
                print(f"{sandbox_id}: {restored} restored; its manager keeps it")
        else:
            drop(registry, sandbox_id)
            print(f"{sandbox_id} discarded")
    return 0


def _is_managed(registry: Registry, sandbox_id: str) -> bool:
    try:
        return bool(registry.read(sandbox_id).config)
    except SandboxError:
        return False  # what can't be read can only be removed
