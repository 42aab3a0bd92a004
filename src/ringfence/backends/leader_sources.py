"""The two kinds of process that fork leaders, and what is done when a leader that was asked for does not come.

Nothing is known here of what leaders do (``leader_client``), nor of how they are forked (``posix``).
"""

from __future__ import annotations

from itertools import count

from ringfence.errors import is_of_a_call
from ringfence.roles import spawner, zygote_client
from ringfence.transport import passing, wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    from ringfence.transport.request import VisitRequest, ZygoteRequest

    class LeaderSource(Protocol):
        led_together: bool
        """Whether one process leads all of them; what it is told of each goes with the descriptors."""

        def fork_leader(self, descriptors: list[int], message: bytes = b"") -> None: ...
        def pid(self) -> int: ...
        def give_up(self, reports: int) -> None: ...
        def kill(self) -> None: ...


class SpawnerSource:
    """Leaders of plain jobs, or another kind of what a spawner forks."""

    led_together = False

    def __init__(self, kind: bytes = passing.LEADER) -> None:
        self._kind = kind

    def fork_leader(self, descriptors: list[int], message: bytes = b"") -> None:
        spawner.fork_leader(descriptors, self._kind)

    def pid(self) -> int:
        return spawner.pid()

    def give_up(self, reports: int) -> None:
        """End the start that reports through this pipe, and no other."""
        spawner.give_up(reports)

    def kill(self) -> None:
        """End one that is stopped."""
        spawner.give_up_on_spawner(spawner.pid())


SPAWNER = SpawnerSource()
SCRATCH_CLEANERS = SpawnerSource(passing.CLEANER)


_numbers = count(1)
BEFORE_ANOTHER = 32
"""How many sandboxes are asked of a draft, which is good for seconds, before there is one more zygote: memory is spent
only where there is work for it."""


class ZygoteSource:
    """Leaders of sandboxes that share a template."""

    def __init__(self, template: ZygoteRequest, about_the_host: bytes = b"") -> None:
        """``about_the_host``: when it changes, the template must be carried out anew."""
        self._template = template
        self.led_together = template.get("warden", False)
        self._key = wire.packed(template) + about_the_host
        self._zygote: zygote_client.ZygoteClient | None = None
        self._asked = count()
        self.number, self._draft = 0, b""
        """The number of the draft that requests refer to; 0: requests are complete."""

    def with_draft(self, draft: VisitRequest) -> ZygoteSource:
        """The same, for sandboxes that are made by this draft."""
        self.number = next(_numbers)
        self._draft = wire.packed((self.number, draft))
        return self

    def for_one(self) -> ZygoteSource:
        """The source for one sandbox of many: the zygote whose turn it is. More requests bring more zygotes."""
        asked = next(self._asked)
        lane = asked % min(zygote_client.of_one_template(), 1 + asked // BEFORE_ANOTHER)
        chosen = object.__new__(type(self))
        chosen.__dict__.update(self.__dict__)
        chosen._key = self._key + bytes((lane,)) if lane else self._key
        return chosen

    def begin(self) -> ZygoteSource:
        """Build its zygote while the caller goes on. The caller withdraws it in the end if it was not used."""
        zygote_client.begin(self._key, self._template)
        return self

    def withdraw(self) -> None:
        zygote_client.withdraw(self._key)

    def fork_leader(self, descriptors: list[int], message: bytes = b"") -> None:
        self._zygote = zygote_client.for_template(self._key, self._template)
        try:
            self._zygote.fork_leader(descriptors, self.number, self._draft, message)
        except OSError as error:  # it has ended; once more, with a new one
            if not is_of_a_call(error):
                raise
            zygote_client.forget(self._zygote)
            self._zygote = zygote_client.for_template(self._key, self._template)
            self._zygote.fork_leader(descriptors, self.number, self._draft, message)

    def pid(self) -> int:
        return 0 if self._zygote is None else self._zygote.pid

    def give_up(self, reports: int) -> None:
        """End the start that reports through this pipe, and no other."""
        if self._zygote is not None:
            zygote_client.give_up(self._zygote, reports)

    def kill(self) -> None:
        """End one that is stopped, with all that it leads."""
        if self._zygote is not None:
            zygote_client.kill(self._zygote)
