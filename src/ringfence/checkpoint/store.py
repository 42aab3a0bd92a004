"""Where a workspace keeps what it must not lose: contents by digest, checkpoints, the journal, its state.

Every file is written under a temporary name and renamed, so it is there whole or not at all. Contents are
shared by all checkpoints. Knows nothing of trees; not locked: one workspace at a time is the caller's duty.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from ringfence.checkpoint import content
from ringfence.checkpoint.entry import Entry, Manifest, Seen, from_rows, index_from, to_rows
from ringfence.checkpoint.tree import NEW_FILE_FLAGS
from ringfence.errors import CheckpointError
from ringfence.model.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_BLOBS, _CHECKPOINTS = "blobs", "checkpoints"
JOURNAL, STATE = "journal", "state"
_TICK_LIMIT_S = 1.0
_INEXACT_NS = 1_000_000_000
"""The two clocks are not read in the same instant."""
_SPARE_BYTES = 16384
_FULL = (errno.ENOSPC, errno.EDQUOT)
_DAMAGED = (KeyError, TypeError, ValueError, AttributeError, IndexError)


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


@record
class Moment:
    """By the file system's clock, which can be set, and by one that can't."""

    wall_ns: int
    awake_ns: int

    def set_back_since(self, earlier: Moment) -> int:
        """By how much the first was set back in between: for so long it told times that had been there before."""
        lost_ns = (self.awake_ns - earlier.awake_ns) - (self.wall_ns - earlier.wall_ns)
        return lost_ns if lost_ns > _INEXACT_NS else 0


class Store:
    """A folder of ours."""

    def __init__(self, path: str) -> None:
        self.path = path
        for name in ("", _BLOBS, _CHECKPOINTS):
            os.makedirs(os.path.join(path, name), mode=0o700, exist_ok=True)
        self._blobs: set[str] | None = None
        self.spare = os.path.join(path, "spare")

    def reserve(self) -> None:
        """Keep room for a journal: what a program filled the disk with must be undone though there is none."""
        if os.path.exists(self.spare):
            return
        try:
            with open(self.spare, "wb") as file:
                file.write(os.urandom(_SPARE_BYTES))  # which no file system makes smaller
        except OSError:
            _unlink(self.spare)

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
        except OSError as error:
            _unlink(temporary)
            raise OSError(error.errno, error.strerror, self.path) from error
        finally:
            os.close(writer)
        os.replace(temporary, os.path.join(self.path, _BLOBS, name))
        self._names().add(name)
        return name

    def has(self, digest: str) -> bool:
        return digest in self._names()

    def open(self, digest: str) -> int:
        if not digest.isalnum():  # a journal may have been written by hand
            raise CheckpointError(f"{digest[:80]!r} is no content's name")
        try:
            return os.open(os.path.join(self.path, _BLOBS, digest), os.O_RDONLY | getattr(os, "O_BINARY", 0))
        except OSError as error:
            raise CheckpointError(f"the content {digest[:12]} is not in the store: {error.strerror}") from error

    def _names(self) -> set[str]:
        if self._blobs is None:
            self._blobs = set(os.listdir(os.path.join(self.path, _BLOBS)))
        return self._blobs

    # Documents

    def write(self, name: str, document: Mapping[str, Any], *, urgent: bool = False) -> None:
        """``urgent``: it may take the room that was kept for it."""
        write_document(os.path.join(self.path, name + ".json"), document, self.spare if urgent else "")

    def read(self, name: str) -> dict[str, Any] | None:
        return read_document(os.path.join(self.path, name + ".json"))

    def index(self, name: str) -> dict[str, Seen]:
        """Empty where there is none."""
        document = self.read(name) or {}
        with reading(f"{self.path}/{name}.json"):
            return index_from(document)

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
        with reading(f"{self.path}/{_CHECKPOINTS}/{checkpoint_id}.json"):
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

    def tick(self, name: str) -> Moment:
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
            awake_ns = _awake_ns()
            os.utime(path, ns=(awake_ns, awake_ns))  # kept there, as the ctime is
            if (now := os.stat(path).st_ctime_ns) > before or time.monotonic() > deadline:
                return Moment(wall_ns=now, awake_ns=awake_ns)
            time.sleep(0.001)

    def now(self) -> Moment:
        """The file system's clock may have stood still since something was written."""
        os.stat(self.path)  # what was looked at gets an exact time from Linux 6.13 on
        os.utime(self.path)
        return Moment(wall_ns=os.stat(self.path).st_ctime_ns, awake_ns=_awake_ns())

    def moment(self, name: str) -> Moment | None:
        """When ``tick`` was last called by this name."""
        try:
            status = os.stat(os.path.join(self.path, name))
        except FileNotFoundError:
            return None
        return Moment(wall_ns=status.st_ctime_ns, awake_ns=status.st_mtime_ns)


def _awake_ns() -> int:
    """Of a clock that nobody sets, and that begins anew when the machine does."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic_ns() if clock is None else time.clock_gettime_ns(clock)


def write_document(path: str, document: Mapping[str, Any], spare: str = "") -> None:
    """There whole or not at all. ``spare``: a file that goes for it where the disk is full."""
    import json

    text = json.dumps(document, separators=(",", ":"))  # json.dump is ten times slower
    try:
        _write_whole(path, text)
    except OSError as error:
        _unlink(path + ".new")
        if error.errno not in _FULL or not os.path.exists(spare):
            raise
        os.unlink(spare)
        _write_whole(path, text)


def _write_whole(path: str, text: str) -> None:
    with open(path + ".new", "w", encoding="ascii") as file:
        file.write(text)
    os.replace(path + ".new", path)


@contextmanager
def reading(path: str) -> Iterator[None]:
    """Around what makes something of a document: one that is not as we write it is damaged."""
    try:
        yield
    except _DAMAGED as error:
        hint = "put the file back as it was, or discard the whole"
        raise CheckpointError(f"{path} is damaged ({type(error).__name__}: {error})", hint=hint) from error


def read_document(path: str) -> dict[str, Any] | None:
    """None where there is no such file."""
    import json

    try:
        with open(path, encoding="ascii") as file:
            document: dict[str, Any] = json.load(file)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} can't be read: {error}") from error
    if not isinstance(document, dict):
        raise CheckpointError(f"{path} is damaged")
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
