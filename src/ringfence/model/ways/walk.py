"""One resolver of paths: as the kernel goes, hop by hop, and at most as far as it goes.

The text of a path does not tell where it leads: behind a link ``..`` goes up from where the link has led. On Linux each
hop is a descriptor of what was there (O_PATH, never through a link), so that nobody can make us continue elsewhere.
Other systems have no such descriptors, there each hop is looked at by its name; Windows itself reads ``..`` as text and
gives the answer. Opens nothing for reading, and says nothing of what is there a moment later: a caller that uses a path
that others could change must open it without following links (``kernel/mount``, ``kernel/landlock``).
"""

from __future__ import annotations

import errno
import os
import stat
from _collections_abc import Mapping

from ringfence.model.paths import within
from ringfence.model.record import record
from ringfence.model.ways import who

MOST_LINKS = 40
"""MAXSYMLINKS: the kernel gives up there."""
_HOW = getattr(os, "O_PATH", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_MAGIC = "/proc"
"""Links in there lead to where a process is, whatever their text says."""


Path = str | os.PathLike[str]
Row = tuple[str, str, str]
"""The same as a hop in its order, bare: many are made for every sandbox, and few are looked at."""


@record
class Hop:
    """One name on the way."""

    place: str
    """The real path of the directory that it lies in, and the name."""
    link: str
    """Where it leads; empty: it is no link."""
    open_to: str
    """Who, beside root and the caller, could put something else in its place; empty: nobody."""


@record
class Way:
    """Everything that the kernel passes, and where it arrives."""

    rows: tuple[Row, ...]
    """Links, and between two of them the last place alone: it says by its text what was passed before it."""
    end: str
    """The real path; beyond the first name that is not there, what the text says."""
    error: int = 0
    """Why the kernel does not arrive (ENOENT, EACCES, ELOOP …); 0: it does."""
    own: str = ""
    """Its last name, with the real path of the directory that it lies in: a link there is seen as one."""

    @property
    def links(self) -> list[str]:
        """The places of all links on it."""
        return [place for place, link, _ in self.rows if link]

    def passes(self, *tops: str) -> bool:
        """Whether it leads through one of these directories, or to it."""
        return any(within(place, top) for place, _, _ in self.rows for top in tops)

    @property
    def is_open(self) -> bool:
        """Whether somebody else could have put something else in the place of a name on it."""
        return any(open_to for _, _, open_to in self.rows)

    def link_of_others(self) -> Hop | None:
        """The first link on it that somebody else could have put there, by itself or with a directory above it."""
        is_open = ""
        for place, link, open_to in self.rows:
            is_open = is_open or open_to
            if link and is_open:
                return Hop(place=place, link=link, open_to=is_open)
        return None


class Look:
    """One look at the host: each path is walked once, and all decisions use what was seen then."""

    def __init__(self) -> None:
        self._ways: dict[str, Way] = {}

    def way(self, path: str) -> Way:
        if path not in self._ways:
            self._ways[path] = walk(path)
        return self._ways[path]

    def real(self, path: str) -> str:
        return self.way(path).end


def real(path: Path) -> str:
    """Where a path leads."""
    return walk(path).end


def absolute(path: Path) -> str:
    """The path from ``/`` on, without ``.`` and doubled slashes. If it goes up, its directory is the one that the
    kernel finds. A link at its end stays, and so do links on the way if it only goes down."""
    if os.name == "nt":
        return os.path.abspath(path)  # as that system reads it
    path = os.fspath(path)
    if path.startswith("/") and "//" not in path and "/." not in path:
        return path.rstrip("/") or "/"  # most paths: nothing to remove
    names = _from_root(path).split("/")
    if ".." not in names:
        return "/" + "/".join(name for name in names if name not in ("", "."))
    return itself("/".join(names))


def itself(path: Path) -> str:
    """The path with its directory resolved, but not its last name: a link there stays a link."""
    if os.name == "nt":
        folder, name = os.path.split(os.path.abspath(path))
        return os.path.join(os.path.realpath(folder), name)
    folder, name = os.path.split(_from_root(path).rstrip("/"))
    return real(path) if name in ("", ".", "..") else f"{real(folder).rstrip('/')}/{name}"


def walk(path: Path) -> Way:
    """The way to a path; a relative one begins at the current directory. The way itself says how it ends."""
    if os.name == "nt":
        error = 0 if os.path.exists(path) else errno.ENOENT
        return Way(rows=(), end=os.path.realpath(path), error=error, own=itself(path))
    walker = _Walker(_Opened() if hasattr(os, "O_PATH") else _Named())
    try:
        return walker.walk(_from_root(path).split("/"))
    finally:
        walker.close()


def walk_over(path: str, laid: Mapping[str, str]) -> Way:
    """The way as it will be with ``laid`` over the host: for each place the target of a link, or nothing if it is not a
    link. A place that is nowhere counts as a directory; who could change it is not asked."""
    if os.name == "nt":
        return walk(path)
    return _Walker(_Laid(laid)).walk(_from_root(path).split("/"))


def _from_root(path: Path) -> str:
    return os.fspath(path) if os.path.isabs(path) else os.path.join(os.getcwd(), path)


class _Walker:
    """Goes one way."""

    def __init__(self, host: _Opened | _Named) -> None:
        self._host = host
        self._top = self._folder = host.root()
        self._users = who.trusted(self._top)
        self._rows: list[Row] = []
        self._links = 0
        self._own = ""
        self.close = host.close

    def walk(self, names: list[str]) -> Way:
        place, left = "", names[::-1]
        while left:
            name = left.pop()
            if not stat.S_ISDIR(self._folder.st_mode):
                return self._not_there(place, [*left, name], errno.ENOTDIR)
            if name in ("", "."):
                continue
            place = place.rpartition("/")[0] if name == ".." else f"{place}/{name}"
            self._own = self._own or ("" if left else place)
            try:
                found = self._host.look(name, place)
                to = self._host.link(place) if stat.S_ISLNK(found.st_mode) else ""
            except (OSError, ValueError) as error:
                self._passed(place, "", who.open_to(self._folder, None, self._users))
                return self._not_there(place, left, getattr(error, "errno", None) or errno.EINVAL)
            if name != "..":
                self._passed(place, to, self._open_to(found, to, place))
            if not to:
                self._folder = self._host.enter()
                continue
            self._links += 1
            if self._links > MOST_LINKS:
                return self._way(place, errno.ELOOP)
            place = place.rpartition("/")[0]
            if to.startswith("/"):
                place, self._folder = "", self._top
                self._host.to_root()
            left += to.split("/")[::-1]
        return self._way(place)

    def _passed(self, place: str, to: str, open_to: str) -> None:
        """Go on in the last row where nothing is lost by it: a row for each name would take the square of a path's
        length, and a path may be as long as somebody else likes."""
        before, link, was_open_to = self._rows[-1] if self._rows else ("", "", "")
        if before and not link and not to and place.startswith(f"{before}/"):
            self._rows[-1] = (place, "", was_open_to or open_to)
        else:
            self._rows.append((place, to, open_to))

    def _way(self, place: str, error: int = 0) -> Way:
        end = place or "/"
        return Way(rows=tuple(self._rows), end=end, error=error, own=self._own or end)

    def _open_to(self, found: os.stat_result, to: str, place: str) -> str:
        if to and within(place, _MAGIC):
            return "a process"
        return who.open_to(self._folder, found, self._users)

    def _not_there(self, place: str, left: list[str], error: int) -> Way:
        """From here on only the text counts."""
        names = place.split("/")
        for name in left[::-1]:
            if name == "..":
                del names[max(1, len(names) - 1) :]
            elif name not in ("", "."):
                names.append(name)
        end = "/".join(names)
        if end != place:
            self._passed(end, "", "")
        return self._way(end, error)


class _Opened:
    """A place on the host, by a descriptor of it, and of what was looked at last.

    A descriptor is forgotten before it is closed: a signal handler may raise in between, and closing a number twice
    could hit another thread's file.
    """

    def __init__(self) -> None:
        self._root = self._here = os.open("/", _HOW)
        self._seen = -1

    def look(self, name: str, place: str) -> os.stat_result:
        before, self._seen = self._seen, -1
        self._leave(before)
        self._seen = os.open(name, _HOW, dir_fd=self._here)
        self._status = os.fstat(self._seen)
        return self._status

    def link(self, place: str) -> str:
        return os.readlink("", dir_fd=self._seen)

    def enter(self) -> os.stat_result:
        before, self._here, self._seen = self._here, self._seen, -1
        self._leave(before)
        return self._status

    def root(self) -> os.stat_result:
        return os.fstat(self._root)

    def to_root(self) -> None:
        before, self._here = self._here, self._root
        self._leave(before)

    def _leave(self, descriptor: int) -> None:
        if descriptor not in (-1, self._root):
            os.close(descriptor)

    def close(self) -> None:
        left = {self._root, self._here, self._seen} - {-1}
        self._root = self._here = self._seen = -1
        for descriptor in left:
            os.close(descriptor)


class _Named:
    """The same by names, where there are no such descriptors."""

    def look(self, name: str, place: str) -> os.stat_result:
        self._status = os.lstat(place or "/")
        return self._status

    def link(self, place: str) -> str:
        return os.readlink(place)

    def enter(self) -> os.stat_result:
        return self._status

    def root(self) -> os.stat_result:
        return os.lstat("/")

    def to_root(self) -> None:
        pass

    def close(self) -> None:
        pass


_FOLDER, _LINK = (os.stat_result((kind, 0, 0, 1, 0, 0, 0, 0, 0, 0)) for kind in (stat.S_IFDIR | 0o755, stat.S_IFLNK))


class _Laid(_Named):
    """By names, and what was laid over them first."""

    def __init__(self, laid: Mapping[str, str]) -> None:
        self._laid = laid

    def look(self, name: str, place: str) -> os.stat_result:
        to = self._laid.get(place)
        if to is None:
            to = self._linked(place)
        self._status = _LINK if to else _FOLDER
        return self._status

    def link(self, place: str) -> str:
        return self._laid.get(place) or self._linked(place)

    def _linked(self, place: str) -> str:
        try:
            return os.readlink(place or "/")
        except (OSError, ValueError):
            return ""
