"""A plain job under a filter that closes nothing: the job hands its listener to the leader, which sees why it fails.

Part of: leader

Linux only. If there can be no listener, e.g. below another sandbox that has one, the job runs without it, and its
status says less.
"""

from __future__ import annotations

import os
import sys
import time

from ringfence.roles.pace import Pace
from ringfence.steps.observe import LISTENER
from ringfence.transport import passing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.roles.loop import Descriptors

if sys.platform == "linux":  # once for all leaders: the spawner loads it
    from ringfence.kernel.seccomp import notify, witness

_MOST_CALLS = 64
# The deadline, the limits and the caller need attention meanwhile: looking at many descriptors or tasks takes long.
_MAX_TURN_NS = 20_000_000


class Observed:
    """The leader's end."""

    def __init__(self, limits: dict[str, int]) -> None:
        self.witness = witness.Witness(limits)
        self.door, self.theirs = passing.channel()
        self._listener: notify.Listener | None = None
        self._pace = Pace(0)

    def answering_s(self) -> float:
        """Processor time that it took to answer the job so far."""
        return self._pace.spent_ns / 1e9

    def listen(self, poller: Descriptors) -> None:
        self._poller = poller
        os.close(self.theirs)
        poller.register(self.door)

    def hears(self, descriptor: int) -> bool:
        return descriptor in (self.door, self._listener.fileno() if self._listener else -1)

    def on_readable(self, descriptor: int) -> None:
        if descriptor == self.door:
            self._take()
        elif self._listener is not None:
            listener = self._listener
            self._pace.work(lambda: self._answer(listener))

    def _take(self) -> None:
        """Called before the job's program runs, which has no such door."""
        kind, descriptors = passing.receive(self.door)
        if kind == LISTENER and descriptors:
            self._listener = notify.Listener(descriptors[0])
            self._poller.register(descriptors[0])
        self._poller.unregister(self.door)
        os.close(self.door)
        self.door = -1

    def _answer(self, listener: notify.Listener) -> None:
        until_ns = time.monotonic_ns() + _MAX_TURN_NS
        for _ in range(_MOST_CALLS):
            told = listener.handle()
            if told is None:
                break
            if self.witness.see(told.name, told.thread, told.args):
                listener.proceed(told)
            if time.monotonic_ns() > until_ns:
                break
        if listener.finished:
            self._poller.unregister(listener.fileno())
