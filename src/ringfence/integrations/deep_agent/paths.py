"""Whether a path stays below some folders, also when the links on its way are followed. Opens nothing."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

_MAX_PATH = 4096


def is_below(place: str, folders: Iterable[str]) -> bool:
    return any(place == folder or place.startswith(folder.rstrip(os.sep) + os.sep) for folder in folders)


def leads_below(start: str, text: str, folders: tuple[str, ...]) -> bool:
    """As it is written and as it is followed; outside of the folders nothing is touched."""
    place = os.path.normpath(os.path.join(start, text))
    try:
        return is_below(place, folders) and is_below(os.path.realpath(place), map(os.path.realpath, folders))
    except ValueError:
        return False  # a NUL, or half a character: no file has such a name


def meeting(starts: tuple[str, ...], texts: Iterable[str], paths: frozenset[str]) -> bool:
    """Whether a text, as a path from one of the starts, is one of these paths, above one or below one.

    Both may be many, and chosen by others: each is looked at once.
    """
    above = frozenset(each for path in paths for each in _ways(path))
    places = (os.path.normpath(os.path.join(start, text)) for text in texts if _is_path(text) for start in starts)
    return any(place in above or not paths.isdisjoint(_ways(place)) for place in places)


def _is_path(text: str) -> bool:
    return len(text) <= _MAX_PATH and "\0" not in text


def _ways(path: str) -> Iterator[str]:
    """A path and all above it."""
    yield path
    while path != (above := os.path.dirname(path)):
        path = above
        yield path
