"""The chain on disk: one writer, append only, resumed after a crash.

Owns: the lock, the fsync policy, and the cut of a torn last line. Any other fault in the file is refused:
what is in the middle was once acknowledged, so it cannot be a crash.
Does not: check records that are read back (chain.check_stream does, from any stream).
"""

from __future__ import annotations

import os
import stat
import sys
import time
from collections.abc import Iterator, Mapping
from typing import BinaryIO, Self

from ringfence.errors import EvidenceError, UsageError
from ringfence.evidence import chain
from ringfence.evidence.canonical import canonical
from ringfence.evidence.strictjson import decode
from ringfence.model.record import record

_OPEN_FLAGS = (
    os.O_RDWR
    | os.O_CREAT
    | os.O_APPEND
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_BINARY", 0)
)
_LOCK_PAUSE_S = 0.005


@record
class Position:
    """How far a chain file was known to be good."""

    size_bytes: int
    head: str
    count: int


START = Position(size_bytes=0, head=chain.GENESIS, count=0)


class ChainWriter:
    """Appends records to a chain file; use it as a context manager.

    ``fsync_every_records``: 1 = each record is on disk when append returns; N = every Nth; 0 = only on close.
    ``wait_s``: how long to wait for another writer to close. ``known``: the ``position`` of an earlier writer of the
    same file; what is before it is not read again.
    ``dropped_bytes`` tells how much of a torn last line was cut off on opening.
    """

    def __init__(
        self, path: str, *, fsync_every_records: int = 1, wait_s: float = 0.0, known: Position = START
    ) -> None:
        if fsync_every_records < 0:
            raise UsageError("fsync_every_records must be 0 or more")
        self.path = path
        self.head = known.head
        self.count = known.count
        self.dropped_bytes = 0
        self._fsync_every_records = fsync_every_records
        self._size_bytes = known.size_bytes
        self._file: BinaryIO | None = None
        try:
            self._open(wait_s)
        except OSError as error:
            self._abandon()
            raise EvidenceError(f"cannot open the chain {path!r}: {error.strerror}") from error
        except EvidenceError:
            self._abandon()
            raise

    @property
    def position(self) -> Position:
        """Behind the last record."""
        return Position(size_bytes=self._size_bytes, head=self.head, count=self.count)

    def lines(self) -> Iterator[bytes]:
        """The records of the open file itself: its path may lead to another file by now."""
        with os.fdopen(os.dup(self._usable().fileno()), "rb") as reader:
            reader.seek(0)
            yield from chain.complete_lines(reader)

    def append(self, record: Mapping[str, object]) -> str:
        """Write one record and return the new head. After a failure the file ends at the last good record."""
        file = self._usable()
        if "chain" in record:
            raise UsageError("the chain writes the member 'chain' itself")
        head = chain.next_head(self.head, record)
        line = canonical({**record, "chain": head}) + b"\n"
        if len(line) > chain.MAX_LINE_BYTES:
            raise EvidenceError(f"a record of {len(line)} bytes is too long for the chain")
        self._write(file, line)
        self.head, self.count = head, self.count + 1
        if self._fsync_every_records and self.count % self._fsync_every_records == 0:
            self.flush()
        return head

    def flush(self) -> None:
        """Return when everything appended so far is on disk."""
        file = self._usable()
        try:
            os.fsync(file.fileno())
        except OSError as error:
            # After a failed fsync the kernel may have dropped the pages: a second one proves nothing.
            self._abandon()
            raise EvidenceError(f"cannot sync the chain {self.path!r}: {error.strerror}") from error

    def close(self) -> None:
        if self._file is None:
            return
        self.flush()
        self._abandon()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self, wait_s: float) -> None:
        self._file = os.fdopen(os.open(self.path, _OPEN_FLAGS, 0o600), "r+b", buffering=0)
        descriptor = self._file.fileno()
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise EvidenceError(f"the chain {self.path!r} is not a regular file")
        _lock(descriptor, self.path, wait_s)
        new = self._size_bytes == 0
        self._resume(descriptor)
        if new:
            _sync_folder(self.path)

    def _resume(self, descriptor: int) -> None:
        """Check what is there and cut off a last line that never got its newline."""
        with os.fdopen(os.dup(descriptor), "rb") as reader:
            if os.fstat(descriptor).st_size < self._size_bytes:
                raise EvidenceError(f"the chain {self.path!r} is shorter than it was: records are gone")
            reader.seek(self._size_bytes)
            while line := reader.readline(chain.MAX_LINE_BYTES + 1):
                if not line.endswith(b"\n"):
                    break
                self.head = chain.follow(self.head, decode(line), self.count + 1)
                self.count += 1
                self._size_bytes += len(line)
        if len(line) > chain.MAX_LINE_BYTES:
            raise EvidenceError(f"record {self.count + 1} is too long")
        if line:
            os.ftruncate(descriptor, self._size_bytes)
            os.fsync(descriptor)
            self.dropped_bytes = len(line)

    def _write(self, file: BinaryIO, line: bytes) -> None:
        try:
            written = file.write(line)
            if written != len(line):
                raise OSError(0, f"only {written} of {len(line)} bytes were written")
        except OSError as error:
            self._cut_back(file)
            raise EvidenceError(f"cannot append to the chain {self.path!r}: {error.strerror}") from error
        self._size_bytes += len(line)

    def _cut_back(self, file: BinaryIO) -> None:
        try:
            os.ftruncate(file.fileno(), self._size_bytes)
        except OSError:
            self._abandon()  # the torn line stays for the next opening; nothing may be appended after it

    def _usable(self) -> BinaryIO:
        if self._file is None:
            raise EvidenceError(f"the chain {self.path!r} is closed")
        return self._file

    def _abandon(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _lock(descriptor: int, path: str, wait_s: float) -> None:
    """One writer at a time; the lock goes with the descriptor, so a killed writer leaves none behind."""
    deadline_s = time.monotonic() + wait_s
    while not _try_lock(descriptor):
        if time.monotonic() >= deadline_s:
            raise EvidenceError(f"the chain {path!r} has another writer")
        time.sleep(_LOCK_PAUSE_S)


def _try_lock(descriptor: int) -> bool:
    try:
        if sys.platform == "win32":
            import msvcrt

            os.lseek(descriptor, 1 << 40, os.SEEK_SET)  # a byte far beyond the data: locks block readers there
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True


def _sync_folder(path: str) -> None:
    """A new file is only as durable as its name; Windows has no such call."""
    if sys.platform == "win32":
        return
    descriptor = os.open(os.path.dirname(path) or ".", os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
