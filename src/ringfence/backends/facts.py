"""What backends tell the engine: what others must know of a level, what a plain box lacks, the bare facts of an end."""

from __future__ import annotations

from _collections_abc import Mapping
from types import MappingProxyType

from ringfence.errors import UnavailableError
from ringfence.model.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ringfence.backends.contract import Egress, Visit
    from ringfence.backends.process_images import RestoredTree
    from ringfence.model.job import Job
    from ringfence.transport.request import Preload


@record
class Traits:
    """What others have to know of an isolation level: doors and the engine ask for these, never for a level's name."""

    isolates: bool = True
    """Its promises can be tested; False: for comparisons only."""
    files_apart: bool = False
    """A job has only those of the host's files that are shown to it."""
    network_apart: bool = False
    """Without the host's network a job has a loopback of its own."""
    by_engine: bool = False
    """A container engine makes its sandboxes."""
    has_layer: bool = False
    """What a job changes in its workspace is kept aside, to be carried over or dropped."""
    python: str = ""
    """The interpreter that its jobs find inside; empty: the caller's own."""
    most_standing: int = 0
    """How many sandboxes one pool has at one time; 0: as many as it wants."""
    untold: tuple[str, ...] = ()
    """Limits that it holds, but can't tell from a plain failure when one of them ends a job."""


class PlainBox:
    """What a box answers without a plan to show, a gateway, a recorder and processes that could be restored."""

    limits_of_a_visit: frozenset[str] = frozenset()

    def planned(self, job: Job) -> None:
        return

    def confinement(self) -> None:
        return

    def hear_restored(self, tree: RestoredTree) -> None:
        return

    def begin_closing(self) -> None:
        return

    def egress(self) -> Egress | None:
        return None

    def start_limited(self, job: Job, streams: tuple[int, ...], limits: Mapping[str, float]) -> Visit:
        raise UnavailableError("this level can't limit a single visit", missing=tuple(limits),
                               hint=f"omit {', '.join(limits)}")  # fmt: skip


@record
class PythonJobs:
    """What is loaded ahead for Python jobs."""

    preload: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()

    def as_data(self, environment: dict[str, str]) -> Preload:
        """For a zygote; ``environment``: of most jobs."""
        return {"preload": self.preload, "packages": self.packages, "environment": environment}


@record
class Report:
    """The bare facts of an end, as the supervising side saw them; nothing in it is the job's word."""

    exit_code: int | None = None
    """Absent: it was ended by a signal."""
    signal: int | None = None
    """Absent: it exited by itself."""
    cause: str = ""
    """The capability whose limit it was killed for; ``asked``: by the caller; or nothing."""
    measured: int = 0
    """What was measured when the cause was found: bytes, tasks, or milliseconds of processor time."""
    wall_ns: int = 0
    cpu_user_us: int = 0
    cpu_system_us: int = 0
    peak_memory_bytes: int = 0
    processes: int = 0
    written_bytes: int = 0
    voluntary_switches: int = 0
    involuntary_switches: int = 0
    oom_kills: int = 0
    """How often the kernel's out-of-memory killer struck while it ran; 0 of a job that exited by itself."""
    cgroup_oom_kills: int = 0
    """How often the job's own cgroup ran out of memory and had a process killed."""
    box_oom_kills: int = 0
    """How often a living box ran out of memory while this visit was in it; whose process was killed is not known."""
    cgroup_pids_hits: int = 0
    """How often the job's own cgroup refused a new task."""
    largest_bytes: int = 0
    """The most resident memory that one process had, of those that were waited for."""
    written_chars: int = 0
    """What all processes together passed to write and its like."""
    refused_bytes: int = 0
    """The largest mapping that was seen to be beyond the memory limit of its process."""
    exit_memory_bytes: int = 0
    """The most private memory that a process had when it failed; this and the next three: 0, none was seen."""
    exit_address_bytes: int = 0
    """The most address space that such a process ever had."""
    exit_descriptors: int = 0
    """The most descriptors that such a process had open; only counted near the limit."""
    exit_slots: int = 0
    """The size of its table of descriptors, which never shrinks: it had more than half as many."""
    operations: int = -1
    """Calls of the read and the write family by the whole tree; -1: nobody has counted them."""
    told_limits: tuple[str, ...] = ()
    """Capabilities whose limit a job object of Windows told of, the first one first."""
    native: str = ""
    """The end in the platform's own terms, if these differ: an NTSTATUS, messages of a job object."""
    network_bytes: int = 0
    """Sent and received through the gateway."""
    network_problem: str = ""
    """Why the gateway of a job did not serve it to the end; empty: it did, or there was no gateway."""
    survivors: int = 0
    """Processes that could not be killed."""
    recorder: Mapping[str, object] = MappingProxyType({})
    """How many attempts on forbidden things there were, and how sure the recorder is; empty: it did not run."""
    leader_lost: bool = False
    """The supervising process itself was killed; the numbers above are then zero."""
