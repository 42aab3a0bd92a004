"""``Handle``: one visit to a box in the background, led by a thread of its own.

It decides nothing about the visit: it passes on what ``supervision`` hears, and what its owner says.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from ringfence.backends.background_io import BackgroundStreams
from ringfence.engine.occupancy import Occupant, wait_for
from ringfence.engine.supervision import Listeners
from ringfence.errors import UsageError
from ringfence.model.events import OnEvent, OnOutput
from ringfence.model.job import Job
from ringfence.model.outcome import Outcome
from ringfence.model.record import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.backends.contract import Visit

_SIGNALS = range(1, 65)


class Handle(BackgroundStreams):
    """A visit in the background: its output as it comes, its input, signals, and how it ends."""

    def __init__(
        self,
        lead: Callable[[Job, Listeners], Outcome],
        job: Job,
        output_bytes: int,
        on_output: OnOutput | None,
        occupant: Occupant,
        on_event: OnEvent | None = None,
    ) -> None:
        """``lead``: runs a job to its end, in a thread of this handle."""
        super().__init__(output_bytes)
        self._lead = lead
        self._stay = occupant
        self._visit: Visit | None = None
        self._outcome: Outcome | None = None
        self._problem: BaseException | None = None
        self._begun = threading.Event()
        # Not the thread's own end: Python before 3.13 takes a thread for ended when Ctrl-C interrupts join.
        self._ended = threading.Event()
        self._theirs = -1
        """The job's end of its input, until the job has a copy."""
        listeners = Listeners(on_event=on_event, on_output=on_output, on_all=self._add, attach=self._attach)
        try:
            self._start(job, listeners)
        except BaseException:
            occupant.leave()
            self.close_input()
            self._begin()
            raise
        self._begun.wait()
        if self._problem is not None:
            raise self._problem

    def _start(self, job: Job, listeners: Listeners) -> None:
        if job.stdin is None:
            self._theirs, self._input = os.pipe()
            job = replace(job, stdin=self._theirs)
        threading.Thread(target=self._work, args=(job, listeners), name="ringfence-visit", daemon=True).start()

    def _work(self, job: Job, listeners: Listeners) -> None:
        self._stay.thread = threading.get_ident()
        try:
            self._outcome = self._lead(job, listeners)
        except BaseException as error:
            self._problem = error
        finally:
            self._begin()
            self._ended.set()
            self._end_output()
            self._stay.leave()

    def _begin(self) -> None:
        """The job has its streams, or never will."""
        theirs, self._theirs = self._theirs, -1
        if theirs >= 0:
            os.close(theirs)
        self._begun.set()

    def _attach(self, visit: Visit, _: object) -> None:
        self._visit = visit
        self._stay.attach(visit)
        self._begin()

    @property
    def done(self) -> bool:
        return self._ended.is_set()

    @property
    def entered(self) -> bool:
        """False: its box had ended before, and nothing of the job has begun. Known when it is done."""
        return self._visit is None or self._visit.entered

    @property
    def operations(self) -> int:
        """Calls of the read and the write family that it has made, if they are limited and it is done; else -1."""
        return self._visit.operations if self._visit is not None else -1

    def signal(self, number: int) -> None:
        """Signal the job; SIGKILL ends all that belongs to this visit."""
        if number not in _SIGNALS:
            raise UsageError(f"{number!r} is not a signal")
        if self._visit is not None and not self.done and self._visit.filenos():
            self._visit.signal(number)

    def join(self, timeout_s: float | None = None) -> None:
        """Wait for its end, at most this long, and raise nothing."""
        if wait_for(self._ended, timeout_s):
            self.close_input()

    def wait(self, timeout_s: float | None = None) -> Outcome:
        """Wait for its end and return the outcome; TimeoutError if that takes longer."""
        self.join(timeout_s)
        if not self.done:
            raise TimeoutError("the visit has not ended yet")
        if self._problem is not None:
            raise self._problem
        assert self._outcome is not None
        return self._outcome
