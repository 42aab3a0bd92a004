"""Lays out what sandboxes show of the host's directories, in the zygote, where no mount of the host appears any more.

For each directory: its layer of whiteouts (``cover/NAME``) and, where something is mounted below it, its parts, each
with a source (``base/NAME.N``) and a cover of its own. Nothing is shown in any other way: a socket or a FIFO in a host
directory serves any process that reaches its inode, and an overlay has inodes of its own.
"""

from __future__ import annotations

import errno
import os
import stat
from _collections_abc import Callable

from ringfence.kernel.mount import mounts, submounts
from ringfence.kernel.mount.submounts import ABSENT, FILE, FOLDER, LINK, PLACE, Directory, Part
from ringfence.model.paths import within
from ringfence.sandbox.hidden import HiddenPaths
from ringfence.steps.state import SETUP

MOST_PARTS = 1000
"""Each part is a mount in every sandbox: more of them would cost every launch too much."""

# Changed by somebody else since it was listed: gone, not a directory, or a link.
_CHANGED = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)

Row = tuple[str, str, list[str], tuple[int, ...]]
"""(name in the building, path on the host, names in it that must be absent, owner on disk or nothing)."""


def lay_out(rows: list[Row], shown: list[str]) -> None:
    """``shown``: all paths that are shown by themselves."""
    with open("/proc/self/mountinfo", "rb") as table:
        SETUP.points = submounts.read(table.read())
    for name, path, absent, owner in rows:
        descriptor = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _lay_out(name, Directory(descriptor), absent, owner, shown)
        finally:
            os.close(descriptor)


def _lay_out(name: str, folder: Directory, absent: list[str], owner: tuple[int, ...], shown: list[str]) -> None:
    inner = [path for path in shown if path != folder.path and within(path, folder.path)]
    points = [point for point in submounts.below(folder.path, SETUP.points)
              if not any(within(point, path) for path in inner)]  # fmt: skip
    parts = _find_parts(name, folder, points, inner) if points else []
    hidden = HiddenPaths(absent)
    _Laying(name, folder, hidden, owner).lay([part for part in parts if not hidden.cover(part.below)])


def _find_parts(name: str, folder: Directory, points: list[str], inner: list[str]) -> list[Part]:
    if _can_be_had_alone(folder):
        return list(folder.stacked(points))
    SETUP.taken_apart.add(name)
    parts: list[Part] = []
    for part in folder.taken_apart(points, [*inner, *submounts.never_shown(SETUP.points)]):
        parts.append(part)
        if len(parts) > MOST_PARTS:
            raise OSError(errno.E2BIG, f"more than {MOST_PARTS} names beside what is mounted at {points[0]}: unmount "
                          "it, show less of the directory, or run as root", folder.path)  # fmt: skip
    return parts


def _can_be_had_alone(folder: Directory) -> bool:
    """Whether the kernel lets us clone the directory without the mounts in it; in a user namespace it does not."""
    place = folder.open("")
    try:
        os.close(mounts.clone_opened(place))
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return False
    finally:
        os.close(place)
    return True


class _Laying:
    """Lays out one directory."""

    def __init__(self, name: str, folder: Directory, hidden: HiddenPaths, owner: tuple[int, ...]) -> None:
        self._name, self._folder, self._hidden, self._owner = name, folder, hidden, owner
        self._whole = name not in SETUP.taken_apart
        self._absent: list[str] = []
        """Mounts that are never shown."""
        self._unseen: list[str] = []
        """Mounts that can't be shown: nothing below them can be either."""
        self._can_be_sealed = {os.stat(folder.path).st_dev: True}
        """File systems → whether an overlay can be laid over them; for this one the job's own overlay will tell."""

    def lay(self, parts: list[Part]) -> None:
        os.makedirs(f"cover/{self._name}", exist_ok=True)
        for number, part in enumerate(parts):
            if not any(within(part.below, unseen) for unseen in self._unseen):
                self._lay_part(f"{self._name}.{number}", part)
        if self._whole:  # else there is nothing below the cover that could be seen
            absent = [name for name in (*self._hidden, *self._absent) if not self._in_a_part(name)]
            self._white_out(self._name, self._folder.path, absent)

    def _in_a_part(self, path: str) -> bool:
        return any(within(path, below) for _, below, _ in SETUP.parts.get(self._name, ()))

    def _lay_part(self, name: str, part: Part) -> None:
        if part.kind == ABSENT or (part.kind == LINK and self._whole):
            self._absent.append(part.below)
            return
        if not self._whole:
            self._make_place(f"cover/{self._name}/{part.below}", part)
        if part.kind in (FOLDER, FILE) or (part.kind == PLACE and self._whole):
            self._make_place(f"base/{name}", part)
            SETUP.parts.setdefault(self._name, []).append((name, part.below, part.kind != FILE))
            self._fill(name, part)

    def _make_place(self, path: str, part: Part) -> None:
        if part.kind == LINK:
            _copy_link(f"{self._folder.path}/{part.below}", path)
        elif part.kind == FILE:
            os.mknod(path, stat.S_IFREG | 0o644)
        else:
            os.mkdir(path)

    def _fill(self, name: str, part: Part) -> None:
        """A part that is gone, or has become another kind of file, stays empty; so does one that no overlay takes."""
        if part.kind != FILE:
            os.mkdir(f"cover/{name}")
        if part.kind == PLACE or not self._attach(name, part):
            self._unseen.append(part.below)
        elif part.kind == FOLDER and not self._is_sealable(name):
            mounts.detach(f"base/{name}")
            self._unseen.append(part.below)
        elif part.kind == FOLDER:
            self._white_out(name, f"{self._folder.path}/{part.below}", self._hidden.below(part.below))

    def _attach(self, name: str, part: Part) -> bool:
        try:
            place = self._folder.open(part.below)
        except OSError as error:
            if error.errno not in _CHANGED:
                raise
            return False
        try:
            if stat.S_IFMT(os.fstat(place).st_mode) != {FOLDER: stat.S_IFDIR, FILE: stat.S_IFREG}[part.kind]:
                return False
            tree = mounts.clone_opened(place)
        finally:
            os.close(place)
        mounts.set_attributes(tree, mounts.READ_ONLY)
        mounts.attach_at(tree, f"base/{name}")
        os.close(tree)
        return True

    def _is_sealable(self, name: str) -> bool:
        device = os.stat(f"base/{name}").st_dev
        if device not in self._can_be_sealed:
            self._can_be_sealed[device] = _can_be_sealed(name)
        return self._can_be_sealed[device]

    def _white_out(self, name: str, folder: str, names: list[str]) -> None:
        """If the directory of a name does not exist yet, the directory is made absent: anything could appear in it."""
        missing = [_first_missing(folder, path) for path in names]
        white_out(f"cover/{name}", folder, missing, lambda found: _mode_for_job(found, self._owner))


