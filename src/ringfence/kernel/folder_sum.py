"""Adds up what lies below a directory while somebody hostile changes it. It follows no link and opens nothing but
directories.

Each directory is opened from the descriptor of the one above, at the moment it is listed: a path would lead
nowhere, or elsewhere, once one of the directories in it has another name.
"""

from __future__ import annotations

import os
from _collections_abc import Iterator

BLOCK_BYTES = 512
_DIRECTORY = os.O_RDONLY
for _name in ("O_CLOEXEC", "O_DIRECTORY", "O_NOFOLLOW"):
    _DIRECTORY |= getattr(os, _name, 0)
_DEEPEST = 200
_TRIES = 8
"""How often a directory is looked for that went away after it was listed, maybe to another name in the same place."""
_LARGE_BYTES = 1 << 20


class FolderSum:
    """``since_s``: what was last changed before this time, by the host's clock, is not counted."""

    def __init__(self, since_s: float) -> None:
        self.bytes = 0
        self.is_partial = False
        """There is more that could not be looked into, by the choice of whoever changes the directory."""
        self._since_s = since_s
        self._seen: set[tuple[int, int]] = set()
        """Files with several names, and large ones. For the others, noticing that one was moved meanwhile costs too
        much and matters too little."""
        self._entered: set[tuple[int, int]] = set()

    def pieces(self, folder: str) -> Iterator[None]:
        """Yields after each piece of work."""
        open_ones: list[_Folder] = []
        try:
            yield from self._enter(open_ones, self._opened(folder, None))
            while open_ones:
                entry = open_ones[-1].next()
                if entry is not None:
                    yield from self._descend(open_ones, entry)
                elif not open_ones[-1].go_round():
                    self._leave(open_ones.pop())
                yield
        finally:
            for each in open_ones:
                each.close()

    def _descend(self, open_ones: list[_Folder], entry: os.DirEntry[str]) -> Iterator[None]:
        above = open_ones[-1]
        if (above.device, entry.inode()) in self._entered:
            return
        if len(open_ones) >= _DEEPEST:
            self.is_partial = True
            return
        descriptor = self._opened(entry.name, above)
        if descriptor >= 0 and os.fstat(descriptor).st_ino != entry.inode():
            above.has_more = True  # another one has its name now
        yield from self._enter(open_ones, descriptor)

    def _opened(self, name: str, above: _Folder | None) -> int:
        """-1: it is not there any more, or closed."""
        try:
            return os.open(name, _DIRECTORY, dir_fd=None if above is None else above.descriptor)
        except (FileNotFoundError, NotADirectoryError):
            if above is not None:
                above.has_more = True
        except OSError:
            self.is_partial = True
        return -1

    def _enter(self, open_ones: list[_Folder], descriptor: int) -> Iterator[None]:
        """Its files first: directories can be filled with names to hold us up."""
        if descriptor < 0:
            return
        status = os.fstat(descriptor)
        key = status.st_dev, status.st_ino
        if key in self._entered:
            os.close(descriptor)
            return
        self._entered.add(key)
        self._count(status)
        folder = _Folder(descriptor, status.st_dev)
        open_ones.append(folder)
        for entry in folder.files():
            if (folder.device, entry.inode()) not in self._seen:
                self._count_file(entry)
            yield

    def _count_file(self, entry: os.DirEntry[str]) -> None:
        try:
            status = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            return
        key = status.st_dev, status.st_ino
        if key not in self._seen:
            self._count(status)
        if status.st_nlink > 1 or status.st_blocks * BLOCK_BYTES >= _LARGE_BYTES:
            self._seen.add(key)

    def _count(self, status: os.stat_result) -> None:
        if status.st_ctime >= self._since_s:
            self.bytes += status.st_blocks * BLOCK_BYTES

    def _leave(self, folder: _Folder) -> None:
        self.is_partial = self.is_partial or folder.has_more
        folder.close()


class _Folder:
    """One that is open, and how far the directories in it were gone through."""

    def __init__(self, descriptor: int, device: int) -> None:
        self.descriptor, self.device = descriptor, device
        self.has_more = False
        """It has directories that were not entered: none was yet, or one was gone when it was opened."""
        self._rounds = 0
        self._below: Iterator[os.DirEntry[str]] = iter(())

    def files(self) -> Iterator[os.DirEntry[str]]:
        """All but its directories."""
        for entry in self._listed():
            if entry.is_dir(follow_symlinks=False):
                self.has_more = True
            else:
                yield entry

    def next(self) -> os.DirEntry[str] | None:
        """The next directory in it; None: all of this round were."""
        return next(self._below, None)

    def go_round(self) -> bool:
        """List its directories anew; False: there is no need, or it has been tried often enough."""
        if not self.has_more or self._rounds > _TRIES:
            return False
        self._rounds, self.has_more = self._rounds + 1, False
        self._below = (entry for entry in self._listed() if entry.is_dir(follow_symlinks=False))
        return True

    def _listed(self) -> Iterator[os.DirEntry[str]]:
        with os.scandir(self.descriptor) as entries:
            yield from entries

    def close(self) -> None:
        self._below = iter(())
        os.close(self.descriptor)
