"""List the checkpoints of a kept sandbox, the oldest first."""

from __future__ import annotations

from ringfence.checkpoint.past import count_changed
from ringfence.cli.json_text import print_json
from ringfence.cli.sandboxes import age, columns
from ringfence.cli.stored_sandbox import StoredSandbox, add_id, add_json, registry_of
from ringfence.model.system_text import escape_controls

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

    from ringfence.checkpoint.store import Checkpoint

EXAMPLES = """\
examples:
  ringfence checkpoints 3f2a
  ringfence checkpoints 3f2a --json

The sandbox's current checkpoint is marked. Go back to one with: ringfence rollback ID CHECKPOINT
"""


def configure(parser: argparse.ArgumentParser) -> None:
    add_id(parser)
    add_json(parser)


def execute(arguments: argparse.Namespace) -> int:
    with StoredSandbox(registry_of(arguments), arguments.sandbox) as kept:
        found, current = kept.transaction.checkpoints(), kept.transaction.current
        changed = {each.checkpoint_id: count_changed(kept.transaction, each.checkpoint_id) for each in found}
    if arguments.json:
        print_json([_as_data(each, current, changed[each.checkpoint_id]) for each in found])
        return 0
    rows: list[tuple[str, ...]] = [("", "CHECKPOINT", "MADE", "NAME", "CHANGED")]
    rows += [("*" if each.checkpoint_id == current else "", each.checkpoint_id, age(each.created_s),
              escape_controls(each.name), str(changed[each.checkpoint_id])) for each in found]  # fmt: skip
    print(columns(rows) if found else "no checkpoints")
    return 0


def _as_data(each: Checkpoint, current: str, changed: int) -> dict[str, object]:
    return {
        "checkpoint_id": each.checkpoint_id,
        "name": each.name,
        "created_s": each.created_s,
        "current": each.checkpoint_id == current,
        "changed": changed,
        "state_data": dict(each.state_data),
    }
