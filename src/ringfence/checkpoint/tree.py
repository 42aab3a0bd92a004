"""One directory and all below it, reached by descriptors: no link is followed, wherever in a path it is.

What lies in the tree may be a hostile program's. Depth and length of paths cost nothing but time. Where the
system has no descriptors of directories (Windows), every part of a path is checked instead.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from itertools import islice

from ringfence.checkpoint.entry import shown
from ringfence.checkpoint.lock import await_turn, let_go
from ringfence.errors import CheckpointError
from ringfence.model import windows_paths
from ringfence.model.paths import within
from ringfence.model.ways.walk import real

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypedDict

    class Where(TypedDict, total=False):
        """The keyword that the ``os`` functions take."""

        dir_fd: int


_BY_DESCRIPTOR = os.open in os.supports_dir_fd and os.listdir in os.supports_fd
_SETID = 0o6000
LAYER_MODE = 0o755
"""Of the top of a layer, which a job sees as the base itself."""
_FLAGS = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
_FOLDER_FLAGS = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | _FLAGS
_WAY_FLAGS = _FOLDER_FLAGS | getattr(os, "O_PATH", 0)
FILE_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | _FLAGS
NEW_FILE_FLAGS = os.O_RDWR | os.O_CREAT | os.O_EXCL | _FLAGS
_OPEN_FOLDERS = 64
_REPARSE_POINT = 0x400
_NO_LINKS = (errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.EXDEV)
UNLISTABLE = (errno.E2BIG, errno.ERANGE)
_CHMOD_SEES_LINKS = os.chmod in os.supports_follow_symlinks


class _Locked:
    """A lock on an open directory, for the length of a ``with``; none where there is no descriptor."""

    def __init__(self, descriptor: int, path: str) -> None:
        self._descriptor, self._path = descriptor, path

    def __enter__(self) -> None:
        if self._descriptor >= 0:
            await_turn(self._descriptor, self._path)

    def __exit__(self, *_: object) -> None:
        if self._descriptor >= 0:
            let_go(self._descriptor)


class Tree:
    """A directory that stays the same directory, whatever happens to the names that led to it."""

    def __init__(
        self, path: str, *, identity: tuple[int, int] | None = None, resolve: bool = True, top: int | None = None
    ) -> None:
        """``resolve``: links in the path are followed once. ``top``: a descriptor of the directory, which is ours
        now."""
        self.path = real(path) if resolve else path
        self._open: dict[str, int] = {}
        self._mounts: frozenset[str] | None = None
        self._top = -1
        if _BY_DESCRIPTOR:
            self._top = _open_top(self.path) if top is None else top
        status = os.fstat(self._top) if _BY_DESCRIPTOR else os.lstat(_literal(self.path))
        self.identity = (status.st_dev, status.st_ino)
        if identity and identity != self.identity:
            self.close()
            raise _other(self.path)

    def confirm(self) -> None:
        """Check that its path still leads to it: otherwise nobody would find what we write."""
        place = _open_top(self.path) if _BY_DESCRIPTOR else -1
        status = os.fstat(place) if _BY_DESCRIPTOR else os.lstat(_literal(self.path))
        if place >= 0:
            os.close(place)
        if (status.st_dev, status.st_ino) != self.identity:
            raise _other(self.path)

    def locked(self) -> _Locked:
        """Allows one commit into it at a time, by anybody; a lock on the directory itself, which leaves nothing
        behind."""
        return _Locked(self._top, self.path)

    def mounts(self) -> frozenset[str]:
        """The mount points in it: an overlay over it shows the bare directories there."""
        if self._mounts is None:
            top = self.path.rstrip("/") + "/"
            points = (_unescaped(fields[4]) for fields in _mount_table())
            self._mounts = frozenset(point[len(top) :] for point in points if point.startswith(top))
        return self._mounts

    def file_system(self) -> str:
        """The type of file system it lies on; empty if unknown."""
        if not (table := _mount_table()):
            return ""
        device = b"%d:%d" % (os.major(self.identity[0]), os.minor(self.identity[0]))
        kinds = (fields[fields.index(b"-") + 1] for fields in table if fields[2] == device)
        return os.fsdecode(next(kinds, b""))

    @property
    def owner(self) -> tuple[int, int]:
        """Asked anew each time: a directory may be given away after it was opened."""
        status = self.status("")
        assert status is not None
        return status.st_uid, status.st_gid

    def close(self) -> None:
        self.forget()
        if self._top >= 0:
            os.close(self._top)
        self._top = -1

    @property
    def top(self) -> int | str:
        """What the ``os`` functions take for the directory itself."""
        return self._top if _BY_DESCRIPTOR else _literal(self.path)

    def at(self, path: str) -> tuple[str, Where]:
        """A name and the keyword to reach it; all parts but the last are certain to be directories."""
        folder, _, name = path.rpartition("/")
        if _BY_DESCRIPTOR:
            return name, {"dir_fd": self.folder(folder)}
        return self._checked(folder, name), {}

    def folder(self, path: str) -> int:
        """A descriptor of a directory, which stays ours."""
        if not path:
            return self._top
        if (found := self._open.pop(path, None)) is None:
            found = self._opened(path)
        self._open[path] = found  # the latest last
        while len(self._open) > _OPEN_FOLDERS:
            os.close(self._open.pop(next(iter(self._open))))
        return found

    def _opened(self, path: str) -> int:
        """From the nearest directory above that is open, part by part."""
        end = path.rfind("/")
        while end > 0 and path[:end] not in self._open:
            end = path.rfind("/", 0, end)
        here = os.dup(self._open[path[:end]] if end > 0 else self._top)
        for part in path[end + 1 :].split("/"):
            try:
                below = os.open(part, _FOLDER_FLAGS, dir_fd=here)
            finally:
                os.close(here)
            here = below
        return here

    def _checked(self, folder: str, name: str) -> str:
        """Without a name, the directory itself. Any process that could replace a part meanwhile must have ended."""
        path = _literal(self.path)
        for part in folder.split("/") if folder else ():
            path = os.path.join(path, part)
            if not is_folder(os.lstat(path)):
                raise NotADirectoryError(20, "not a directory", path)
        return os.path.join(path, name) if name else path

    def below(self, path: str) -> Tree:
        """A directory in it, as a tree of its own; a link on the way is an error."""
        whole = f"{self.path.rstrip(os.sep)}{os.sep}{path.replace('/', os.sep)}"
        if _BY_DESCRIPTOR:
            return Tree(whole, resolve=False, top=os.dup(self.folder(path)))
        self._checked(path, "")
        return Tree(whole, resolve=False)

    def make(self, path: str, mode: int = 0o700) -> None:
        """A directory, and those above it; one that is there stays as it is."""
        parts = path.split("/")
        for count in range(1, len(parts) + 1):
            name, where = self.at("/".join(parts[:count]))
            try:
                os.mkdir(name, mode, **where)
            except FileExistsError:
                continue

    def forget(self, top: str = "") -> None:
        """Close what is open at and below a path that will be moved or removed. Without a path, forget everything."""
        self._mounts = self._mounts if top else None
        for path in [path for path in self._open if not top or within(path, top)]:
            os.close(self._open.pop(path))

    def status(self, path: str) -> os.stat_result | None:
        """The status of what is there, or without a path of the directory itself; None if nothing is. Windows also
        finds names that are spelled differently, which count as other paths here."""
        found = self._status(path)
        return found if os.name != "nt" or found is None or self._is_spelled(path) else None

    def listed_status(self, path: str) -> os.stat_result | None:
        """The same for a name that was just found in its directory."""
        return self._status(path) if os.name == "nt" else self.status(path)

    def _is_spelled(self, path: str) -> bool:
        names = path.split("/") if path else []
        return all(name in self.names("/".join(names[:depth])) for depth, name in enumerate(names))

    def _status(self, path: str) -> os.stat_result | None:
        if not path:
            return os.fstat(self._top) if _BY_DESCRIPTOR else os.lstat(_literal(self.path))
        try:
            name, where = self.at(path)
            return os.stat(name, follow_symlinks=False, **where)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            if error.errno == errno.ELOOP:  # a link stands where a directory would
                return None
            raise

    def names(self, path: str, most: int = sys.maxsize) -> list[str]:
        """The names in a directory; at most ``most``, since a program may have made millions."""
        with os.scandir(self.folder(path) if _BY_DESCRIPTOR else self._checked(path, "")) as found:
            return [each.name for each in islice(found, most)]

    def read(self, path: str) -> int:
        """A descriptor of a regular file, and of nothing else."""
        name, where = self.at(path)
        descriptor = os.open(name, FILE_FLAGS, **where)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise CheckpointError(f"{shown(path)} is no longer a regular file")
        return descriptor

    def join(self, twin: str, path: str) -> bool:
        """Make a second name of a file; False if the file system allows no more."""
        old, old_where = self.at(twin)
        held = os.dup(old_where["dir_fd"]) if old_where else None  # it may be closed for want of room
        try:
            new, where = self.at(path)
            os.link(old, new, src_dir_fd=held, dst_dir_fd=where.get("dir_fd"), follow_symlinks=False)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            return False
        finally:
            if held is not None:
                os.close(held)
        return True

    def allow(self, path: str, mode: int, *, inode: int | None = None) -> None:
        """Set a mode without opening what it belongs to, and never through a link. ``inode``: of nothing else, where
        the system can tell."""
        name, where = self.at(path)
        if _CHMOD_SEES_LINKS or not hasattr(os, "O_PATH"):
            os.chmod(name, mode, follow_symlinks=not _CHMOD_SEES_LINKS, **where)
            return
        place = os.open(name, os.O_PATH | _FLAGS, **where)
        try:
            status = os.fstat(place)
            if not stat.S_ISLNK(status.st_mode) and inode in (None, status.st_ino):
                os.chmod(f"/proc/self/fd/{place}", mode)
        finally:
            os.close(place)

    def give(self, path: str, owner: tuple[int, int], mode: int) -> None:
        """Change its owner, never through a link; ``mode``: its present one, of which the kernel clears some bits."""
        if not path:
            os.chown(self.top, *owner)
            return
        name, where = self.at(path)
        os.chown(name, *owner, follow_symlinks=False, **where)
        if mode & _SETID and not stat.S_ISLNK(mode):
            self.allow(path, stat.S_IMODE(mode))

    def open_top(self) -> None:
        """Let us into the directory itself, if it is ours and a program has changed its mode. That mode is part of no
        layer, so the change is not reported, and it stays until a rollback."""
        status = os.fstat(self._top) if self._top >= 0 else None
        if status is not None and status.st_mode & 0o700 != 0o700 and os.geteuid() == status.st_uid != 0:
            os.fchmod(self._top, stat.S_IMODE(status.st_mode) | 0o700)

    def reset_top(self, kept: str) -> None:
        """Give the directory itself the mode that it was made with, and take away what a program noted at it, except
        attributes whose names begin with ``kept``: they are part of no layer, so nothing else puts them back."""
        if self._top < 0 or not hasattr(os, "listxattr"):
            return
        os.fchmod(self._top, LAYER_MODE)
        for name in os.listxattr(self._top):
            if name.startswith("user.") and not name.startswith(kept):
                os.removexattr(self._top, name)

    def attributes(self, path: str) -> dict[str, bytes]:
        """Extended attributes; empty if the system or the file system has none. PermissionError if we may not read the
        file, an error among ``UNLISTABLE`` if there are more than can be listed."""
        if not hasattr(os, "listxattr"):
            return {}
        place = self._by_proc(path)
        try:
            return {name: os.getxattr(place, name, follow_symlinks=False)
                    for name in os.listxattr(place, follow_symlinks=False)}  # fmt: skip
        except OSError as error:
            if error.errno in UNLISTABLE or isinstance(error, PermissionError):
                raise
            return {}

    def set_attribute(self, path: str, name: str, value: bytes) -> None:
        os.setxattr(self._by_proc(path), name, value, follow_symlinks=False)

    def _by_proc(self, path: str) -> str:
        """The calls for attributes take no directory's descriptor; this is the same."""
        name, where = self.at(path)
        return f"/proc/self/fd/{where['dir_fd']}/{name}" if where else name


