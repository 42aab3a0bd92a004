"""What a transaction writes down before it changes the first of its directories: which operation, on which paths.

One small file; each directory's own journal has the rest. Carries out nothing, and checks everything that it reads.
"""

from __future__ import annotations

from ringfence.checkpoint.layout import Parts
from ringfence.checkpoint.records.documents import Documents, reading
from ringfence.checkpoint.records.seal import JOURNAL_FILE
from ringfence.errors import CheckpointError
from ringfence.model.record import record

COMMIT, ROLLBACK, DISCARD = "commit", "rollback", "discard"


@record
class Noted:
    """An operation that was begun."""

    op: str
    parts: Parts
    checkpoint: str = ""


class TransactionJournal:
    """Notes what a transaction is about to do, and forgets it when it is done."""

    def __init__(self, documents: Documents, folders: int) -> None:
        self._documents = documents
        self._path = documents.path(JOURNAL_FILE)
        self._folders = folders

    def exists(self) -> bool:
        return self._documents.holds(JOURNAL_FILE)

    def write(self, noted: Noted, spare: str) -> None:
        """``spare``: a file that is removed for it if the disk is full, except for a commit, which frees nothing."""
        document = {"op": noted.op, "parts": list(noted.parts.items()), "checkpoint": noted.checkpoint}
        try:
            self._documents.write(JOURNAL_FILE, document, "" if noted.op == COMMIT else spare)
        except OSError as error:
            raise CheckpointError(f"{self._path}: {error.strerror}") from error

    def read(self) -> Noted | None:
        document = self._documents.read(JOURNAL_FILE)
        if document is None:
            return None
        with reading(self._path):
            parts: Parts = {number: inside if inside is None else tuple(map(str, inside))
                            for number, inside in document["parts"]}  # fmt: skip
            if document["op"] not in (COMMIT, ROLLBACK, DISCARD) or not set(parts) <= set(range(self._folders)):
                raise ValueError("no such operation or directory")
            return Noted(op=document["op"], parts=parts, checkpoint=str(document.get("checkpoint", "")))

    def done(self) -> None:
        try:
            self._documents.remove(JOURNAL_FILE)
        except OSError as error:
            raise CheckpointError(f"{self._path}: {error.strerror}") from error
