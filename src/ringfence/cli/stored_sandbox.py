"""The sandboxes that commands keep, and how a person names them: by id or the beginning of one.

They lie in ``$XDG_STATE_HOME/ringfence/sandboxes``, laid out like a manager's sandboxes; ``--root`` names a manager's
directory. This module prints nothing; each command is a module of its own.
"""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Iterable, Iterator

from ringfence.checkpoint.transaction import Transaction
from ringfence.cli.state_folder import current_folder
from ringfence.errors import SandboxError, UsageError
from ringfence.manager.registry import Damaged, Metadata, Registry
from ringfence.model.outcome import ChangeKind
from ringfence.model.paths import quoted, within
from ringfence.model.state_folder import sandboxes_folder
from ringfence.model.system_text import escape_controls

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

_SHORTEST_ID_BYTES = 2
_REPLACED = (ChangeKind.DELETED, ChangeKind.TYPE_CHANGED)


def add_id(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("sandbox", metavar="ID", help="the sandbox's ID, or its first characters")
    add_root(parser)


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")


def add_root(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--root", metavar="DIR", default="",
                        help="directory of the kept sandboxes (default: "
                             "$XDG_STATE_HOME/ringfence/sandboxes)")  # fmt: skip


def registry_of(arguments: argparse.Namespace) -> Registry:
    if arguments.root and not os.path.isdir(arguments.root):
        raise UsageError(f"--root {arguments.root}: no such directory", hint="name an existing directory")
    return Registry(arguments.root or sandboxes_folder())


class StoredSandbox:
    """One sandbox, opened: nobody else can use it meanwhile."""

    def __init__(self, registry: Registry, word: str, *, finish: bool = True) -> None:
        """Without ``finish``: CheckpointError where an operation in it was interrupted."""
        self.registry = registry
        self.sandbox_id = find(registry, word)
        tree = registry.opened(self.sandbox_id)
        try:
            self.metadata = registry.read_in(tree, self.sandbox_id)
        except BaseException:
            tree.close()
            raise
        self.transaction = Transaction.open(tree, finish=finish)

    def __enter__(self) -> StoredSandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.transaction.close()

    def remove_if_done(self) -> bool:
        """Remove it once it has no changes left; a manager's stays, since the manager still uses it."""
        done = not self.metadata.config and not self.transaction.changes()
        if done:
            self.throw_away()
        return done

    def throw_away(self) -> None:
        self.transaction.close()
        self.registry.remove_unused(self.sandbox_id)

    def paths(self, words: Iterable[str]) -> list[str]:
        """Paths as typed: relative to the current directory if that is in the sandbox, else to its only base."""
        here = current_folder()
        inside = any(within(here, base) for base in self.transaction.bases)
        return [os.path.join(here, word) if inside else word for word in words]

    def resolve(self, words: list[str], more: Iterable[str] = ()) -> dict[str, str]:
        """The changed paths, and those of ``more``, that the words name, with what is below; each with its kind.

        A word that names none is a mistake. Paths below a deleted directory are not listed separately, and have no
        kind. """
        kinds = {change.path: str(change.kind) for change in self.transaction.changes()}
        known = dict.fromkeys(more, "") | kinds
        replaced = [path for path, kind in kinds.items() if kind in _REPLACED]
        found: dict[str, str] = {}
        for word, path in zip(words, self.paths(words), strict=True):
            place = self._in_base(path)
            below = {each: kind for each, kind in known.items() if within(each, place)}
            if not below and not any(within(place, each) for each in replaced):
                hint = f"ringfence diff {self.sandbox_id} shows what did"
                raise UsageError(f"{word}: nothing changed there", hint=hint)
            found |= below or {place: ""}
        return found

    def _in_base(self, path: str) -> str:
        """The absolute path in the base, also where the working copy was named."""
        place = self.transaction.working_copy(path)
        tops = {self.transaction.place(base): base for base in self.transaction.bases}
        return next(base + place[len(top) :] for top, base in tops.items() if within(place, top))


def find(registry: Registry, word: str) -> str:
    """The id that a word means."""
    known = [each.sandbox_id for each in registry.all()]
    if word in known:
        return word
    begun = [each for each in known if word and each.startswith(word)]
    if len(begun) > 1:
        raise UsageError(f"the ID {word!r} is ambiguous: {', '.join(begun)}", hint="write more of it")
    return begun[0] if begun else _damaged_or_none(registry, word)


def _damaged_or_none(registry: Registry, word: str) -> str:
    try:
        return registry.read(word).sandbox_id
    except UsageError as error:
        raise UsageError(str(error), hint=error.hint or "ringfence sandboxes lists them") from None


def take(registry: Registry, making: str, isolation: str, base: str, command: Iterable[str]) -> str:
    """Give a run's layer, kept at ``making``, an id that is quick to type."""
    for tries in range(1000):
        sandbox_id = os.urandom(_SHORTEST_ID_BYTES + tries // 8).hex()
        metadata = Metadata(sandbox_id=sandbox_id, created_s=time.time(), isolation=isolation, bases=(base,),
                            command=tuple(command))  # fmt: skip
        try:
            registry.take(making, metadata)
            return sandbox_id
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):  # another run was faster
                raise SandboxError(f"{making}: {error.strerror}") from error
    raise SandboxError(f"no free id in {registry.root}")


def all_of(registry: Registry) -> Iterator[Metadata | Damaged]:
    """The oldest first."""
    return iter(sorted(registry.all(), key=lambda each: getattr(each, "created_s", 0.0)))


# ---- what is shown: names and texts are a hostile program's, and a terminal obeys control characters


def shown_path(path: str) -> str:
    """Relative to the current directory if it lies there, and escaped as everywhere."""
    return quoted(from_here(path))


def from_here(path: str) -> str:
    """Relative to the current directory if it lies there; exactly as the program chose it."""
    try:
        return os.path.relpath(path) if path.startswith(os.getcwd() + "/") else path
    except FileNotFoundError:  # the current directory is gone
        return path


_COLOURS = (("+++", "1"), ("---", "1"), ("@@", "36"), ("+", "32"), ("-", "31"))


def print_diff(parts: Iterable[str]) -> None:
    """On a terminal in colour and without control characters; elsewhere as it is, for ``patch``."""
    sys.stdout.flush()
    show = _print_safely if sys.stdout.isatty() else _print_raw
    for text in parts:
        show(text)
    sys.stdout.flush()


def _print_raw(text: str) -> None:
    sys.stdout.buffer.write(text.encode("utf-8", "surrogateescape"))


def _print_safely(text: str) -> None:
    coloured = not os.environ.get("NO_COLOR")
    for line in text.split("\n")[:-1]:
        colour = next((code for start, code in _COLOURS if line.startswith(start)), "")
        shown = escape_controls(line, keep="\t")
        print(f"\x1b[{colour}m{shown}\x1b[m" if colour and coloured else shown)
