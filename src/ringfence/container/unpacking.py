"""Unpacks the root of an image into a new directory. The archive is hostile data, and we may be root.

Nothing in it leads out of the directory: no name has ``..``, and no entry is reached through a link. Devices, FIFOs,
set-id bits, owners and attributes are left behind: all files are ours, and the sandbox has devices of its own. How
much is written is bounded; zeros become holes.
"""

from __future__ import annotations

import errno
import os
import stat
import time

from ringfence.container.tar_stream import DEVICE, DIRECTORY, FIFO, FILE, LINK, SYMLINK, Member, TarStream
from ringfence.errors import SetupError, UsageError
from ringfence.model.own_files import FOLDER_FLAGS, NEW_FLAGS
from ringfence.model.record import record

MAX_ENTRIES = 2_000_000
MAX_BYTES = 64 << 30
"""Bytes of all files together, holes included: so much may be read, however little is written."""
MAX_DEPTH, MAX_NAME_BYTES, MAX_PATH_BYTES = 500, 255, 4000
MAX_NAMED = 100
"""Entries that are left out are named up to here."""
_PART = 1 << 20
_OF_THE_ENGINE = frozenset({".dockerenv", "run/.containerenv"})
"""They say that this is a container, which it is not any more."""
_STEP = "unpack the image"
_SMALLER = "use a smaller image"


@record
class Unpacked:
    """What there was."""

    entries: int
    bytes: int
    left_out: tuple[str, ...] = ()
    """Devices and FIFOs, by name: the first ones."""
    left_out_count: int = 0


def unpack(stream: TarStream, folder: str, *, max_bytes: int = MAX_BYTES, max_entries: int = MAX_ENTRIES) -> Unpacked:
    """Fill a new directory that nobody else can write. UsageError: the archive is not acceptable; SetupError: the disk
    is full, or the like. What was written so far stays, for the caller to remove."""
    work = _Unpacking(folder, max_bytes)
    try:
        count = 0
        for count, member in enumerate(stream, 1):
            if count > max_entries:
                raise UsageError(f"the image has more than {max_entries:,} files and directories", hint=_SMALLER)
            work.put(member, stream)
        work.finish()
    except OSError as error:
        raise SetupError(_STEP, f"{error.strerror}", errno=error.errno or 0,
                         hint="make room in the state directory, or set XDG_STATE_HOME") from error  # fmt: skip
    finally:
        work.close()
    return Unpacked(entries=count, bytes=work.bytes, left_out=tuple(work.left_out), left_out_count=work.left_out_count)


def parts_of(name: str) -> tuple[str, ...]:
    """The parts of a name in an archive; UsageError where it leads out, or could not be a path.

    >>> parts_of("./usr//bin/")
    ('usr', 'bin')
    """
    parts = tuple(part for part in name.split("/") if part not in ("", "."))
    if name.startswith("/") or ".." in parts:
        raise UsageError(f"the archive has the name {name[:200]!r}, which points outside it")
    sizes = [len(os.fsencode(part)) for part in parts]
    if len(parts) > MAX_DEPTH or sum(sizes) + len(sizes) > MAX_PATH_BYTES or max(sizes, default=0) > MAX_NAME_BYTES:
        raise UsageError(f"the archive has a name that is too long or too deep: {name[:80]!r}…")
    return parts


