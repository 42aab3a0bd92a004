"""Whether a path stays below some folders, also when the links on its way are followed. Opens nothing."""

from __future__ import annotations

import os
from collections.abc import Iterable


def is_below(place: str, folders: Iterable[str]) -> bool:
    return any(place == folder or place.startswith(folder.rstrip(os.sep) + os.sep) for folder in folders)


def leads_below(start: str, text: str, folders: tuple[str, ...]) -> bool:
    """As it is written and as it is followed; outside of the folders nothing is touched."""
    place = os.path.normpath(os.path.join(start, text))
    try:
        return is_below(place, folders) and is_below(os.path.realpath(place), map(os.path.realpath, folders))
    except ValueError:
        return False  # a NUL, or half a character: no file has such a name
