"""Take a kept sandbox back to a checkpoint, all of it or some paths; without one, to the checkpoint it was last at."""

from __future__ import annotations

import os

from ringfence.cli.json_text import print_json
from ringfence.cli.stored_sandbox import StoredSandbox, add_id, add_json, registry_of
from ringfence.errors import UsageError
from ringfence.model.printed import counted
from ringfence.model.system_text import escape_controls

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

    from ringfence.checkpoint.store import Checkpoint

EXAMPLES = """\
examples:
  ringfence rollback 3f2a                       undo the last run in this sandbox
  ringfence rollback 3f2a 5e0c91                to a checkpoint, by its name or the first characters of its ID
  ringfence rollback 3f2a 5e0c91 src/a.py       only this

You can go forward again in the same way. The directory under the sandbox is not touched.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    add_id(parser)
    add_json(parser)
    parser.add_argument("checkpoint", nargs="?", metavar="CHECKPOINT",
                        help="its name, or the first characters of its ID (default: the current one)")  # fmt: skip
    parser.add_argument("paths", nargs="*", default=[], metavar="PATH", help="only these, and what is below them")


def execute(arguments: argparse.Namespace) -> int:
    with StoredSandbox(registry_of(arguments), arguments.sandbox) as kept:
        found = kept.transaction.checkpoints()
        found.sort(key=lambda each: each.checkpoint_id == kept.transaction.current)  # the current one comes last
        if not found:
            raise UsageError(f"{kept.sandbox_id} has no checkpoint",
                             hint=f"discard its changes with: ringfence discard {kept.sandbox_id}")  # fmt: skip
        given = [*filter(None, (arguments.checkpoint,)), *arguments.paths]
        chosen, words = _chosen(found, given)
        if words:
            _check(kept, chosen, words, is_default=words == given)
        done = kept.transaction.rollback(chosen.checkpoint_id, kept.paths(words) if words else None)
    if arguments.json:
        print_json({"id": kept.sandbox_id, "checkpoint_id": chosen.checkpoint_id, "restored": done.files_restored})
        return 0
    name = f" ({escape_controls(chosen.name)})" if chosen.name else ""
    print(f"{counted(done.files_restored, 'path')} as at {chosen.checkpoint_id}{name}")
    return 0


def _check(kept: StoredSandbox, chosen: Checkpoint, words: list[str], *, is_default: bool) -> None:
    """A word that is neither a checkpoint nor a path with something to restore is a mistake."""
    try:
        kept.resolve(words, chosen.layer)
    except UsageError as error:
        if not is_default:
            raise
        hint = f"ringfence checkpoints {kept.sandbox_id} lists them"
        raise UsageError(f"{error}, and {words[0]} is not a checkpoint", hint=hint) from None


def _chosen(found: list[Checkpoint], words: list[str]) -> tuple[Checkpoint, list[str]]:
    """The first word is a checkpoint if it can be one."""
    if not words:
        return found[-1], []
    named = [each for each in found if words[0] in (each.checkpoint_id, each.name)]
    begun = named or [each for each in found if each.checkpoint_id.startswith(words[0])]
    if len(begun) > 1:
        raise UsageError(f"the checkpoint {words[0]!r} is ambiguous: {', '.join(each.checkpoint_id for each in begun)}",
                         hint="name it by its ID" if named else "write more of its ID")  # fmt: skip
    if begun and not named and _is_path(found, words[0]):
        raise UsageError(f"{words[0]!r} is the beginning of checkpoint {begun[0].checkpoint_id} and also a path",
                         hint=f"write ./{words[0]} for the path, or more of the checkpoint")  # fmt: skip
    return (begun[0], words[1:]) if begun else (found[-1], words)


def _is_path(found: list[Checkpoint], word: str) -> bool:
    return os.path.lexists(word) or any(path.endswith(f"/{word}") for each in found for path in each.layer)
