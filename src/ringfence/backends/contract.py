"""What a backend is: two questions to ask it, and the box and visits that it opens.

A backend isolates; it does not decide what an end means (``engine.verdict``), read output
(``engine.streams``) or know doors. Adding an isolation level means adding one file that keeps this
contract and passes ``backends.conformance``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from ringfence.backends.facts import Lack, Report
from ringfence.backends.led_visit import PythonJobs
from ringfence.model.job import Job
from ringfence.model.limits import IsolationLevel
from ringfence.model.outcome import Changes, Enforcement
from ringfence.model.policy import SandboxPolicy
from ringfence.monitor.source import Source

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.checkpoint.transaction import Transaction


class Visit(Protocol):
    """One running job."""

    begun: bool
    """Its clock runs. Before, nothing of the job has happened."""
    entered: bool
    """False: the living box that it was for had come to its end, and nothing of the job has begun."""

    def may_begin(self) -> bool:
        """Of one that has not begun: whether waiting is right, for those who have to act are at work."""
        ...

    def source(self) -> Source:
        """Where its processes can be looked at; of a visit to a living box, all that are in there."""
        ...

    def fileno(self) -> int:
        """Negative once the visit is closed."""
        ...

    def filenos(self) -> tuple[int, ...]:
        """Readable when ``receive`` has something to say."""
        ...

    def receive(self) -> Report | None:
        """The end, if it has come; SetupError if the job never started. Does not block."""
        ...

    def take_notes(self) -> list[dict[str, object]]:
        """Attempts on forbidden things that were recorded since the last time; what they say is untrusted."""
        ...

    def signal(self, number: int) -> None:
        """Signal the job; SIGKILL ends its whole tree."""
        ...

    def abandon(self) -> None:
        """Kill what is left and give up waiting; called when nothing else helped."""
        ...

    def close(self) -> None:
        """Free what the visit holds, ending it if it runs."""
        ...


class Box(Protocol):
    """A living sandbox: a policy and a place that takes jobs."""

    enforced: Mapping[str, Enforcement]

    def start(self, job: Job, streams: tuple[int, ...]) -> Visit:
        """Start a job with these descriptors as 0, 1, 2 and, where it has a channel, 3."""
        ...

    def work_on(self, transaction: Transaction) -> None:
        """Jobs work on its folders, in layers that outlive the box. Before the first job."""
        ...

    def changes(self) -> Changes:
        """What differs from the workspace's base; always empty where the job writes the workspace itself."""
        ...

    def commit(self) -> None:
        """Carry the changes over into the base."""
        ...

    def keep(self, folder: str) -> bool:
        """Make a transaction in this new folder of what the job changed; False where there is no layer for that."""
        ...

    def close(self) -> str:
        """End everything in it and leave nothing behind; says what could not be removed, if anything."""
        ...


class StandbyBox(Box, Protocol):
    """A box that can do ahead what does not depend on the job."""

    def stand_by(self, python: PythonJobs) -> Visit:
        """Do it now; the next job starts at once, in a working folder of the box's own."""
        ...

    def stands(self) -> bool:
        """Whether it still stands by."""
        ...

    def let_go(self) -> None:
        """Have it end; ``close`` waits for that."""
        ...


class LivingBox(Box, Protocol):
    """A box that lives between visits: files and background processes stay until it is closed."""

    def live(self, workspace: str | None) -> None:
        """Open it; visits from now on are to this place."""
        ...

    def ended(self) -> bool:
        """Whether it has come to its end by itself: by a limit of all its visits together, or by somebody's hand."""
        ...

    def source(self) -> Source:
        """Where all that is in it can be looked at."""
        ...

    def start_steps(self, steps: list[tuple[object, ...]], streams: tuple[int, ...]) -> Visit:
        """A visit that is not a program: steps of a plan, such as those that put and get files."""
        ...


class Backend(Protocol):
    """One way of isolating."""

    level: IsolationLevel

    def transaction_kind(self) -> str:
        """What kind of transaction its jobs can work on here."""
        ...

    def lacks(self, policy: SandboxPolicy) -> tuple[Lack, ...]:
        """What this host cannot hold of that policy; an empty answer is a promise."""
        ...

    def open(self, policy: SandboxPolicy) -> Box:
        """Open a box under the policy, leaving out what ``lacks`` named."""
        ...
