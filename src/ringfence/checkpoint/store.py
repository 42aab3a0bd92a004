"""Where a workspace keeps what it must not lose: contents by digest, checkpoints, the journal, its state.

Every file is written under a temporary name and renamed, so it is there whole or not at all. Contents are
shared by all checkpoints. Knows nothing of trees; not locked: one workspace at a time is the caller's duty.
"""

from __future__ import annotations

import os
import stat
import time
from _collections_abc import Mapping

from ringfence.checkpoint import content
from ringfence.checkpoint.entry import Entry, Manifest, Seen, from_rows, index_from, to_rows
from ringfence.checkpoint.records.documents import Documents, reading
from ringfence.checkpoint.records.seal import Seal
from ringfence.checkpoint.tree import FILE_FLAGS, NEW_FILE_FLAGS, Tree
from ringfence.errors import CheckpointError, UsageError
from ringfence.model.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ringfence.checkpoint.tree import Where

_BLOBS, _CHECKPOINTS = "blobs", "checkpoints"
JOURNAL, STATE = "journal", "state"
_TICK_LIMIT_S = 1.0
_TICK_FLAGS = os.O_WRONLY | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)
_INEXACT_NS = 1_000_000_000
"""The two clocks are not read in the same instant."""
SPARE = "spare"
_SPARE_BYTES = 16384


def new_checkpoint_id() -> str:
    return os.urandom(6).hex()


@record
class Checkpoint:
    """A state of the layers that you can go back to."""

    checkpoint_id: str
    name: str
    number: int
    """Later checkpoints have higher numbers."""
    created_s: float
    state_data: Mapping[str, Any]
    """The caller's own, as JSON."""
    layer: Manifest


@record
class Moment:
    """A moment by the file system's clock, which can be set, and by a clock that can't."""

    wall_ns: int
    awake_ns: int

    def set_back_since(self, earlier: Moment) -> int:
        """How far the first clock was set back in between: for that long it showed times a second time."""
        lost_ns = (self.awake_ns - earlier.awake_ns) - (self.wall_ns - earlier.wall_ns)
        return lost_ns if lost_ns > _INEXACT_NS else 0


def refuse_no_size(max_bytes: object) -> None:
    """Nothing is below NaN or -1, so all checkpoints would go."""
    if isinstance(max_bytes, bool) or not isinstance(max_bytes, int) or max_bytes < 0:
        raise UsageError("max_bytes must be a whole number, 0 or more", hint="give the bytes that checkpoints may take")


