"""What of ours has come since a sandbox was made, where its guest can see it: looked at before each visit and each job.

A folder that was noted after a sandbox was made is not hidden in it, and nothing can be hidden in a root that stands.
So nobody is let into it any more, and who lives in it is ended.
"""

from __future__ import annotations

from _collections_abc import Callable, Iterable

from ringfence.errors import UsageError
from ringfence.model import state_folder
from ringfence.model.paths import within


class OwnWatch:
    """Of one sandbox."""

    def __init__(self, stamp: object, known: Iterable[str], shown: Iterable[str], end: Callable[[], object]) -> None:
        """``stamp``: of ``state_folder.own_stamp`` before ``known`` was looked up. ``shown``: what of the host it
        shows. ``end``: ends all in it."""
        self._stamp = stamp
        self._known, self._shown = tuple(known), tuple(shown)
        self._end = end
        self._exposed = ""

    def exposed(self) -> str:
        """A folder of ours that its guest can see; empty: none. Costs some looks at files where nothing was noted."""
        if self._exposed or (now := state_folder.own_stamp()) == self._stamp:
            return self._exposed
        new = (own for own in state_folder.own_places() if not any(within(own, known) for known in self._known))
        self._exposed = next((own for own in new if any(within(own, top) for top in self._shown)), "")
        if self._exposed:
            self._end()
        self._stamp = now  # last: other threads ask too, and none is let in before it is known
        return self._exposed

    def refuse(self) -> None:
        """UsageError where something of ours lies open in it, and it was ended for that."""
        if place := self.exposed():
            problem = f"{place} has become a folder of ringfence's own in what this box shows, so the box was ended"
            raise UsageError(problem, hint="open another box: it hides it; what lies in a transaction is not lost")