class _Unpacking:
    def __init__(self, folder: str, max_bytes: int) -> None:
        self._top = os.open(folder, FOLDER_FLAGS)
        self._way: list[tuple[str, int]] = []
        """The directory that was written last: each part of its path with a descriptor."""
        self._max_bytes = max_bytes
        self._now_ns = time.time_ns()
        self._folders: dict[tuple[str, ...], tuple[int, int]] = {}
        """Mode and time of each: set when all is written, since to write into one takes rights and changes its time."""
        self.bytes = 0
        self.left_out: list[str] = []
        self.left_out_count = 0

    def close(self) -> None:
        self._leave(0)
        os.close(self._top)

    def put(self, member: Member, stream: TarStream) -> None:
        parts = parts_of(member.name)
        if member.kind in (DEVICE, FIFO):
            self._leave_out(member)
        elif not parts:
            if member.kind != DIRECTORY:
                raise UsageError("the archive has an entry without a name")
        elif "/".join(parts) not in _OF_THE_ENGINE:
            try:
                self._make(member, parts, stream)
            except FileExistsError:
                raise UsageError(f"{member.name[:200]!r} appears twice in the archive") from None

    def _leave_out(self, member: Member) -> None:
        self.left_out_count += 1
        if len(self.left_out) < MAX_NAMED:
            self.left_out.append(member.name)

    def _make(self, member: Member, parts: tuple[str, ...], stream: TarStream) -> None:
        if member.kind == DIRECTORY:
            self._enter(parts)
            self._folders[parts] = member.mode & 0o1777 | 0o700, self._time(member)
            return
        above, name = self._enter(parts[:-1]), parts[-1]
        if member.kind == SYMLINK:
            os.symlink(_target(member), name, dir_fd=above)
        elif member.kind == LINK:
            self._link(member, parts)
        elif member.kind == FILE:
            self._write(member, name, above, stream)

    def _write(self, member: Member, name: str, above: int, stream: TarStream) -> None:
        self.bytes += member.size
        if self.bytes > self._max_bytes:
            raise UsageError(f"the image holds more than {self._max_bytes:,} bytes", hint=_SMALLER)
        file = os.open(name, NEW_FLAGS, 0o600, dir_fd=above)
        try:
            while data := stream.content(_PART):
                if data.count(0) == len(data):
                    os.lseek(file, len(data), os.SEEK_CUR)
                else:
                    _write_all(file, data)
            os.ftruncate(file, member.size)
            os.fchmod(file, member.mode & 0o777 | 0o600)
            os.utime(file, ns=(self._time(member),) * 2)
        finally:
            os.close(file)

    def _link(self, member: Member, parts: tuple[str, ...]) -> None:
        """The second name of a file is a link to the first; no symbolic link is followed to find it."""
        first = parts_of(member.target)
        if not first:
            raise UsageError(f"the archive has the link {member.name[:200]!r} to nothing")
        source = os.dup(self._enter(first[:-1], make=False))
        try:
            found = os.stat(first[-1], dir_fd=source, follow_symlinks=False)
            if not stat.S_ISREG(found.st_mode) and not stat.S_ISLNK(found.st_mode):
                raise UsageError(f"the archive has the hard link {member.name[:200]!r} to what is not a file")
            os.link(first[-1], parts[-1], src_dir_fd=source, dst_dir_fd=self._enter(parts[:-1]), follow_symlinks=False)
        except FileNotFoundError:
            raise UsageError(f"the archive has the hard link {member.name[:200]!r} to what is not there") from None
        finally:
            os.close(source)

    def _enter(self, parts: tuple[str, ...], *, make: bool = True) -> int:
        """A descriptor of a directory below the top, made where it is missing; nothing on the way is followed."""
        same = 0
        for (name, _), part in zip(self._way, parts, strict=False):
            if name != part:
                break
            same += 1
        self._leave(same)
        for depth, part in enumerate(parts[same:], same + 1):
            self._way.append((part, self._down(part, parts[:depth], make)))
        return self._way[-1][1] if self._way else self._top

    def _down(self, name: str, parts: tuple[str, ...], make: bool) -> int:
        above = self._way[-1][1] if self._way else self._top
        try:
            return os.open(name, FOLDER_FLAGS, dir_fd=above)
        except FileNotFoundError:
            if not make:
                raise
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.ENOTDIR):
                raise
            raise UsageError(f"the archive goes through {'/'.join(parts)[:200]!r}, which is not a directory") from error
        os.mkdir(name, 0o700, dir_fd=above)
        self._folders[parts] = 0o755, self._now_ns  # until an entry says more
        return os.open(name, FOLDER_FLAGS, dir_fd=above)

    def _leave(self, depth: int) -> None:
        while len(self._way) > depth:
            os.close(self._way.pop()[1])

    def _time(self, member: Member) -> int:
        return min(member.mtime_ns, self._now_ns)

    def finish(self) -> None:
        """Directories get their modes and times, the deepest first."""
        for parts in sorted(self._folders, key=len, reverse=True):
            mode, mtime_ns = self._folders[parts]
            folder = self._enter(parts)
            os.fchmod(folder, mode)
            os.utime(folder, ns=(mtime_ns, mtime_ns))
        self._leave(0)
        os.fchmod(self._top, 0o755)


def _target(member: Member) -> str:
    if not member.target or len(os.fsencode(member.target)) > MAX_PATH_BYTES:
        raise UsageError(f"the archive has the link {member.name[:200]!r}, whose target is missing or too long")
    return member.target


def _write_all(file: int, data: bytes) -> None:
    rest: memoryview = memoryview(data)
    while rest:
        rest = rest[os.write(file, rest) :]

