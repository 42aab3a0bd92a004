"""The two kinds of process that fork leaders, and what is done when a leader that was asked for does not come.

Nothing is known here of what leaders do (``led_visit``), nor of how they are forked (``posix``).
"""

from __future__ import annotations

import marshal

from ringfence.errors import is_of_a_call
from ringfence.posix import moulds, passing, spawner

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    class Forker(Protocol):
        def fork_leader(self, descriptors: list[int]) -> None: ...
        def pid(self) -> int: ...
        def give_up(self, reports: int) -> None: ...


class FromSpawner:
    """Leaders of plain jobs, or another kind of what a spawner forks."""

    def __init__(self, kind: bytes = passing.LEADER) -> None:
        self._kind = kind

    def fork_leader(self, descriptors: list[int]) -> None:
        spawner.fork_leader(descriptors, self._kind)

    def pid(self) -> int:
        return spawner.pid()

    def give_up(self, reports: int) -> None:
        """End the start that is told of through this pipe, and no other."""
        spawner.give_up(reports)


SPAWNER = FromSpawner()
FOLDER_KEEPERS = FromSpawner(passing.KEEPER)


class FromMould:
    """Leaders of sandboxes that share a template."""

    def __init__(self, template: dict[str, object], about_the_host: bytes = b"") -> None:
        """``about_the_host``: when it changes, the template must be carried out anew."""
        self._template = template
        self._key = marshal.dumps(template) + about_the_host
        self._mould: moulds.Mould | None = None

    def fork_leader(self, descriptors: list[int]) -> None:
        self._mould = moulds.for_template(self._key, self._template)
        try:
            self._mould.fork_leader(descriptors)
        except OSError as error:  # it has ended; once more, with a new one
            if not is_of_a_call(error):
                raise
            moulds.forget(self._mould)
            self._mould = moulds.for_template(self._key, self._template)
            self._mould.fork_leader(descriptors)

    def pid(self) -> int:
        return 0 if self._mould is None else self._mould.pid

    def give_up(self, reports: int) -> None:
        """End the start that is told of through this pipe, and no other."""
        if self._mould is not None:
            moulds.give_up(self._mould, reports)
