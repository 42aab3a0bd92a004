"""What is mounted below the directories that a sandbox shows, and the parts that make up each of them.

A directory is shown through an overlay, which leaves out whatever is mounted in it. So each mount below it becomes a
part of its own, with an overlay of its own at its place. In a user namespace the kernel lets nobody take a directory
without the mounts in it; there the directory is made of its entries, down to the mounts. Decides; mounts nothing.
"""

from __future__ import annotations

import os
import stat
from _collections_abc import Iterator

from ringfence.kernel.mount import mounts
from ringfence.model.mounted_names import path_of
from ringfence.model.paths import within
from ringfence.model.record import record

FOLDER, FILE, LINK, PLACE, ABSENT = "folder", "file", "link", "place", "absent"

# What no overlay can be laid over, however it is mounted.
_NEVER_SHOWN = (b"proc", b"autofs")

Points = dict[int, tuple[str, bool]]
"""The number of a mount; where it is mounted, and whether it can be shown at all."""


@record
class Part:
    """An entry of a directory that is shown in parts."""

    below: str
    """Its path, relative to the directory."""
    kind: str
    """``folder``, ``file`` and ``link`` are shown, ``place`` is an empty directory, ``absent`` is not there."""


def read(table: bytes) -> Points:
    """The mount points in a ``mountinfo`` file."""
    found: Points = {}
    for line in filter(None, table.split(b"\n")):
        row, _, kind = line.partition(b" - ")
        number, _, _, _, point, _ = row.split(b" ", 5)
        found[int(number)] = path_of(point), kind.split(b" ")[0] not in _NEVER_SHOWN
    return found


def below(folder: str, points: Points) -> list[str]:
    """The mount points below a directory, outer ones first; those that another mount covers are left out."""
    listed = {point for point, _ in points.values() if point != folder and within(point, folder)}
    return sorted((point for point in listed if _is_reached(point, points)), key=lambda point: point.count("/"))


def _is_reached(point: str, points: Points) -> bool:
    """Whether the path leads to what is mounted there. Yes, if this process may not go there: it could."""
    try:
        place = os.open(point, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except PermissionError:
        return True
    except OSError:
        return False
    try:
        return points.get(_mount_of(place), ("", False))[0] == point
    finally:
        os.close(place)


def _mount_of(descriptor: int) -> int:
    with open(f"/proc/self/fdinfo/{descriptor}", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("mnt_id:"))


def never_shown(points: Points) -> list[str]:
    return [point for point, can_be_shown in points.values() if not can_be_shown]


class Directory:
    """A directory of the host by its descriptor. What is below it is reached through no link, whoever puts one there
    meanwhile."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.path = os.readlink(f"/proc/self/fd/{descriptor}")
        """As the kernel spells it, like the mount table."""

    def open(self, below: str) -> int:
        return mounts.open_inside(self._descriptor, below or ".")

    def stacked(self, points: list[str]) -> Iterator[Part]:
        """Its parts, if it can be taken without the mounts in it: the mounts, each on top of it."""
        for point in points:
            below = point[len(self.path.rstrip("/")) + 1 :]
            yield Part(below=below, kind=self._kind_of_mount(below))

    def _kind_of_mount(self, below: str) -> str:
        place = self.open(below)
        try:
            return _kind(os.fstat(place).st_mode)
        except PermissionError:  # as a FUSE file system says to everybody but its owner
            return PLACE
        finally:
            os.close(place)

    def taken_apart(self, points: list[str], apart: list[str], below: str = "") -> Iterator[Part]:
        """Its parts, if it can't: its entries; an entry with mounts in it is replaced by its own entries.
        ``apart``: what is shown by itself or not at all, and needs a place only."""
        for entry, kind in self._entries(below):
            name = f"{below}/{entry}" if below else entry
            path = f"{self.path.rstrip('/')}/{name}"
            inside = [point for point in points if point != path and within(point, path)]
            if not inside and (path not in apart or kind != FOLDER):
                yield Part(below=name, kind=kind)
                continue
            yield Part(below=name, kind=PLACE)
            if path not in apart:
                yield from self.taken_apart(inside, apart, name)

    def _entries(self, below: str) -> list[tuple[str, str]]:
        """Nothing for a directory that may not be listed: the job is the same user and would see nothing either."""
        place = self.open(below)
        try:
            with os.scandir(f"/proc/self/fd/{place}") as listing:
                return [(entry.name, _kind_of_entry(entry)) for entry in listing]
        except PermissionError:
            return []
        finally:
            os.close(place)


def _kind_of_entry(entry: os.DirEntry[str]) -> str:
    try:
        return _kind(entry.stat(follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return ABSENT
    except PermissionError:
        return PLACE if entry.is_dir(follow_symlinks=False) else ABSENT


def _kind(mode: int) -> str:
    """A socket, a FIFO or a device of the host is never shown."""
    kinds = {stat.S_IFDIR: FOLDER, stat.S_IFREG: FILE, stat.S_IFLNK: LINK}
    return kinds.get(stat.S_IFMT(mode), ABSENT)
