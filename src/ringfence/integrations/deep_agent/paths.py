"""Whether a path stays below some directories, also when the links on its way are followed. Opens nothing."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator, Mapping

from ringfence.model.ways.walk import real, walk, walk_over

_MAX_PATH = 4096


def is_below(place: str, folders: Iterable[str]) -> bool:
    return any(place == folder or place.startswith(folder.rstrip(os.sep) + os.sep) for folder in folders)


def leads_below(start: str, text: str, folders: tuple[str, ...], laid: Mapping[str, str] | None = None) -> bool:
    """Checks the path as written and as the kernel follows it: after a link, ``..`` goes up from the link's target.

    ``laid``: what a sandbox has laid over the host; then it must stay below with that too."""
    path = os.path.join(start, text)
    if not is_below(os.path.normpath(path), folders):
        return False
    way = walk(path)  # EINVAL: a NUL, or a lone surrogate; no file has such a name
    ends = [way.end] if laid is None else [way.end, walk_over(path, laid).end]
    return way.error != errno.EINVAL and all(is_below(end, map(real, folders)) for end in ends)


def links_going_up(folders: Iterable[str]) -> dict[str, str]:
    """The links below these directories that go up behind a name, and where they point."""
    found: dict[str, str] = {}
    for top in folders:
        for here, inner, files in os.walk(top):  # links are never followed
            for path in (os.path.join(here, name) for name in (*inner, *files)):
                target = _link(path)
                if target and goes_up_behind_a_name(target):
                    found[path] = target
    return found


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""  # it is none


def goes_up_behind_a_name(text: str) -> bool:
    """Whether where it leads depends on another name, which may become a link later.

    >>> goes_up_behind_a_name("../a/b"), goes_up_behind_a_name("a/../b"), goes_up_behind_a_name("/w/./..")
    (False, True, True)
    """
    names = [name for name in text.replace(os.sep, "/").split("/") if name not in ("", ".")]
    first = next((place for place, name in enumerate(names) if name != ".."), len(names))
    return ".." in names[first:]


def meeting(starts: tuple[str, ...], texts: Iterable[str], paths: frozenset[str]) -> bool:
    """Whether a text, as a path from one of the starts, is one of these paths, above one or below one.

    Both may be many and chosen by an attacker: each is looked at once.
    """
    above = frozenset(each for path in paths for each in _ways(path))
    places = (place for text in texts if _is_path(text) for start in starts for place in _places(start, text))
    return any(place in above or not paths.isdisjoint(_ways(place)) for place in places)


def _places(start: str, text: str) -> Iterator[str]:
    """The path as written, and, if that may differ, as the kernel follows it."""
    path = os.path.join(start, text)
    yield os.path.normpath(path)
    if goes_up_behind_a_name(text):
        yield real(path)


def _is_path(text: str) -> bool:
    return len(text) <= _MAX_PATH and "\0" not in text


def _ways(path: str) -> Iterator[str]:
    """A path and all above it."""
    yield path
    while path != (above := os.path.dirname(path)):
        path = above
        yield path
