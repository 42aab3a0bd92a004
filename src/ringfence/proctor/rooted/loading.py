"""Which of an agent's changes every program would load because a variable of the grader's says so, by their names.

``LD_LIBRARY_PATH`` sends loaders to its directories before all others, ``LD_PRELOAD`` names libraries themselves.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ringfence.checkpoint.entry import LINK, Entry
from ringfence.model.paths import within
from ringfence.proctor.rooted import system_files
from ringfence.proctor.rooted.links import Look, passed


class Loading:
    """What the variables of one grader make programs load."""

    def __init__(self, environment: Mapping[str, str], look: Look) -> None:
        self._searched = _places(environment.get("LD_LIBRARY_PATH", ""), look)
        self._loaded = _places(environment.get("LD_PRELOAD", ""), look)

    def has(self, path: str, entry: Entry) -> bool:
        """Whether something there would be loaded, or leads to what is."""
        if entry.kind == LINK and any(within(top, path) for top in self._searched | self._loaded):
            return True
        core = system_files.is_core(path, entry)
        return path in self._loaded or (core and any(within(path, top) for top in self._searched))


def _places(value: str, look: Look) -> frozenset[str]:
    """Relative to the root: the links of the image on the way, and where it ends."""
    named = (path for path in re.split(r"[:;\s]", value) if path.startswith("/"))
    return frozenset(place for path in named for place in passed(path, look))
