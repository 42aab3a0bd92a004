"""Hidden paths in what a living container shows: whether each is still the file that was hidden when it was made.

An engine hides a path by a mount over what lies there. It can't mount over a name that does not exist yet, and the
kernel drops the mount when somebody removes or replaces the file below it, as every editor does. So the paths are
checked before each visit and each job; if one has appeared or was replaced, the container is ended (ADR 0146). What a
guest reads in between can't be undone.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable

from ringfence.errors import SetupError, UsageError

_MISSING = -1
_NO_ROOM = (errno.EMFILE, errno.ENFILE)


class HiddenWatch:
    """The watch of one container. May be used by several threads."""

    def __init__(self, paths: Iterable[str], end: Callable[[], object]) -> None:
        """``paths``: on the host, before they are hidden. ``end``: ends all in it."""
        self._end = end
        self._exposed = ""
        self._held: dict[str, int] = {}
        try:
            for path in paths:
                self._held[path] = _opened(path)
        except BaseException:
            self.close()
            raise

    def exposed(self) -> str:
        """A hidden path that its guest can see; empty: there is none."""
        if not self._exposed:
            self._exposed = next((path for path, held in self._held.items() if _is_another(path, held)), "")
            if self._exposed:
                self._end()
        return self._exposed

    def refuse(self) -> None:
        """End the container and raise UsageError if a hidden path is exposed in it."""
        if path := self.exposed():
            problem = f"the hidden path {path} was created or replaced after the container started"
            raise UsageError(f"{problem}, so the container was ended",
                             hint="open a new box, which hides it; changes in a transaction are kept")  # fmt: skip

    def close(self) -> None:
        held, self._held = self._held, {}
        for descriptor in held.values():
            if descriptor != _MISSING:
                os.close(descriptor)


def _opened(path: str) -> int:
    """Kept open, so that no other file gets its inode number."""
    try:
        return os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno not in _NO_ROOM:
            return _MISSING
        raise SetupError("watch hidden paths", str(error.strerror), errno=error.errno,
                         hint="hide a directory instead of its many files, or raise ulimit -n") from error  # fmt: skip


def _is_another(path: str, held: int) -> bool:
    """A link shows nothing by itself: its target is hidden under its own name."""
    try:
        now = os.lstat(path)
        return not stat.S_ISLNK(now.st_mode) and (held == _MISSING or not os.path.samestat(now, os.fstat(held)))
    except OSError:
        return False
