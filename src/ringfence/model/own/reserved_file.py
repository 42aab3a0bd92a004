"""A file that is put in its place when a run has ended: nothing of it lies there while the run goes on.

The place may be in a workspace, and others who work there may use the name, or replace the directory. Then nothing is
written, and that is reported. Knows nothing of what is in the file.
"""

from __future__ import annotations

import errno
import os
import stat

from ringfence.errors import ConflictError, UsageError
from ringfence.model import own_files
from ringfence.model.ways.walk import absolute

_BY_DESCRIPTOR = os.open in os.supports_dir_fd
_FOLDER_FLAGS = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)
_HINT = "name a file that can be created"


class ReservedFile:
    """One path, and what is there now. UsageError if no file can be made there."""

    def __init__(self, path: str) -> None:
        self.path = absolute(path)
        self._above, self._name = os.path.split(self.path)
        self._folder = -1
        try:
            if _BY_DESCRIPTOR:
                self._folder = os.open(self._above, _FOLDER_FLAGS)
            self._before = self._look()
            self._try()
        except OSError as error:
            self.close()
            raise UsageError(f"{self.path}: {error.strerror}", hint=_HINT) from error

    def put(self, data: bytes) -> None:
        """ConflictError if somebody else has since made or changed a file there; nothing of theirs is replaced."""
        try:
            if self._look() != self._before or not self._is_same_folder():
                raise ConflictError(f"{self.path} was made or changed by somebody else meanwhile, and is left as it is",
                                    paths=(self.path,))  # fmt: skip
            own_files.write_whole(self._place(), data, dir_fd=self._where())
        except OSError as error:
            raise UsageError(f"{self.path}: {error.strerror}", hint="name a file on another disk") from error

    def close(self) -> None:
        folder, self._folder = self._folder, -1
        if folder >= 0:
            os.close(folder)

    def _place(self) -> str:
        return self.path if self._folder < 0 else self._name

    def _where(self) -> int | None:
        return None if self._folder < 0 else self._folder

    def _try(self) -> None:
        """Tell before anything runs whether a file can be made there."""
        if self._before and stat.S_ISDIR(self._before[0]):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        descriptor, beside = own_files.new_beside(self._place(), dir_fd=self._where())
        os.close(descriptor)
        os.unlink(beside, dir_fd=self._where())

    def _look(self) -> tuple[int, ...]:
        """Empty: there is nothing. A program can forge all but the time of the last change."""
        try:
            found = os.stat(self._place(), dir_fd=self._where(), follow_symlinks=False)
        except FileNotFoundError:
            return ()
        return found.st_mode, found.st_dev, found.st_ino, found.st_ctime_ns, found.st_size

    def _is_same_folder(self) -> bool:
        """Whether its path still leads to the directory that was opened."""
        return self._folder < 0 or os.path.samestat(os.stat(self._above), os.fstat(self._folder))
