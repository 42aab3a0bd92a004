"""Digests: of files, of labelled values and of directories (docs/reference/formats.md, section 1). SHA-256, lower-case
hex.

Owns: reading files without following a link, opening a FIFO or trusting a stated size.
Does not: hold still a directory that somebody is writing to; hash a workspace after its processes have ended.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable, Iterator

from ringfence.errors import EvidenceError
from ringfence.model.record import record

_CHUNK_BYTES = 1 << 20
# Absent on Windows, where opening neither follows nor blocks in the way these prevent.
OPEN_FLAGS = (
    os.O_RDONLY
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_BINARY", 0)
)


@record
class FileDigest:
    sha256: str
    size_bytes: int


@record
class TreeDigest:
    sha256: str
    files: int
    size_bytes: int


def sha256_hex(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def labelled_digest(pairs: Iterable[tuple[bytes, bytes]]) -> str:
    """SHA-256 over ``label NUL value NUL …``, sorted by label; refuses what would make that ambiguous."""
    ordered = sorted(pairs)
    hasher = hashlib.sha256()
    previous: bytes | None = None
    for label, value in ordered:
        if label == previous:
            raise EvidenceError(f"the label {label[:80]!r} occurs twice")
        if b"\0" in label or b"\0" in value:
            raise EvidenceError(f"a NUL in {label[:80]!r}: the digest would be ambiguous")
        hasher.update(label + b"\0" + value + b"\0")
        previous = label
    return hasher.hexdigest()


def file_digest(path: str | bytes) -> FileDigest:
    """Hash a regular file; a link, FIFO, socket or device is an EvidenceError."""
    try:
        descriptor = os.open(path, OPEN_FLAGS)
        with os.fdopen(descriptor, "rb", buffering=0) as file:
            return hash_open_file(file.fileno(), path)
    except OSError as error:
        raise EvidenceError(f"cannot read {os.fsdecode(path)!r}: {error.strerror}") from error


def hash_open_file(descriptor: int, path: str | bytes) -> FileDigest:
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise EvidenceError(f"{os.fsdecode(path)!r} is not a regular file")
    hasher = hashlib.sha256()
    size_bytes = 0
    while chunk := os.read(descriptor, _CHUNK_BYTES):
        hasher.update(chunk)
        size_bytes += len(chunk)
    return FileDigest(sha256=hasher.hexdigest(), size_bytes=size_bytes)


def tree_digest(root: str) -> TreeDigest:
    """Hash names, kinds, execute bits and contents below a directory. Links are recorded, never followed."""
    pairs: list[tuple[bytes, bytes]] = []
    files = size_bytes = 0
    for relative, entry in _entries_below(os.fsencode(root)):
        value, entry_bytes = _entry_value(entry)
        pairs.append((relative, value))
        if entry_bytes is not None:
            files += 1
            size_bytes += entry_bytes
    return TreeDigest(sha256=labelled_digest(pairs), files=files, size_bytes=size_bytes)


def _entries_below(root: bytes) -> Iterator[tuple[bytes, os.DirEntry[bytes]]]:
    waiting = [(root, b"")]
    while waiting:
        folder, prefix = waiting.pop()
        try:
            with os.scandir(folder) as scan:
                entries = list(scan)
        except OSError as error:
            raise EvidenceError(f"cannot list {os.fsdecode(folder)!r}: {error.strerror}") from error
        for entry in entries:
            relative = prefix + entry.name
            yield relative, entry
            if entry.is_dir(follow_symlinks=False):
                waiting.append((entry.path, relative + b"/"))


def _entry_value(entry: os.DirEntry[bytes]) -> tuple[bytes, int | None]:
    """The value of one entry, and its size if it is a regular file."""
    if entry.is_symlink():
        return b"link:" + sha256_hex(os.readlink(entry.path)).encode(), None
    if entry.is_dir(follow_symlinks=False):
        return b"dir:", None
    if not entry.is_file(follow_symlinks=False):
        raise EvidenceError(f"{os.fsdecode(entry.path)!r} is neither file, directory nor link")
    digest = file_digest(entry.path)
    executable = entry.stat(follow_symlinks=False).st_mode & stat.S_IXUSR
    return (b"exec:" if executable else b"file:") + digest.sha256.encode(), digest.size_bytes
