"""What a backend is: two questions to ask it, and the box and visits that it opens.

A backend isolates; it does not decide what an end means (``engine.verdict``), read output
(``engine.streams``) or know doors. Adding an isolation level means adding one file that keeps this
contract and passes ``backends.conformance``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from ringfence.backends.facts import PythonJobs, Report, Traits
from ringfence.model.job import Job
from ringfence.model.lack import Lack
from ringfence.model.limits import IsolationLevel
from ringfence.model.outcome import Changes, Enforcement
from ringfence.model.policy import SandboxPolicy
from ringfence.monitor.source import Source

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeAlias

    from ringfence.backends.process_images import Confinement, RestoredTree
    from ringfence.backends.scratch import Scratch
    from ringfence.checkpoint.transaction import Transaction
    from ringfence.model.network_rule import NetworkRule
    from ringfence.sandbox.root import RootSpec
    from ringfence.transport.report import Note
    from ringfence.transport.request import Step, VisitRequest

Steps: TypeAlias = "list[Step]"


class Walls(Protocol):
    """What confines the jobs of a box on the host's own root, where they are plain child processes."""

    shares: tuple[Step, ...]
    """What a job may have of what the kernel counts for its user as a whole."""
    before_transfer: tuple[Step, ...]
    """What must be loaded before the walls are up."""
    environment: Mapping[str, str]
    """What keeps programs away from files that the walls close."""

    def work_on(self, transaction: Transaction) -> dict[str, Enforcement]:
        """Take the transaction's directories in; what the table says of them."""
        ...

    def admit(self, job: Job) -> None:
        """UnavailableError where the walls would keep the job from its own program."""
        ...

    def refuse_standby(self) -> None:
        """UnavailableError where nothing can be done before the job is known."""
        ...

    def steps(self, job: Job, folder: str, scratch: Scratch, limits: Steps) -> Steps:
        """How the process comes to its directory, behind the walls and under its limits."""
        ...

    def through(self, last: Step, folder: str, scratch: Scratch) -> Step:
        """The last step if a host program puts up the walls: that program is started in place of the job's."""
        ...

    def copies(self) -> list[str]:
        """The working copies that the job writes."""
        ...


class Visit(Protocol):
    """One running job."""

    begun: bool
    """Its clock runs. Before, nothing of the job has happened."""
    entered: bool
    """False: the living box that it was for had come to its end, and nothing of the job has begun."""

    def may_begin(self) -> bool:
        """Before the job has begun: whether it is right to wait, since the processes that have to act are at work."""
        ...

    def is_stopped(self) -> bool:
        """Whether a process that holds its limits was stopped by somebody."""
        ...

    def source(self) -> Source:
        """Where its processes can be looked at; of a visit to a living box, all that are in there."""
        ...

    def filenos(self) -> tuple[int, ...]:
        """Readable when ``receive`` has something to say; empty once the visit is closed."""
        ...

    def receive(self) -> Report | None:
        """The end, if it has come; SetupError if the job never started. Does not block."""
        ...

    @property
    def operations(self) -> int:
        """Calls of the read and the write family, once it has ended; -1: nobody has counted them."""
        ...

    def take_notes(self) -> list[Note]:
        """Attempts on forbidden things that were recorded since the last time; what they say is untrusted."""
        ...

    def signal(self, number: int) -> None:
        """Signal the job; SIGKILL ends its whole tree."""
        ...

    def abandon(self) -> None:
        """Kill what is left and give up waiting; the last resort."""
        ...

    def close(self) -> None:
        """Free what the visit holds, ending it if it runs."""
        ...


class Startable(Protocol):
    """What can start one job: all that supervision needs of a box."""

    enforced: Mapping[str, Enforcement]
    traits: Traits

    def start(self, job: Job, streams: tuple[int, ...]) -> Visit:
        """Start a job with these descriptors as 0, 1, 2 and, where it has a channel, 3."""
        ...


class JobBox(Startable, Protocol):
    """A sandbox as a run has it: a policy and a place for one job."""

    def work_on(self, transaction: Transaction) -> None:
        """Jobs work on its directories, in layers that outlive the box. Before the first job."""
        ...

    def changes(self) -> Changes:
        """What differs from the workspace's base; always empty where the job writes the workspace itself."""
        ...

    def commit(self) -> None:
        """Commit the changes into the base."""
        ...

    def keep(self, folder: str) -> bool:
        """Make a transaction in this new directory of what the job changed; False where there is no layer for that."""
        ...

    def planned(self, job: Job) -> tuple[RootSpec, VisitRequest] | None:
        """What a job would be started with, without starting anything; None: no plan can be shown here."""
        ...

    def close(self) -> str:
        """End everything in it and leave nothing behind; says what could not be removed, if anything."""
        ...


class StandbyBox(JobBox, Protocol):
    """A box that can do ahead what does not depend on the job."""

    def prewarm(self, python: PythonJobs) -> object:
        """Do it now; the next job starts at once, in a working directory of the box's own. UnavailableError where
        nothing can be done ahead."""
        ...

    def is_ready(self) -> bool:
        """Whether it still stands by."""
        ...

    def let_go(self) -> None:
        """Have it end; ``close`` waits for that."""
        ...


class Egress(Protocol):
    """What ties a living box with a network list to the gateway."""

    rules: tuple[NetworkRule, ...]

    def change(self, rules: tuple[NetworkRule, ...], told: Mapping[str, object]) -> None:
        """Other rules from now on; ``told``: the event that says so."""
        ...


class LivingBox(JobBox, Protocol):
    """A box that lives between visits: files and background processes stay until it is closed."""

    network_limits: dict[str, float]
    """What the gateway holds for all connections together; set before it lives."""
    limits_of_a_visit: frozenset[str]
    """What ``start_limited`` can hold one visit to."""

    def live(self, workspace: str | None) -> None:
        """Open it; visits from now on are to this place."""
        ...

    def ended(self) -> bool:
        """Whether it has come to its end by itself: by a limit of all its visits together, or by somebody's hand."""
        ...

    def source(self) -> Source:
        """Where all that is in it can be looked at."""
        ...

    def confinement(self) -> Confinement | None:
        """What confines its processes, for restoring processes in it; None: no process can be restored here."""
        ...

    def begin_closing(self) -> None:
        """Its visits are ended next, and perhaps nobody looks at their results."""
        ...

    def hear_restored(self, tree: RestoredTree) -> None:
        """Tell what restored processes try with results and before a commit. Only for a box with a ``confinement``."""
        ...

    def egress(self) -> Egress | None:
        """None: it has no network list."""
        ...

    def start_limited(self, job: Job, streams: tuple[int, ...], limits: Mapping[str, float]) -> Visit:
        """Like ``start``, but this one visit is held to these limits beside the policy's."""
        ...

    def start_steps(self, steps: Steps, streams: tuple[int, ...]) -> Visit:
        """A visit that is not a program: steps of a plan, such as those that put and get files."""
        ...


class BackendBox(LivingBox, StandbyBox, Protocol):
    """What a backend opens: for one job; for many, once it lives; or for one that it stands by for."""


class Backend(Protocol):
    """One way of isolating."""

    level: IsolationLevel
    traits: Traits

    def transaction_kind(self) -> str:
        """What kind of transaction its jobs can work on here."""
        ...

    def lacks(self, policy: SandboxPolicy) -> tuple[Lack, ...]:
        """What this host cannot hold of that policy; an empty answer is a promise."""
        ...

    def open(self, policy: SandboxPolicy) -> BackendBox:
        """Open a box under the policy, leaving out what ``lacks`` named."""
        ...
