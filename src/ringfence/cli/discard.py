"""Discard what kept sandboxes changed."""

from __future__ import annotations

from ringfence.cli.json_text import print_json
from ringfence.cli.stored_sandbox import StoredSandbox, add_json, add_root, find, registry_of
from ringfence.errors import SandboxError
from ringfence.manager.registry import Registry
from ringfence.model.printed import counted

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

EXAMPLES = """\
examples:
  ringfence discard 3f2a
  ringfence discard 3f2a 91bc
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("sandboxes", nargs="+", metavar="ID", help="IDs of sandboxes, or their first characters")
    add_root(parser)
    add_json(parser)


def execute(arguments: argparse.Namespace) -> int:
    registry = registry_of(arguments)
    done = []
    for sandbox_id in dict.fromkeys(find(registry, word) for word in arguments.sandboxes):
        if _is_managed(registry, sandbox_id):
            finished, restored = False, _undo_all(registry, sandbox_id)
        else:
            finished, restored = registry.remove_unused(sandbox_id), None
        done.append({"id": sandbox_id, "removed": restored is None, "restored": restored or 0, "finished": finished})
        if not arguments.json:
            print(_told(sandbox_id, restored, finished=finished))
    if arguments.json:
        print_json(done)
    return 0


def _undo_all(registry: Registry, sandbox_id: str) -> int:
    """A manager's sandbox stays: how many paths were restored."""
    with StoredSandbox(registry, sandbox_id) as kept:
        return kept.transaction.discard()


def _told(sandbox_id: str, restored: int | None, *, finished: bool) -> str:
    if finished:
        return f"{sandbox_id} discarded; an interrupted commit or rollback was completed first"
    if restored is None:
        return f"{sandbox_id} discarded"
    return f"{sandbox_id}: {counted(restored, 'path')} restored; its manager keeps it"


def _is_managed(registry: Registry, sandbox_id: str) -> bool:
    try:
        return bool(registry.read(sandbox_id).config)
    except SandboxError:
        return False  # a sandbox that can't be read can only be removed
