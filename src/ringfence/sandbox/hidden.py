"""Hidden paths as one set: it answers questions about a path or a directory without looking at all of them."""

from __future__ import annotations

from _bisect import bisect_left
from _collections_abc import Iterable, Iterator


class HiddenPaths:
    """Absolute paths with the links on the way resolved; see ``host.every_name``."""

    def __init__(self, paths: Iterable[str] = ()) -> None:
        self._set = frozenset(paths)
        self._sorted = sorted(self._set)
        self.folders = frozenset([path.rpartition("/")[0] or "/" for path in self._sorted])
        """The directories that they lie in."""

    def __iter__(self) -> Iterator[str]:
        return iter(self._sorted)

    def __len__(self) -> int:
        return len(self._sorted)

    def cover(self, path: str) -> bool:
        """Whether it, or a directory that it lies in, is hidden."""
        while path not in self._set:
            above = path.rpartition("/")[0]
            if not above:
                return False
            path = above
        return True

    def below(self, folder: str) -> list[str]:
        """The hidden paths below the directory, relative to it."""
        prefix = folder.rstrip("/") + "/"
        first = bisect_left(self._sorted, prefix)
        last = bisect_left(self._sorted, prefix[:-1] + chr(ord("/") + 1), first)
        return [path[len(prefix) :] for path in self._sorted[first:last]]

    def also_at(self, places: Iterable[tuple[str, str]]) -> HiddenPaths:
        """The set with the names that paths get in directories shown elsewhere: (the directory, where it is shown)."""
        more = [f"{place}/{name}" for folder, place in places for name in self.below(folder)]
        return HiddenPaths((*self._set, *more)) if more else self

    def within(self, folder: str) -> list[str]:
        """The directory itself if it is hidden, and those below it."""
        own = [folder] if folder in self._set else []
        return own + [f"{folder.rstrip('/')}/{name}" for name in self.below(folder)]


NOTHING = HiddenPaths()