def _copy_link(source: str, path: str) -> None:
    try:
        os.symlink(os.readlink(source), path)
    except OSError as error:
        if error.errno not in (*_CHANGED, errno.EINVAL):
            raise


def _can_be_sealed(name: str) -> bool:
    """Whether this file system can be below an overlay: proc can't, nor can another overlay that is deep enough."""
    try:
        mounts.mount("overlay", "root", ["nosuid", "nodev", "ro"], lower(name) + ",userxattr", source="overlay")
    except OSError:
        return False
    mounts.detach("root")
    return True


def lower(name: str) -> str:
    """The layers through which something is shown."""
    return f"lowerdir=cover/{name}:base/{name}"


def refuse_other_kinds(tree: int, path: str, kinds: tuple[int, ...]) -> None:
    """The kind of what was cloned, not of what its path leads to by now. Never a socket or a FIFO of the host."""
    if stat.S_IFMT(os.fstat(tree).st_mode) not in kinds:
        raise OSError(errno.EINVAL, "it was replaced by another kind of file, or its kind can't be shown", path)


Mode = Callable[[os.stat_result], int]


def white_out(cover: str, folder: str, names: list[str], mode: Mode = lambda _: 0o755) -> None:
    """Make names in a directory absent, as overlayfs does for removed ones. ``mode``: gives the mode of directories
    needed for that, from those they replace."""
    found: dict[str, list[str]] = {}
    for path in names:
        above, _, name = path.rpartition("/")
        found.setdefault(above, []).append(name)
    # Outer directories first: a directory made on the way to something deeper could not be hidden any more.
    for above in sorted(found, key=lambda path: len(path.split("/")) if path else 0):
        if os.path.isdir(f"{folder}/{above}"):
            _white_out(cover, folder, above, found[above], mode)


def _first_missing(folder: str, path: str) -> str:
    parts = path.split("/")
    for end in range(1, len(parts)):
        if not os.path.lexists(f"{folder}/{'/'.join(parts[:end])}"):
            return "/".join(parts[:end])
    return path


def _white_out(cover: str, folder: str, above: str, names: list[str], mode: Mode) -> None:
    """Never through a link: nothing of the kind should be here, and it would lead to the host."""
    place = os.open(cover, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in filter(None, above.split("/")):
            folder = f"{folder}/{part}"
            place = _step_into(place, part, mode(os.stat(folder)))
        for name in names:
            _white_out_one(place, name)
    except NotADirectoryError:
        pass  # the directory itself is hidden
    finally:
        os.close(place)


def _white_out_one(place: int, name: str) -> None:
    try:
        os.mknod(name, stat.S_IFCHR, dir_fd=place)
    except FileExistsError:
        pass  # hidden twice


def _mode_for_job(found: os.stat_result, owner: tuple[int, ...]) -> int:
    """If the caller is root, a directory of ours belongs to nobody in the sandbox: what the job's id may do in the
    host's directory, everybody may do in ours, and no more."""
    bits = found.st_mode >> 6 if owner and found.st_uid == owner[0] else found.st_mode
    return 0o700 | (bits & 0o7) * 0o11


def _step_into(folder: int, name: str, mode: int) -> int:
    """Like chdir, for a descriptor; makes the directory where it is missing."""
    try:
        os.mkdir(name, 0o700, dir_fd=folder)
        os.chmod(name, mode, dir_fd=folder)
    except FileExistsError:
        pass
    deeper = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    os.close(folder)
    return deeper