class Store:
    """A directory of ours; everything in it is reached from its descriptor, never through a link."""

    def __init__(
        self, place: str | Tree, seal: Seal | None = None, prefix: str = "", *, passing: bool = False
    ) -> None:
        """``seal``, ``prefix``: see ``Documents``; absent: it has a seal of its own. ``passing``: see ``Seal``."""
        if isinstance(place, str):
            os.makedirs(place, mode=0o700, exist_ok=True)
            place = Tree(place)
        self.tree = place
        self.path = place.path
        for name in (_BLOBS, _CHECKPOINTS):
            self.tree.make(name)
        own = seal or Seal(self.path, place.identity[1], passing=passing)
        self.documents = Documents(self.tree, own, prefix)
        self._blobs: set[str] | None = None

    def reserve(self) -> None:
        """Reserve room for a journal: undoing must work even if a program has filled the disk."""
        if self.documents.holds(SPARE):
            return
        try:
            with open(self._new(SPARE), "wb") as file:
                file.write(os.urandom(_SPARE_BYTES))  # which no file system makes smaller
        except OSError:
            self._unlink(SPARE)

    def _new(self, path: str) -> int:
        name, where = self.tree.at(path)
        return os.open(name, NEW_FILE_FLAGS, 0o600, **where)

    def _unlink(self, path: str) -> None:
        self.documents.remove(path)

    # Contents

    def put(self, reader: int) -> str:
        """Keep a copy of a file's content; return its digest. A program may have mapped the file."""
        content.begin_write_back(reader)
        return self.put_unmapped(reader)

    def put_unmapped(self, reader: int) -> str:
        """The same for a file that no program of a job can write: nothing has to be flushed to the disk first."""
        temporary = f"{_BLOBS}/new"
        self._unlink(temporary)
        writer = self._new(temporary)
        try:
            # The digest of a clone is taken afterwards, since the original may be written to meanwhile.
            name = content.digest(writer) if content.clone(reader, writer) else content.copy(reader, writer)
        except OSError as error:
            self._unlink(temporary)
            raise OSError(error.errno, error.strerror, self.path) from error
        finally:
            os.close(writer)
        self._rename(temporary, f"{_BLOBS}/{name}")
        self._names().add(name)
        return name

    def put_text(self, text: bytes) -> str:
        """The same for bytes that are in no file."""
        self._unlink(f"{_BLOBS}/text")
        with open(self._new(f"{_BLOBS}/text"), "w+b", buffering=0) as file:
            self._unlink(f"{_BLOBS}/text")
            content.write(file.fileno(), text)
            return self.put_unmapped(file.fileno())

    def _rename(self, path: str, to: str) -> None:
        old, where = self.tree.at(path)
        new, there = self.tree.at(to)
        os.replace(old, new, src_dir_fd=where.get("dir_fd"), dst_dir_fd=there.get("dir_fd"))

    def has(self, digest: str) -> bool:
        return digest in self._names()

    def open(self, digest: str) -> int:
        if not digest.isalnum():  # a journal may have been written by hand
            raise CheckpointError(f"{digest[:80]!r} is not a content digest")
        try:
            name, where = self.tree.at(f"{_BLOBS}/{digest}")
            return os.open(name, FILE_FLAGS, **where)
        except OSError as error:
            raise CheckpointError(f"the content {digest[:12]} is not in the store: {error.strerror}") from error

    def text(self, digest: str, most_bytes: int) -> bytes:
        """A small content; CheckpointError if it does not match its digest."""
        with open(self.open(digest), "rb") as file:
            found = file.read(most_bytes + 1)
            if content.digest(file.fileno()) != digest:
                raise CheckpointError(f"the content {digest[:12]} in {self.path} was changed by somebody else")
        return found

    def _names(self) -> set[str]:
        if self._blobs is None:
            self._blobs = set(self.tree.names(_BLOBS))
        return self._blobs

    # Documents

    def write(self, name: str, document: Mapping[str, Any], *, urgent: bool = False) -> None:
        """``urgent``: it may take the room that was kept for it."""
        self.documents.write(f"{name}.json", document, SPARE if urgent else "")

    def read(self, name: str) -> dict[str, Any] | None:
        return self.documents.read(f"{name}.json")

    def index(self, name: str) -> dict[str, Seen]:
        """Empty where there is none."""
        document = self.read(name) or {}
        with reading(f"{self.path}/{name}.json"):
            return index_from(document)

    def holds(self, name: str) -> bool:
        return self.documents.holds(f"{name}.json")

    def remove(self, name: str) -> None:
        self._unlink(f"{name}.json")

    # Checkpoints

    def save(self, checkpoint: Checkpoint) -> None:
        document = {**checkpoint.__dict__, "layer": to_rows(checkpoint.layer)}
        self.write(f"{_CHECKPOINTS}/{checkpoint.checkpoint_id}", document)

    def checkpoints(self) -> list[Checkpoint]:
        """The oldest first."""
        return sorted(map(self.load, self.checkpoint_ids()), key=lambda checkpoint: checkpoint.number)

    def checkpoint_ids(self) -> list[str]:
        """In no order."""
        names = self.tree.names(_CHECKPOINTS)
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

    def collect(self, *needed: Manifest) -> int:
        """Remove contents that neither ``needed`` nor a checkpoint refers to; return the bytes freed."""
        manifests: list[Mapping[str, Entry]] = [*needed, *(c.layer for c in self.checkpoints())]
        used = {entry.digest for manifest in manifests for entry in manifest.values()}
        freed = 0
        for name in self._names() - used:
            freed += self._room(f"{_BLOBS}/{name}")
            self._unlink(f"{_BLOBS}/{name}")
        self._blobs = None
        return freed

    def used_bytes(self) -> int:
        """What contents, checkpoints and documents take on the disk."""
        inside = ((folder, name) for folder in ("", _BLOBS, _CHECKPOINTS) for name in self.tree.names(folder))
        return sum(self._room(f"{folder}/{name}".lstrip("/")) for folder, name in inside)

    def _room(self, path: str) -> int:
        status = self.tree.status(path)
        if status is None or not stat.S_ISREG(status.st_mode):
            return 0
        return int(getattr(status, "st_blocks", 0)) * 512 or status.st_size

    # Time

    def tick(self, name: str) -> Moment:
        """A moment of the file system's clock after all that was written and before all that will be.

        That clock may stand still for some milliseconds, in which a change would leave no trace.
        """
        path, where = self.tree.at(name)
        os.close(os.open(path, _TICK_FLAGS, 0o600, **where))
        deadline = time.monotonic() + _TICK_LIMIT_S
        before = _touched(path, where, _awake_ns())
        while True:
            awake_ns = _awake_ns()
            if (now := _touched(path, where, awake_ns)) > before or time.monotonic() > deadline:
                return Moment(wall_ns=now, awake_ns=awake_ns)
            time.sleep(0.001)

    def now(self) -> Moment:
        """The file system's clock may have stood still since something was written."""
        top = self.tree.top
        os.stat(top)  # what was looked at gets an exact time from Linux 6.13 on
        os.utime(top)
        return Moment(wall_ns=os.stat(top).st_ctime_ns, awake_ns=_awake_ns())

    def moment(self, name: str) -> Moment | None:
        """When ``tick`` was last called by this name."""
        status = self.tree.status(name)
        return None if status is None else Moment(wall_ns=status.st_ctime_ns, awake_ns=status.st_mtime_ns)

    # The rest

    def reseal(self) -> None:
        """Treat every document as if we had written it: the caller trusts it."""
        for name in self._all_documents():
            self.documents.reseal(name)

    def take_over(self, before: Store) -> None:
        """That store's directory has become this one; documents that it did not write itself are refused."""
        for name in self._all_documents():
            self.documents.take_over(name, before.documents)

    def _all_documents(self) -> list[str]:
        names = [name for name in self.tree.names("") if name.endswith(".json")]
        return [*names, *(f"{_CHECKPOINTS}/{each}.json" for each in self.checkpoint_ids())]

    def close(self) -> None:
        self.tree.close()


Place = str | Store
"""A store, or its path."""


def _touched(path: str, where: Where, awake_ns: int) -> int:
    """The file system's clock after a change that is made now; ``awake_ns`` is kept there, as the ctime is. On Windows
    the ctime is the creation time and never moves: the time of the last write replaces it."""
    if os.name == "nt":
        os.utime(path)
        return os.stat(path).st_mtime_ns
    os.utime(path, ns=(awake_ns, awake_ns), **where)
    return os.stat(path, **where).st_ctime_ns


def _awake_ns() -> int:
    """A clock that nobody can set, and that starts from zero at boot."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic_ns() if clock is None else time.clock_gettime_ns(clock)
