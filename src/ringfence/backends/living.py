"""A box that lives between visits, from the caller's side: who keeps it open, and a visit to it."""

from __future__ import annotations

from ringfence.backends.facts import Report
from ringfence.backends.groups import GroupVisit
from ringfence.backends.led_visit import FromMould, LedVisit
from ringfence.linux.rootfs import Wish
from ringfence.model.record import record, replace


class VisitToBox(LedVisit):
    """A visit to a living box; what its keeper says of the whole is heard too."""

    def __init__(
        self, request: dict[str, object], streams: tuple[int, ...], forker: FromMould, keeper: GroupVisit
    ) -> None:
        self._keeper = keeper
        super().__init__(request, streams, forker)

    def filenos(self) -> tuple[int, ...]:
        return (self.fileno(), self._keeper.fileno())

    def receive(self) -> Report | None:
        report = super().receive()
        ended = self._keeper.receive()
        if ended is not None:  # the box itself is at its end: that is why the visit is
            return replace(ended, wall_ns=report.wall_ns if report else ended.wall_ns)
        return report

    def take_notes(self) -> list[dict[str, object]]:
        return [*super().take_notes(), *self._keeper.take_notes()]


@record
class Keeper:
    """What a living box has: the visit that keeps it open, what it shows, and what forks leaders for it."""

    visit: GroupVisit
    wish: Wish
    forker: FromMould
