"""Finds links of an agent's in an image that lead to something of the grader's own: a decision over plain data.

A link to the tests' own answer would be an answer. Each link is followed as the kernel will follow it, through the
links of the layer and of the image, inside the root.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from ringfence.checkpoint.entry import LINK, Entry, Manifest, ancestors, hides_base
from ringfence.model.paths import within

Look = Callable[[str], Entry | None]
"""What the image has at a path, which is relative to its root; no link is on the way."""

LEADS = "a link to what the grader has of its own is not graded"
MAX_STEPS = 2_000_000
"""The most steps to resolve all links together; links that are unresolved by then are left out."""
_MOST_LINKS, _MOST_PARTS, _DEEPEST = 40, 4096, 300
_MAGIC = ("proc", "dev")
"""Entries there may lead anywhere, even to the standard input of a script."""
_HARMLESS = frozenset(("proc/mounts", "proc/self/mounts", "dev/null", "dev/zero", "dev/full", "dev/random",
                       "dev/urandom", "dev/tty", "dev/stdout", "dev/stderr"))  # fmt: skip


def leading(layer: Manifest, look: Look, places: Collection[str]) -> dict[str, str]:
    """The links of a layer that lead into one of the places, to a directory above one, or to an unknown place."""
    ways = _Ways(layer, look, (*places, *_MAGIC))
    return {path: LEADS for path, entry in layer.items() if entry.kind == LINK and ways.lead(path, entry.target)}


def passed(path: str, look: Look) -> list[str]:
    """The links of the image on a way in it, and where the way ends."""
    here, left = "", _parts(path)[::-1]
    found: list[str] = []
    while left and len(found) <= _MOST_LINKS:
        name = left.pop()
        here = here.rpartition("/")[0] if name == ".." else f"{here}/{name}".lstrip("/")
        entry = look(here) if here else None
        if entry is not None and entry.kind == LINK:
            found.append(here)
            here = "" if entry.target.startswith("/") else here.rpartition("/")[0]
            left += _parts(entry.target)[::-1]
    return [*found, here] if here else found


class _Ways:
    def __init__(self, layer: Manifest, look: Look, places: Collection[str]) -> None:
        self._layer, self._look, self._places = layer, look, places
        self._budget = MAX_STEPS

    def lead(self, path: str, target: str) -> bool:
        """Whether a link leads there."""
        here = [] if target.startswith("/") else path.split("/")[:-1]
        left, followed = _parts(target)[::-1], 1
        while left:
            self._budget -= 1
            if followed > _MOST_LINKS or len(left) > _MOST_PARTS or len(here) > _DEEPEST or self._budget < 0:
                return True
            name = left.pop()
            here = here[:-1] if name == ".." else [*here, name]
            there = "/".join(here)
            if any(within(there, place) for place in self._places):
                return "/".join((there, *reversed(left))) not in _HARMLESS
            more = self._target(there)
            if more:
                followed += 1
                here = [] if more.startswith("/") else here[:-1]
                left += _parts(more)[::-1]
        end = "/".join(here)
        return not end or any(within(place, end) for place in self._places)

    def _target(self, path: str) -> str:
        """Where a link at this path of the graded tree leads; empty: there is none."""
        found = self._layer.get(path)
        if found is None and not any(hides_base(self._layer.get(above)) for above in ancestors(path)):
            found = self._look(path) if path else None
        return found.target if found is not None and found.kind == LINK else ""


def _parts(target: str) -> list[str]:
    return [part for part in target.split("/") if part not in ("", ".")]
