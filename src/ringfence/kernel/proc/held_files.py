"""Files without a name that processes still hold: by a descriptor, by a mapping, as their program, or under way between
two sockets.

They take room on a disk and lie in no directory. The kernel tells only root how large a file is that is only mapped,
and tells nobody which files are under way: we only know that there are some. What follows from that is decided
elsewhere. """

from __future__ import annotations

import os
import stat
from _collections_abc import Iterable, Iterator

from ringfence.kernel.proc import procfs

BLOCK_BYTES = 512
_IN_MEMORY = frozenset((b"tmpfs", b"devtmpfs", b"ramfs", b"hugetlbfs", b"mqueue"))
_DELETED = b" (deleted)\n"
_LINES = 256
_UNDER_WAY = b"scm_fds:"


class HeldFiles:
    """What some processes hold; files in memory take no room on a disk."""

    def __init__(self) -> None:
        self.bytes = 0
        self.has_more = False
        """They hold something whose size nobody can tell."""
        self.missed = False
        """One had ended when it was asked: what it held, a child that is not asked may hold now."""
        self._seen: set[tuple[int, int]] = set()
        self._numbers: set[int] = set()
        """Of the same inodes: on an overlay a mapping names another device than a descriptor does."""
        self._memory = {_device_of_memory()}
        self._mounts: set[int] = set()

    def pieces(self, asked: Iterable[int]) -> Iterator[None]:
        """Look at each process through one of its threads; yield after each piece of work. Descriptors come first: they
        tell the size of a file that another process only maps."""
        seen = []
        for each in asked:
            seen.append(each)
            self._note_mounts(each)
            self._count_program(each)
            tables = procfs.tables_of_descriptors(each)
            self.missed = self.missed or not tables
            for thread in tables:
                yield from self._descriptors(f"/proc/{each}/task/{thread}")
        for each in seen:
            yield from self._mappings(each)

    def _note_mounts(self, asked: int) -> None:
        """Which devices are memory, of each mount namespace once."""
        try:
            namespace = os.stat(f"/proc/{asked}/ns/mnt").st_ino
            if namespace in self._mounts:
                return
            with open(f"/proc/{asked}/mountinfo", "rb") as file:
                self._memory.update(_devices_in_memory(file.read()))
        except OSError:
            return  # gone, or closed to this user
        self._mounts.add(namespace)

    def _descriptors(self, thread: str) -> Iterator[None]:
        try:
            numbers = os.listdir(f"{thread}/fd")
        except OSError:
            return
        for number in numbers:
            try:
                status = os.stat(f"{thread}/fd/{number}")
            except OSError:
                continue
            if stat.S_ISSOCK(status.st_mode):
                self.has_more = self.has_more or _holds_files(f"{thread}/fdinfo/{number}")
            else:
                self._count(status)
            yield

    def _count_program(self, asked: int) -> None:
        """A process holds its program's file to the end, even if it has unmapped all of it."""
        try:
            self._count(os.stat(f"/proc/{asked}/exe"))
        except OSError:
            return  # ended, or closed to this user

    def _count(self, status: os.stat_result) -> None:
        key = status.st_dev, status.st_ino
        unnamed = stat.S_ISREG(status.st_mode) and status.st_nlink == 0
        if unnamed and status.st_dev not in self._memory and key not in self._seen:
            self._seen.add(key)
            self._numbers.add(status.st_ino)
            self.bytes += status.st_blocks * BLOCK_BYTES

    def _mappings(self, asked: int) -> Iterator[None]:
        try:
            with open(f"/proc/{asked}/maps", "rb") as file:
                for number, line in enumerate(file):
                    if line.endswith(_DELETED):
                        self._count_mapped(asked, line)
                    if number % _LINES == 0:
                        yield
        except OSError:
            return

    def _count_mapped(self, asked: int, line: bytes) -> None:
        place, _, _, device, inode, _ = line.split(None, 5)
        major, minor = (int(part, 16) for part in device.split(b":"))
        if os.makedev(major, minor) in self._memory:
            return
        first, last = (int(end, 16) for end in place.split(b"-"))
        try:
            self._count(os.stat(f"/proc/{asked}/map_files/{first:x}-{last:x}"))
        except FileNotFoundError:
            return  # unmapped meanwhile
        except OSError:
            self.has_more = self.has_more or int(inode) not in self._numbers


def _devices_in_memory(mountinfo: bytes) -> Iterator[int]:
    for line in mountinfo.split(b"\n"):
        head, _, tail = line.partition(b" - ")
        if tail.split(b" ", 1)[0] in _IN_MEMORY:
            major, minor = head.split(b" ", 3)[2].split(b":")
            yield os.makedev(int(major), int(minor))


def _device_of_memory() -> int:
    """The device of nameless files in memory and of shared memory; -1 where there is no such device."""
    if not hasattr(os, "memfd_create"):
        return -1
    file = os.memfd_create("device", os.MFD_CLOEXEC)
    try:
        return os.fstat(file).st_dev
    finally:
        os.close(file)


def _holds_files(fdinfo: str) -> bool:
    """Whether descriptors wait in the queue of this socket, or in one that waits to be accepted at it (Linux 5.6)."""
    try:
        with open(fdinfo, "rb") as file:
            return any(line.startswith(_UNDER_WAY) and int(line[len(_UNDER_WAY) :]) for line in file)
    except (OSError, ValueError):
        return False
