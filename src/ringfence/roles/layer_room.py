"""What a job's own folders take of the disk, asked only when more room has gone than the job may take.

Part of: leader

The kernel adds what a child wrote to nobody's count when its parent ignores SIGCHLD, so counting writes is not enough.
Free room is cheap to ask for, but it is everybody's: it only says when to add up the folders, a few milliseconds at a
time, since a job can fill them with names. Nothing is followed or opened but directories.
"""

from __future__ import annotations

import os
import stat
import time
from _collections_abc import Callable, Iterator, Sequence

_TURN_NS = 10_000_000
_BLOCK_BYTES = 512
_DIRECTORY = os.O_RDONLY
for _name in ("O_CLOEXEC", "O_DIRECTORY", "O_NOFOLLOW"):
    _DIRECTORY |= getattr(os, _name, 0)


class LayerRoom:
    """The folders of one sandbox that nobody but its job writes."""

    def __init__(self, folders: Sequence[str], free_bytes: Callable[[], int]) -> None:
        self._folders = folders
        self._free_bytes = free_bytes
        self._most_free = 0
        self.gone = 0
        """Room that has gone since it was largest, whoever took it."""
        self._adding: Iterator[int] | None = None
        self._closed = False
        """A folder could not be looked into: the job chose that, so what has gone is its."""

    def taken(self, most_bytes: float, pids: Sequence[int]) -> int:
        """What they take, if that may be more than ``most_bytes``; 0 as long as it can't be, or is being added up."""
        if not self._folders:
            return 0
        free = self._free_bytes()
        self._most_free = max(self._most_free, free)
        self.gone = self._most_free - free
        if self.gone <= most_bytes:
            self._adding = None
            return 0
        found = self._add_up(pids)
        return max(found, self.gone) if found and self._closed else found

    def _add_up(self, pids: Sequence[int]) -> int:
        """The sum when it is complete, 0 before; the next call goes on."""
        if self._adding is None:
            self._closed = False
            self._adding = self._sums([*self._folders], pids)
        until_ns = time.monotonic_ns() + _TURN_NS
        for total in self._adding:
            if total >= 0:
                self._adding = None
                return total
            if time.monotonic_ns() > until_ns:
                return 0
        return 0

    def _sums(self, waiting: list[str], pids: Sequence[int]) -> Iterator[int]:
        """-1 after each piece of work, and the sum at the end. A file with two names counts once."""
        seen: set[tuple[int, int]] = set()
        total = sum(_open_without_a_name(pids, seen))
        yield -1
        while waiting:
            folder = waiting.pop()
            for status, path in self._listed(folder):
                if stat.S_ISDIR(status.st_mode):
                    waiting.append(path)
                if status.st_nlink == 1 or (key := (status.st_dev, status.st_ino)) not in seen:
                    total += status.st_blocks * _BLOCK_BYTES
                    if status.st_nlink > 1:
                        seen.add(key)
                yield -1
        yield total

    def _listed(self, folder: str) -> Iterator[tuple[os.stat_result, str]]:
        try:
            descriptor = os.open(folder, _DIRECTORY)
        except OSError as error:
            self._closed = self._closed or not isinstance(error, FileNotFoundError | NotADirectoryError)
            return
        try:
            with os.scandir(descriptor) as entries:
                for entry in entries:
                    try:
                        yield entry.stat(follow_symlinks=False), f"{folder}/{entry.name}"
                    except FileNotFoundError:
                        continue
        finally:
            os.close(descriptor)


def _open_without_a_name(pids: Sequence[int], seen: set[tuple[int, int]]) -> Iterator[int]:
    """The bytes of files that were removed and are still open."""
    for pid in pids:
        try:
            numbers = os.listdir(f"/proc/{pid}/fd")
        except OSError:
            continue
        for number in numbers:
            try:
                status = os.stat(f"/proc/{pid}/fd/{number}")
            except OSError:
                continue
            key = status.st_dev, status.st_ino
            if stat.S_ISREG(status.st_mode) and status.st_nlink == 0 and key not in seen:
                seen.add(key)
                yield status.st_blocks * _BLOCK_BYTES
