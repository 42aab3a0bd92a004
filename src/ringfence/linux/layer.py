"""The layer of changes that a job left over its workspace: what changed, and how to carry it over.

Reads an overlay's upper folder as data from a hostile program: by descriptors, never through a link, never
opening anything but regular files. Carrying over is not atomic; transactions are another module's.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from ringfence.errors import CheckpointError
from ringfence.model.outcome import Change, ChangeKind

_OPAQUE = "user.overlay.opaque"
_FOLDER_FLAGS = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0) | os.O_CLOEXEC
MAX_CHANGES = 100_000
_COPY_BYTES = 1 << 20


class Layer:
    """One upper folder and the base that it lies over."""

    def __init__(self, upper: str, base: str, hidden: tuple[str, ...] = ()) -> None:
        self.upper = upper
        self.base = base
        self.hidden = frozenset(os.path.relpath(path, base) for path in hidden if path.startswith(base + "/"))
        """Paths below the base that the job could not see: nothing that it did may reach them."""

    def changes(self) -> tuple[Change, ...]:
        """What differs from the base, folders before what is in them; sorted by path."""
        found = []
        for path, status in _walk(self.upper, self.hidden):
            found.append(Change(path=path, kind=self._kind(path, status)))
            if len(found) >= MAX_CHANGES:
                break
        plain_parents = (c for c in found if not (c.kind is ChangeKind.MODIFIED and self._is_passage(c.path)))
        return tuple(sorted(plain_parents, key=lambda change: os.fsencode(change.path)))

    def _kind(self, path: str, status: os.stat_result) -> ChangeKind:
        if _is_whiteout(status):
            return ChangeKind.DELETED
        return ChangeKind.MODIFIED if os.path.lexists(os.path.join(self.base, path)) else ChangeKind.ADDED

    def _is_passage(self, path: str) -> bool:
        """A folder that stands in the layer only because something below it changed."""
        above, below = (os.lstat(os.path.join(top, path)) for top in (self.upper, self.base))
        both_folders = stat.S_ISDIR(above.st_mode) and stat.S_ISDIR(below.st_mode)
        same = stat.S_IMODE(above.st_mode) == stat.S_IMODE(below.st_mode)
        return both_folders and same and not _is_opaque(os.path.join(self.upper, path))

    def commit(self) -> int:
        """Carry the layer over into the base; what is made there belongs to the base's owner. The count."""
        owner = os.lstat(self.base)
        count = 0
        for path, status in _walk(self.upper, self.hidden):
            try:
                self._carry(path, status, owner)
            except OSError as error:
                raise CheckpointError(f"{path}: {error.strerror}", hint="the changes before it were kept") from error
            count += 1
        return count

    def _carry(self, path: str, status: os.stat_result, owner: os.stat_result) -> None:
        source, target = os.path.join(self.upper, path), os.path.join(self.base, path)
        if _is_whiteout(status) or _is_opaque(source) or _kind_differs(status, target):
            self._remove(path)
        if _is_whiteout(status) or _kind_differs(status, target):
            return  # a folder with something hidden in it stays, whatever the job put in its place
        if stat.S_ISDIR(status.st_mode):
            _make_folder(target)
        elif stat.S_ISLNK(status.st_mode):
            self._remove(path)
            os.symlink(os.readlink(source), target)
        elif stat.S_ISREG(status.st_mode):
            _copy(source, target, status)
        else:
            return  # a FIFO, socket or device is not carried over
        os.chown(target, owner.st_uid, owner.st_gid, follow_symlinks=False)
        if not stat.S_ISLNK(status.st_mode):
            # Never set-user-id: the file may belong to somebody else than who made it.
            os.chmod(target, stat.S_IMODE(status.st_mode) & 0o777)
            os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))

    def _remove(self, path: str) -> None:
        """Remove a path of the base, but for what is hidden in it."""
        target = os.path.join(self.base, path)
        if not any(name.startswith(path + "/") for name in self.hidden):
            _remove(target)
        elif os.path.isdir(target) and not os.path.islink(target):
            for name in os.listdir(target):
                if os.path.join(path, name) not in self.hidden:
                    self._remove(os.path.join(path, name))


def _walk(top: str, without: frozenset[str]) -> Iterator[tuple[str, os.stat_result]]:
    """(path below the top, its status), folders before what is in them; no link is followed."""
    waiting = [""]
    while waiting:
        folder = waiting.pop()
        descriptor = os.open(os.path.join(top, folder), _FOLDER_FLAGS)
        try:
            names = os.listdir(descriptor)
            rows = [(name, os.stat(name, dir_fd=descriptor, follow_symlinks=False)) for name in names]
        finally:
            os.close(descriptor)
        for name, status in rows:
            path = os.path.join(folder, name)
            if path in without:
                continue
            yield path, status
            if stat.S_ISDIR(status.st_mode):
                waiting.append(path)


def _is_whiteout(status: os.stat_result) -> bool:
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == 0


def _is_opaque(path: str) -> bool:
    try:
        return os.getxattr(path, _OPAQUE, follow_symlinks=False) == b"y"
    except OSError:
        return False


def _kind_differs(status: os.stat_result, target: str) -> bool:
    try:
        return stat.S_IFMT(os.lstat(target).st_mode) != stat.S_IFMT(status.st_mode)
    except FileNotFoundError:
        return False


def _remove(path: str) -> None:
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if stat.S_ISDIR(mode):
        import shutil

        shutil.rmtree(path)
    else:
        os.unlink(path)


def _make_folder(path: str) -> None:
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        pass


def _copy(source: str, target: str, status: os.stat_result) -> None:
    """By a temporary name beside its place, so that no reader sees half of it."""
    temporary = f"{target}.ringfence-{os.urandom(4).hex()}"
    reader = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(reader).st_mode):
            raise OSError(f"{source} is no regular file any more")
        writer = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            while piece := os.read(reader, _COPY_BYTES):
                view = memoryview(piece)
                while view:
                    view = view[os.write(writer, view) :]
        finally:
            os.close(writer)
        os.rename(temporary, target)
    finally:
        os.close(reader)
