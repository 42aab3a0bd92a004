"""What leaders tell their callers, with each key and its meaning, declared once.

Imported for its types alone, as ``transport/request.py`` is. A job may have tampered with its leader: these are what an
honest one sends, and ``transport/wire.py`` says what of it is checked when it arrives.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NotRequired, TypedDict

    class EndedFrame(TypedDict):
        """The body of ``wire.ENDED``: the facts of an end, whole numbers in the order of ``wire.REPORT_FIELDS``."""

        wait_status: int
        """As wait(2) has it; -1: unknown."""
        cause: int
        """Why the leader ended the tree, as an index of ``wire.CAUSES``."""
        measured: int
        """What was measured when the cause was found: bytes, tasks, or milliseconds of processor time."""
        wall_ns: int
        """From the start of the job's program to its end."""
        cpu_user_us: int
        """Processor time of the whole tree in its own code."""
        cpu_system_us: int
        """The same in the kernel."""
        peak_memory_bytes: int
        """The most memory that the tree had at a time, as the watchdog or the group counted it."""
        processes: int
        """The most tasks at a time."""
        written_bytes: int
        """What the tree had written to the disk."""
        voluntary_switches: int
        """How often its processes gave the processor up to wait."""
        involuntary_switches: int
        """How often it was taken from them."""
        oom_kills: int
        """How often the kernel's out-of-memory killer struck while it ran."""
        survivors: int
        """Processes that could not be killed."""
        largest_bytes: int
        """The most resident memory of one process, of those that were waited for."""
        written_chars: int
        """What all processes together passed to write and its like."""
        refused_bytes: int
        """The largest mapping that was beyond the memory limit of its process."""
        exit_memory_bytes: int
        """The most private memory that a process had when it failed; this and the next three: 0, none was seen."""
        exit_address_bytes: int
        """The most address space that such a process ever had."""
        exit_descriptors: int
        """The most descriptors that such a process had open; only counted near the limit."""
        exit_slots: int
        """The size of its table of descriptors."""
        operations: int
        """Calls of the read and the write family; -1: nobody has counted them."""

    class NotedFrame(TypedDict):
        """The body of ``wire.NOTED``, as JSON: one attempt, as ``kernel.recorder.Attempt`` has it."""

        aim: str
        """Of the recorder's: hidden, process, refused, outward, noted."""
        time_ns: str
        """Monotonic clock; this and the next are numbers as text, since JSON readers round them."""
        wall_ns: str
        pid: int
        """As the sandbox knows it, as the next three; 0: not known."""
        uid: int
        start_ticks: str
        """A number as text: with pid it names a process for good."""
        comm: str
        """A text of the guest's choice, cut to a bound; so are argv, asked and path."""
        argv: list[str]
        operation: str
        """What was asked of the mechanism that recorded it."""
        syscall: str
        """Empty: not known."""
        writes: bool
        asked: str
        """The path as the program wrote it."""
        path: str
        """Where that led in the sandbox."""
        errno: int
        """What the caller got; -1: not known."""
        visit: NotRequired[int]
        """Of a box: the number of the visit whose process it was."""

    Note = dict[str, object]
    """A ``NotedFrame`` or a ``HealthFrame``, or what the gateway tells of a connection, as it arrived: nothing of it is
    believed, and each reader checks the type of what it takes."""

    class HealthFrame(TypedDict):
        """The body of ``wire.HEALTH``, as JSON: how sure the recorder is; see ``kernel.recorder.Health``."""

        total: int
        kept: int
        summarised: int
        uncategorised: int
        unnamed: int
        lost: int
        late: int
        unwritten: int
        problems: list[str]
        caveat: str
        complete: bool
        forbidden: str
        """The first call that ended a process; empty: none."""
        totals: dict[str, int]
        """Attempts by what they aim at."""
        summary: list[list[object]]
        """Rows of ``kernel.recorder.Summary``."""
