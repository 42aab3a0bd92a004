"""Apply what a kept sandbox changed, all of it or some paths. If files conflict, nothing is written unless you say
which version wins."""

from __future__ import annotations

from ringfence.cli.json_text import print_json
from ringfence.cli.stored_sandbox import StoredSandbox, add_id, add_json, from_here, registry_of, shown_path
from ringfence.errors import ConflictError
from ringfence.model.paths import quoted
from ringfence.model.printed import counted

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

    from ringfence.checkpoint.layer import Committed

EXAMPLES = """\
examples:
  ringfence commit 3f2a
  ringfence commit 3f2a src/a.py docs
  ringfence commit 3f2a --merge              where somebody else changed the same texts: merge
  ringfence commit 3f2a --theirs src/a.py    only this, and as it is now
  ringfence commit 3f2a --mine               overwrite what somebody else changed

When nothing is left in it, the sandbox is removed. If somebody else changed the same files, commit names them, writes
nothing and exits with 1. The same content on both sides is not a conflict.
"""
# how conflicts are decided: (help, field of the result, words about it)
DECISIONS = {
    "merge": ("where both changed a text, merge the changes line by line (needs git)", "merged", "both changes merged"),
    "theirs": ("where both changed something, keep the directory's version (your own edits too)", "theirs",
               "kept the directory's version"),
    "mine": ("where both changed something, overwrite it with the sandbox's version (the job's)", "mine",
             "overwritten, though somebody else changed it"),
}  # fmt: skip


def configure(parser: argparse.ArgumentParser) -> None:
    add_id(parser)
    add_json(parser)
    after_run = parser.add_mutually_exclusive_group()
    parser.set_defaults(on_conflict="refuse")
    for name, (text, _, _) in DECISIONS.items():
        after_run.add_argument(f"--{name}", dest="on_conflict", action="store_const", const=name, help=text)
    parser.add_argument("paths", nargs="*", default=[], metavar="PATH", help="only these, and what is below them")


def execute(arguments: argparse.Namespace) -> int:
    with StoredSandbox(registry_of(arguments), arguments.sandbox) as kept:
        if arguments.paths:
            kept.resolve(arguments.paths)
        paths = kept.paths(arguments.paths) if arguments.paths else None
        try:
            done = kept.transaction.commit(paths, on_conflict=arguments.on_conflict)
        except ConflictError as error:
            error.fixes = ways_out(kept.sandbox_id, error.paths)  # type: ignore[attr-defined]
            raise
        left = 0 if kept.remove_if_done() else len(kept.transaction.changes())
    if arguments.json:
        decided = {field: getattr(done, field) for _, field, _ in DECISIONS.values()}
        told = {"id": kept.sandbox_id, "carried_over": done.paths, "not_carried_over": done.left, "left": left}
        print_json(told | decided)
        return 0
    _tell(done)
    rest = f"; left in {kept.sandbox_id}: {left}" if left else ""
    print(f"{counted(len(done.paths), 'path')} applied{rest}")
    return 0


def _tell(done: Committed) -> None:
    for path in done.left:
        before = "; what was there before is removed" if path in done.paths else ""
        print(f"not applied, because it is not a file, directory or link: {shown_path(path)}{before}")
    for _, field, fate in DECISIONS.values():
        for path in getattr(done, field):
            print(f"{fate}: {shown_path(path)}")


def ways_out(sandbox_id: str, paths: tuple[str, ...]) -> tuple[str, ...]:
    """The commands that decide a conflict. A single path is named; among several, only the person can choose."""
    import shlex

    only = from_here(paths[0]) if len(paths) == 1 else ""
    name = f" {shlex.quote(only)}" if only and quoted(only) == only else ""
    width = max(map(len, DECISIONS)) + 2
    others = "" if name else "; add a PATH to do so only there"
    return tuple(f"ringfence commit {sandbox_id} {f'--{way}':<{width}}{name}   {text}{others}"
                 for way, (text, _, _) in DECISIONS.items())  # fmt: skip
