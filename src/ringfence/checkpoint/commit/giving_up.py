"""A layer that no longer says anything about some path, and says the same as before about all others.

Pure: it asks a function what the base has in a directory.
"""

from __future__ import annotations

from _collections_abc import Callable, Iterable

from ringfence.checkpoint.entry import DELETED, FOLDER, GONE, Entry, Manifest, ancestors, hides_base, ordered
from ringfence.model.paths import within
from ringfence.model.record import replace

Names = Callable[[str], Iterable[str]]
"""The names that the base has in a directory; none where there is no directory."""


def given_up(layer: Manifest, path: str, names: Names) -> dict[str, Entry]:
    """What the base has at this path is seen again, with the directories that lead to it."""
    found = dict(layer)
    for above in ancestors(path):
        if hides_base(found.get(above)) and not _uncovered(found, above, path, names):
            return _rejoined(found)
    entry = found.get(path)
    if entry is not None and entry.kind == FOLDER and entry.opaque and any(True for _ in names(path)):
        found[path] = replace(entry, opaque=False)  # with theirs in it, and with ours
    else:
        _drop(found, path)
    return _rejoined(found)


def _uncovered(found: dict[str, Entry], folder: str, path: str, names: Names) -> bool:
    """Say of each name in a directory what was said of the whole directory. False: the layer had something else there,
    which is dropped."""
    entry = found[folder]
    if entry.kind not in (FOLDER, DELETED):
        _drop(found, folder)
        return False
    if entry.kind == DELETED:
        del found[folder]
    else:
        found[folder] = replace(entry, opaque=False)
    for child in (f"{folder}/{name}" for name in names(folder)):
        if child not in found and child != path:
            found[child] = GONE
        elif child in found and found[child].kind == FOLDER:
            found[child] = replace(found[child], opaque=True)
    return True


def _drop(found: dict[str, Entry], top: str) -> None:
    for path in [path for path in found if within(path, top)]:
        del found[path]


def _rejoined(found: dict[str, Entry]) -> dict[str, Entry]:
    """If the first name of a file is gone, another of its names becomes the first."""
    first: dict[str, str] = {}
    for path in ordered(found):
        twin = found[path].twin
        if twin and twin not in found:
            lead = first.setdefault(twin, path)
            found[path] = replace(found[path], twin="" if lead == path else lead)
    return found
