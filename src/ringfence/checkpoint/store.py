"""Where a workspace keeps what it must not lose: contents by digest, checkpoints, the journal, its state.

Every file is written under a temporary name and renamed, so it is there whole or not at all. Contents are
shared by all checkpoints. Knows nothing of trees; not locked: one workspace at a time is the caller's duty.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

from ringfence.checkpoint import content
from ringfence.checkpoint.entry import Entry, Manifest, from_rows, to_rows
from ringfence.checkpoint.tree import NEW_FILE_FLAGS
from ringfence.errors import CheckpointError
from ringfence.model.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_BLOBS, _CHECKPOINTS = "blobs", "checkpoints"
JOURNAL, STATE = "journal", "state"
_TICK_LIMIT_S = 1.0


@record
class Checkpoint:
    """A state of the workspace that one can go back to."""

    checkpoint_id: str
    name: str
    number: int
    """Later checkpoints have higher ones."""
    created_s: float
    state_data: Mapping[str, Any]
    """The caller's own, as JSON."""
    layer: Manifest


class Store:
    """A folder of ours."""

    def __init__(self, path: str) -> None:
        self.path = path
        for name in ("", _BLOBS, _CHECKPOINTS):
            os.makedirs(os.path.join(path, name), mode=0o700, exist_ok=True)
        self._blobs: set[str] | None = None

    # Contents

    def put(self, reader: int) -> str:
        """Keep a copy of a file's content; its digest."""
        temporary = os.path.join(self.path, _BLOBS, "new")
        _unlink(temporary)
        content.begin_write_back(reader)
        writer = os.open(temporary, NEW_FILE_FLAGS, 0o600)
        try:
            # Of a clone the digest is taken afterwards, for the original may be written to meanwhile.
            name = content.digest(writer) if content.clone(reader, writer) else content.copy(reader, writer)
        finally:
            os.close(writer)
        os.replace(temporary, os.path.join(self.path, _BLOBS, name))
        self._names().add(name)
        return name

    def has(self, digest: str) -> bool:
        return digest in self._names()

    def open(self, digest: str) -> int:
        try:
            return os.open(os.path.join(self.path, _BLOBS, digest), os.O_RDONLY | getattr(os, "O_BINARY", 0))
        except OSError as error:
            raise CheckpointError(f"the content {digest[:12]} is not in the store: {error.strerror}") from error

    def _names(self) -> set[str]:
        if self._blobs is None:
            self._blobs = set(os.listdir(os.path.join(self.path, _BLOBS)))
        return self._blobs

    # Documents

    def write(self, name: str, document: Mapping[str, Any]) -> None:
        write_document(os.path.join(self.path, name + ".json"), document)

    def read(self, name: str) -> dict[str, Any] | None:
        return read_document(os.path.join(self.path, name + ".json"))

    def holds(self, name: str) -> bool:
        return os.path.exists(os.path.join(self.path, name + ".json"))

    def remove(self, name: str) -> None:
        _unlink(os.path.join(self.path, name + ".json"))

    # Checkpoints

    def save(self, checkpoint: Checkpoint) -> None:
        document = {**checkpoint.__dict__, "layer": to_rows(checkpoint.layer)}
        self.write(f"{_CHECKPOINTS}/{checkpoint.checkpoint_id}", document)

    def checkpoints(self) -> list[Checkpoint]:
        """The oldest first."""
        return sorted(map(self.load, self.checkpoint_ids()), key=lambda checkpoint: checkpoint.number)

    def checkpoint_ids(self) -> list[str]:
        """In no order."""
        names = os.listdir(os.path.join(self.path, _CHECKPOINTS))
        return [name.removesuffix(".json") for name in names if name.endswith(".json")]

    def load(self, checkpoint_id: str) -> Checkpoint:
        known = checkpoint_id.isalnum()
        document = self.read(f"{_CHECKPOINTS}/{checkpoint_id}") if known else None
        if document is None:
            raise CheckpointError(f"there is no checkpoint {checkpoint_id}", hint="it may have been deleted")
        return Checkpoint(**{**document, "layer": from_rows(document["layer"])})

    def drop(self, checkpoint_id: str) -> None:
        self.remove(f"{_CHECKPOINTS}/{checkpoint_id}")

    # Room

    def collect(self, held: Manifest) -> int:
        """Remove contents that nothing refers to; the bytes that became free."""
        manifests: list[Mapping[str, Entry]] = [held, *(c.layer for c in self.checkpoints())]
        used = {entry.digest for manifest in manifests for entry in manifest.values()}
        freed = 0
        for name in self._names() - used:
            path = os.path.join(self.path, _BLOBS, name)
            freed += _room(path)
            _unlink(path)
        self._blobs = None
        return freed

    def used_bytes(self) -> int:
        """What contents, checkpoints and documents take on the disk."""
        folders = (self.path, os.path.join(self.path, _BLOBS), os.path.join(self.path, _CHECKPOINTS))
        paths = (os.path.join(folder, name) for folder in folders for name in os.listdir(folder))
        return sum(_room(path) for path in paths if os.path.isfile(path))

    # Time

    def tick(self, name: str) -> int:
        """A moment of the file system's clock after all that was written and before all that will be.

        That clock may stand still for some milliseconds, in which a change would leave no trace.
        """
        path = os.path.join(self.path, name)
        with open(path, "ab"):
            pass
        deadline = time.monotonic() + _TICK_LIMIT_S
        os.utime(path)
        before = os.stat(path).st_ctime_ns
        while True:
            os.utime(path)
            if (now := os.stat(path).st_ctime_ns) > before or time.monotonic() > deadline:
                return now
            time.sleep(0.001)

    def moment(self, name: str) -> int | None:
        """When ``tick`` was last called by this name."""
        try:
            return os.stat(os.path.join(self.path, name)).st_ctime_ns
        except FileNotFoundError:
            return None


def write_document(path: str, document: Mapping[str, Any]) -> None:
    """There whole or not at all."""
    import json

    with open(path + ".new", "w", encoding="ascii") as file:
        file.write(json.dumps(document, separators=(",", ":")))  # json.dump is ten times slower
    os.replace(path + ".new", path)


def read_document(path: str) -> dict[str, Any] | None:
    """None where there is no such file."""
    import json

    try:
        with open(path, encoding="ascii") as file:
            document: dict[str, Any] = json.load(file)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} can't be read: {error}") from error
    return document


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass


def _room(path: str) -> int:
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return 0
    return int(getattr(status, "st_blocks", 0)) * 512 or status.st_size