def is_folder(status: os.stat_result) -> bool:
    """Whether it is a directory, and no junction of Windows, which only looks like one."""
    return stat.S_ISDIR(status.st_mode) and not getattr(status, "st_file_attributes", 0) & _REPARSE_POINT


def _literal(path: str) -> str:
    """The path in the form that Windows takes literally; elsewhere the path itself."""
    return windows_paths.extended(path) if os.name == "nt" else path


def _other(path: str) -> CheckpointError:
    return CheckpointError(f"{path} was replaced", hint="restore the original directory")


def _mount_table() -> list[list[bytes]]:
    if sys.platform != "linux":
        return []
    try:
        with open("/proc/self/mountinfo", "rb") as file:
            return [line.split(b" ") for line in file]
    except FileNotFoundError:
        return []  # no /proc


def _unescaped(word: bytes) -> str:
    """The kernel writes blanks, line ends and backslashes as three octal digits."""
    first, *rest = word.split(b"\\")
    return os.fsdecode(first + b"".join(bytes([int(piece[:3], 8)]) + piece[3:] for piece in rest))


def _open_top(path: str) -> int:
    """Open an absolute path part by part: a part that was replaced by a link is an error.

    Directories on the way need not be readable, as it is with any other use of a path.
    """
    parts = [part for part in path.split("/") if part]
    here = os.open("/", _FOLDER_FLAGS)
    for number, part in enumerate(parts, 1):
        try:
            below = os.open(part, _FOLDER_FLAGS if number == len(parts) else _WAY_FLAGS, dir_fd=here)
        except OSError as error:
            raise CheckpointError(f"{path}: {error.strerror}", hint="is the directory still there?") from error
        finally:
            os.close(here)
        here = below
    return here
