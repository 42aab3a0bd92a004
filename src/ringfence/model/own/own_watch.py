"""Directories of ours that have appeared where a guest can see them since its sandbox was made: checked before each
visit and each job.

A directory that was noted after a sandbox was made is not hidden in it, and nothing can be hidden in a finished root.
So the sandbox takes no more visits, and the processes in it are ended. """

from __future__ import annotations

from _collections_abc import Callable, Iterable

from ringfence.errors import UsageError
from ringfence.model import state_folder
from ringfence.model.paths import within


class OwnWatch:
    """Ends one sandbox when it shows a directory that has become ours since it was made."""

    def __init__(self, stamp: object, known: Iterable[str], shown: Iterable[str], end: Callable[[], object]) -> None:
        """``stamp``: of ``state_folder.own_stamp`` before ``known`` was looked up. ``shown``: what it shows of the
        host. ``end``: ends everything in it."""
        self._stamp = stamp
        self._known, self._shown = tuple(known), tuple(shown)
        self._end = end
        self._exposed = ""

    def exposed(self) -> str:
        """A directory of ours that its guest can see; empty: none. If nothing was noted, costs some looks at files."""
        if self._exposed or (now := state_folder.own_stamp()) == self._stamp:
            return self._exposed
        new = (own for own in state_folder.own_places() if not any(within(own, known) for known in self._known))
        self._exposed = next((own for own in new if any(within(own, top) for top in self._shown)), "")
        if self._exposed:
            self._end()
        self._stamp = now  # last: other threads ask too, and none may go in before the answer is known
        return self._exposed

    def refuse(self) -> None:
        """UsageError if a directory of ours was exposed in it; it was ended for that."""
        if place := self.exposed():
            problem = f"{place}, which this box shows, is now a directory of ringfence's own, so the box was ended"
            raise UsageError(problem, hint="open a new box, which hides it; changes in a transaction are kept")
