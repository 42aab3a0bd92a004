"""What backends tell the engine: what a host lacks, and the bare facts of how a job ended."""

from __future__ import annotations

from _collections_abc import Mapping
from types import MappingProxyType

from ringfence.model.record import record


@record
class Lack:
    """One thing that this host cannot hold for a policy, and the command or change that would."""

    capability: str
    missing: str
    fix: str


NO_EGRESS = Lack(capability="network", missing="the egress proxy of a later version", fix="use network none")


@record
class Report:
    """The bare facts of an end, as the supervising side saw them; nothing in it is the job's word."""

    exit_code: int | None = None
    """Absent: it was ended by a signal."""
    signal: int | None = None
    """Absent: it exited by itself."""
    cause: str = ""
    """The capability for whose sake it was killed, ``asked`` by the caller, or nothing."""
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
    survivors: int = 0
    """Processes that could not be killed."""
    recorder: Mapping[str, object] = MappingProxyType({})
    """How many attempts on forbidden things there were, and how sure the recorder is; empty: it did not run."""
    leader_lost: bool = False
    """The supervising process itself was killed; the numbers above are then zero."""
