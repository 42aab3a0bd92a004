"""Hidden paths as one set: asked about a path or a folder, it answers without looking at every one of them."""

from __future__ import annotations

import os
from _bisect import bisect_left
from collections.abc import Iterable, Iterator


class HiddenPaths:
    """Absolute paths with the links on the way resolved; see ``host.every_name``."""

    def __init__(self, paths: Iterable[str] = ()) -> None:
        self._set = frozenset(paths)
        self._sorted = sorted(self._set)

    def __iter__(self) -> Iterator[str]:
        return iter(self._sorted)

    def __len__(self) -> int:
        return len(self._sorted)

    def cover(self, path: str) -> bool:
        """Whether it, or a folder that it lies in, is hidden."""
        while path not in self._set:
            above = path.rpartition("/")[0]
            if not above:
                return False
            path = above
        return True

    def below(self, folder: str) -> list[str]:
        """Those below the folder, relative to it."""
        prefix = folder.rstrip("/") + "/"
        first = bisect_left(self._sorted, prefix)
        found = []
        for path in self._sorted[first:]:
            if not path.startswith(prefix):
                break
            found.append(path[len(prefix) :])
        return found

    def folders(self) -> set[str]:
        """The folders that they lie in."""
        return {os.path.dirname(path) for path in self._sorted}
