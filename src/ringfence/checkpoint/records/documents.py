"""JSON documents in one directory of ours: each is complete or absent, sealed, and never read through a link. Knows
nothing of what they mean.
"""

from __future__ import annotations

import errno
import os
from _collections_abc import Mapping

from ringfence.checkpoint.tree import Tree
from ringfence.errors import CheckpointError, UsageError
from ringfence.model.own_files import read_regular, write_whole

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ringfence.checkpoint.records.seal import Seal

_FULL = (errno.ENOSPC, errno.EDQUOT)
_DAMAGED = (KeyError, TypeError, ValueError, AttributeError, IndexError)
_MOST_BYTES = 1 << 30


class Documents:
    """Reads and writes the documents of one directory.

    ``prefix``: the directory's name within the directory that the seal is for.
    """

    def __init__(self, tree: Tree, seal: Seal, prefix: str = "") -> None:
        self.tree = tree
        self.seal = seal
        self._prefix = prefix

    def path(self, name: str) -> str:
        return f"{self.tree.path}/{name}"

    def write(self, name: str, document: Mapping[str, Any], spare: str = "") -> None:
        """``spare``: a file in the directory that is removed to make room if the disk is full."""
        import json

        text = json.dumps(document, separators=(",", ":"))  # json.dump is ten times slower
        try:
            self._write_whole(name, text)
        except OSError as error:
            if error.errno not in _FULL or not spare or not self.holds(spare):
                raise
            self.remove(spare)
            self._write_whole(name, text)

    def _write_whole(self, name: str, text: str) -> None:
        sealed = self.seal.sealed(self._prefix + name, text)
        last, where = self.tree.at(name)
        write_whole(last, sealed.encode("ascii"), **where)

    def read(self, name: str, *, trust: bool = False) -> dict[str, Any] | None:
        """None if there is no such file. ``trust``: accept one without a seal too."""
        try:
            text = self._text(name)
            import json  # here: a new workspace has no document yet

            if not trust:
                text = self.seal.opened(self._prefix + name, text)
            document: dict[str, Any] = json.loads(text)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError, UsageError) as error:
            raise CheckpointError(f"{self.path(name)} can't be read: {error}") from error
        if not isinstance(document, dict):
            raise CheckpointError(f"{self.path(name)} is damaged")
        return document

    def _text(self, name: str) -> str:
        last, where = self.tree.at(name)
        raw, _ = read_regular(last, _MOST_BYTES, **where)
        if len(raw) > _MOST_BYTES:
            raise ValueError("too large")
        return raw.decode("ascii")

    def take_over(self, name: str, before: Documents) -> None:
        """A document that was sealed as one of ``before`` becomes one of these; ForeignError if it was not."""
        document = before.read(name)
        if document is not None:
            self.write(name, document)

    def reseal(self, name: str) -> None:
        """From now on it counts as written by us, because the caller says so."""
        document = self.read(name, trust=True)
        if document is not None:
            document.pop("seal", None)
            self.write(name, document)

    def holds(self, name: str) -> bool:
        return self.tree.status(name) is not None

    def remove(self, name: str) -> None:
        last, where = self.tree.at(name)
        try:
            os.unlink(last, **where)
        except FileNotFoundError:
            pass


class reading:
    """Wraps the reading of a document: one that is not as we write it is damaged."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None:
        return

    def __exit__(self, _: object, error: object, __: object) -> None:
        if isinstance(error, _DAMAGED):
            hint = "restore the file, or discard all that it belongs to"
            raise CheckpointError(f"{self._path} is damaged ({type(error).__name__}: {error})", hint=hint) from error
