"""List the checkpoints of a kept sandbox, the oldest first."""

from __future__ import annotations

from ringfence.cli.blocks import spelled_out
from ringfence.cli.json_text import print_json
from ringfence.cli.kept import Kept, add_id, add_json, registry_of
from ringfence.cli.sandboxes import age, columns

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

    from ringfence.checkpoint.store import Checkpoint

EXAMPLES = """\
examples:
  ringfence checkpoints 3f2a
  ringfence checkpoints 3f2a --json

The one that the sandbox stands on is marked. Go back to one with: ringfence rollback ID CHECKPOINT
"""


def configure(parser: argparse.ArgumentParser) -> None:
    add_id(parser)
    add_json(parser)


def execute(arguments: argparse.Namespace) -> int:
    with Kept(registry_of(arguments), arguments.sandbox) as kept:
        found, current = kept.transaction.checkpoints(), kept.transaction.current
    if arguments.json:
        print_json([_as_data(each, current) for each in found])
        return 0
    rows: list[tuple[str, ...]] = [("", "CHECKPOINT", "MADE", "NAME", "CHANGED")]
    rows += [("*" if each.checkpoint_id == current else "", each.checkpoint_id, age(each.created_s),
              spelled_out(each.name), str(len(each.layer))) for each in found]  # fmt: skip
    print(columns(rows) if found else "no checkpoints")
    return 0


def _as_data(each: Checkpoint, current: str) -> dict[str, object]:
    return {
        "checkpoint_id": each.checkpoint_id,
        "name": each.name,
        "created_s": each.created_s,
        "current": each.checkpoint_id == current,
        "changed": len(each.layer),
        "state_data": dict(each.state_data),
    }
