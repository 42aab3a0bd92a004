"""Reads what was handed in: every file once, by descriptors, for its digest and for the search.

The digests are those of ``evidence.digest``. No link is followed, no FIFO is waited for, and a file or directory that
changes while it is read is an error: a digest of what was never there proves nothing.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterator

from ringfence.checkpoint.tree import FILE_FLAGS, Tree
from ringfence.errors import CheckpointError, EvidenceError
from ringfence.evidence.digest import labelled_digest, sha256_hex
from ringfence.evidence.inputs import Input
from ringfence.model.paths import quoted, within
from ringfence.model.record import record
from ringfence.model.ways.walk import real
from ringfence.sandbox.root import SYSTEM_FOLDERS

MAX_ENTRIES = 1_000_000
MAX_BYTES = 16 << 30
MAX_PATH_BYTES = 4000
_CHUNK_BYTES = 4 << 20

Look = Callable[[str, Iterator[bytes]], None]
"""Gets the path of each file in its tree, empty for a single file, and its content; need not read all of that."""


@record
class Left:
    """What may still be read: a tree may have any number of files of any size."""

    counts: list[int]

    @classmethod
    def whole(cls) -> Left:
        return cls(counts=[MAX_ENTRIES, MAX_BYTES])

    def take(self, place: int, count: int, path: str) -> None:
        self.counts[place] -= count
        if self.counts[place] < 0:
            raise EvidenceError(f"{quoted(path)}: more than {MAX_ENTRIES:,} entries or {MAX_BYTES >> 30} GiB",
                                hint="submit less")  # fmt: skip


def no_look(_: str, __: Iterator[bytes]) -> None:
    """Nobody looks into the files."""


def read_input(role: str, name: str, path: str, look: Look = no_look) -> Input:
    """Return the input of a file or directory; links in ``path`` itself are followed, those in the directory are
    not."""
    place = real(path)
    try:
        if os.path.isdir(place):
            return _tree(role, name, place, look)
        sha256, size = _file(os.open(place, FILE_FLAGS), place, "", look, Left.whole())
        return Input(role=role, name=name, kind="file", sha256=sha256, bytes=size, files=1)
    except (OSError, CheckpointError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise EvidenceError(f"{quoted(path)} can't be read: {why}") from error


def files_below(path: str, look: Look) -> None:
    """Show each regular file of a file or directory to a function, without a digest; other kinds are left out."""
    place = real(path)
    left = Left.whole()
    try:
        if not os.path.isdir(place):
            _file(os.open(place, FILE_FLAGS), place, "", look, left)
            return
        tree = Tree(place)
        try:
            for relative, status in _entries(tree, left):
                if stat.S_ISREG(status.st_mode):
                    _file(tree.read(relative), os.path.join(place, relative), relative, look, left)
        finally:
            tree.close()
    except (OSError, CheckpointError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise EvidenceError(f"{quoted(path)} can't be read: {why}") from error


def _tree(role: str, name: str, place: str, look: Look) -> Input:
    """The tree digest of docs/reference/formats.md, section 1."""
    left, pairs, files, total = Left.whole(), [], 0, 0
    tree = Tree(place)
    try:
        for relative, status in _entries(tree, left):
            label = os.fsencode(relative)
            if stat.S_ISDIR(status.st_mode):
                pairs.append((label, b"dir:"))
            elif stat.S_ISLNK(status.st_mode):
                pairs.append((label, b"link:" + _link(tree, place, relative).encode()))
            elif stat.S_ISREG(status.st_mode):
                sha256, size = _file(tree.read(relative), os.path.join(place, relative), relative, look, left)
                kind = b"exec:" if status.st_mode & stat.S_IXUSR else b"file:"
                pairs.append((label, kind + sha256.encode()))
                files, total = files + 1, total + size
            else:
                raise EvidenceError(f"{quoted(os.path.join(place, relative))} is not a file, a directory or a link",
                                    hint="submit only files, directories and links")  # fmt: skip
    finally:
        tree.close()
    return Input(role=role, name=name, kind="tree", sha256=labelled_digest(pairs), bytes=total, files=files)


def _entries(tree: Tree, left: Left) -> Iterator[tuple[str, os.stat_result]]:
    waiting = [""]
    while waiting:
        folder = waiting.pop()
        before = tree.status(folder)
        for name in tree.names(folder, MAX_ENTRIES + 1):
            path = f"{folder}/{name}" if folder else name
            left.take(0, 1, path)
            if len(os.fsencode(path)) > MAX_PATH_BYTES:
                raise EvidenceError(f"{quoted(path[:200])}…: a path of more than {MAX_PATH_BYTES} bytes")
            status = tree.status(path)
            if status is None:
                raise _changed(path)
            yield path, status
            if stat.S_ISDIR(status.st_mode):
                waiting.append(path)
        after = tree.status(folder)
        if before is None or after is None or _state(before) != _state(after):
            raise _changed(folder or tree.path)


def _file(descriptor: int, shown: str, relative: str, look: Look, left: Left) -> tuple[str, int]:
    """SHA-256 and size. The search sees exactly the bytes that are hashed."""
    with open(descriptor, "rb", buffering=0) as file:
        before = os.fstat(descriptor)
        if not stat.S_ISREG(before.st_mode):
            raise EvidenceError(f"{quoted(shown)} is not a regular file")
        hasher, count = hashlib.sha256(), [0]

        def chunks() -> Iterator[bytes]:
            while chunk := file.read(_CHUNK_BYTES):
                left.take(1, len(chunk), shown)
                hasher.update(chunk)
                count[0] += len(chunk)
                yield chunk

        content = chunks()
        look(relative, content)
        for _ in content:
            pass
        if _state(os.fstat(descriptor)) != _state(before) or count[0] != before.st_size:
            raise _changed(shown)
    return hasher.hexdigest(), count[0]


def _link(tree: Tree, place: str, relative: str) -> str:
    """The digest of a link's text. Its target must be bound too: it lies in the same tree, or in the system."""
    name, where = tree.at(relative)
    text = os.readlink(name, **where)
    target = real(os.path.join(place, os.path.dirname(relative), text))
    if not any(within(target, top) for top in (place, *SYSTEM_FOLDERS)):
        raise EvidenceError(f"{quoted(os.path.join(place, relative))} is a link that points outside what is submitted",
                            hint="put the file or directory itself there, or name its target too")  # fmt: skip
    return sha256_hex(os.fsencode(text))


def _state(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_mode, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _changed(path: str) -> EvidenceError:
    return EvidenceError(f"{quoted(path)} changed while it was read", hint="try again when nothing writes there")
