"""What a transaction writes down before it changes the first of its folders: which operation, on which paths.

One small file; each folder's own journal has the rest. Carries out nothing, and believes nothing that it reads.
"""

from __future__ import annotations

import os

from ringfence.checkpoint.layout import Parts
from ringfence.checkpoint.store import read_document, reading, write_document
from ringfence.errors import CheckpointError
from ringfence.model.record import record

COMMIT, ROLLBACK, DISCARD = "commit", "rollback", "discard"


@record
class Noted:
    """An operation that was begun."""

    op: str
    parts: Parts
    checkpoint: str = ""


class Ledger:
    """Of one transaction."""

    def __init__(self, path: str, folders: int) -> None:
        self._path = path
        self._folders = folders

    def exists(self) -> bool:
        return os.path.exists(self._path)

    def write(self, noted: Noted, spare: str) -> None:
        """``spare``: a file that goes for it where the disk is full, but for a commit, which makes nothing free."""
        document = {"op": noted.op, "parts": list(noted.parts.items()), "checkpoint": noted.checkpoint}
        try:
            write_document(self._path, document, "" if noted.op == COMMIT else spare)
        except OSError as error:
            raise CheckpointError(f"{self._path}: {error.strerror}") from error

    def read(self) -> Noted | None:
        document = read_document(self._path)
        if document is None:
            return None
        with reading(self._path):
            parts: Parts = {number: inside if inside is None else tuple(map(str, inside))
                            for number, inside in document["parts"]}  # fmt: skip
            if document["op"] not in (COMMIT, ROLLBACK, DISCARD) or not set(parts) <= set(range(self._folders)):
                raise ValueError("an operation or a folder that there is not")
            return Noted(op=document["op"], parts=parts, checkpoint=str(document.get("checkpoint", "")))

    def done(self) -> None:
        try:
            os.unlink(self._path)
        except OSError as error:
            raise CheckpointError(f"{self._path}: {error.strerror}") from error
