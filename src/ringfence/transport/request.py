"""Every message between processes of ours, with each key and its meaning, declared once.

At run time they are plain dictionaries, lists and tuples that marshal can write: this module has no code, and is
imported for its types alone. What comes back from a process that the job may have tampered with is in
``transport/report.py``, the bytes of all of it in ``transport/wire.py``, descriptors in ``transport/passing.py``. What
a warden and its makers tell each other has a fixed layout, which C reads too: ``roles/warden/order.py``.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal, NotRequired, TypedDict, final

    StepName = Literal[
        # Of any POSIX system (steps/executor).
        "join groups", "setsid", "terminal", "die with leader", "chdir", "umask", "reset signals", "no new privileges",
        "observe", "rlimit", "exec",
        # Before there is a sandbox (steps/zygote_steps).
        "enter zygote", "build place", "lay out", "configuration", "limit files", "clone sources", "give directories",
        "clone layers", "make devices",
        # Of pid 1 and of the job in namespaces (steps/linux_steps, steps/pid1).
        "await leader", "open fuse", "take identity", "own group namespace", "new root", "attach", "attach inside",
        "private tmpfs", "file system", "renew layer", "overlay", "show", "cover mounts", "bind", "kernel settings",
        "mask", "read-only",
        "show limits", "whiteouts", "link", "tripwires", "image root", "seal root", "loopback", "listen", "trust",
        "host name",
        "drop capabilities", "landlock", "show memory", "count operations", "seccomp", "run as init", "calls",
        # On the host's own root (steps/wall_steps, kernel/mount/binding).
        "bind in place", "landlock files", "drop privileges", "seccomp filter",
        # What a plan can end as, other than by an exec (roles/endings).
        "await job", "serve visits", "load transfers", "put file", "get file",
    ]  # fmt: skip
    """All steps that exist; a test checks that each has one row in a table and that something makes it."""

    Step = tuple[StepName, *tuple[object, ...]]
    """A step and its arguments, as the function in its row takes them."""

    Wall = tuple[bytes, list[tuple[str | int, int, int]], list[bytes]]
    """Arguments of the step «landlock», see ``kernel.landlock.put_up``."""
    WallStep = tuple[Literal["landlock"], bytes, list[tuple[str | int, int, int]], list[bytes]]

    class HeardRequest(TypedDict):
        """What a leader must know of its sandbox's filter, to answer the calls that it reports."""

        ids: tuple[int, int]
        """User and group of the guest, as it sees them."""
        profile: str
        """The name of the system-call profile."""
        watched: list[str]
        """Hidden paths, as the policy writes them and as the kernel meets them; empty: none."""
        private: NotRequired[list[str]]
        """Those of them that lie where every job may write: what is there is its own."""
        wired: bool
        """Whether hidden paths have tripwires."""
        share: float
        """The share of one processor that the work for this guest may take; 0: no limit."""
        witness: dict[str, int]
        """Limit of each process by name, 0: none; empty: nothing looks into why a job fails."""

    class GroupPaths(TypedDict):
        """Where the control group of a sandbox is, for its leader."""

        group: str
        """The v2 directory that the first process is born in; empty: none."""
        enter: list[str]
        """Files that a pid is written to, to enter the group."""
        cgroups: list[str]
        """Directories that the last process left removes at the end."""

    @final
    class VisitRequest(TypedDict):
        """What a leader is to do: the first message to it, from its caller."""

        plan: list[Step]
        """What the job's process, or pid 1 of a sandbox, does between fork and exec."""
        calls: NotRequired[list[Step]]
        """The plan with tables of calls in place of steps; empty: there is none."""
        limits: dict[str, float]
        """What the leader holds for the whole tree, by capability; ``inf``: nothing."""
        scratch: str
        """The private directory, which the leader removes when its caller is gone; empty: none, or another's."""
        groups: NotRequired[GroupPaths]
        heard: NotRequired[HeardRequest]
        """For a sandbox with namespaces, and for a visit to one."""
        witness: NotRequired[dict[str, int]]
        """As in ``HeardRequest``, for a job without namespaces."""
        written: NotRequired[list[str]]
        """Directories on the file systems that the job writes to."""
        layers: NotRequired[list[str]]
        """Directories that only the job writes to."""
        standby: NotRequired[bool]
        """Its first process waits for an order; or, of a box, for visits."""
        visited: NotRequired[bool]
        """It is a living box: its pid 1 takes visits."""
        in_box: NotRequired[int]
        """The number of this visit, unique in its box. The pid 1 of a living box forks the job; the socket to it is the
        first of the streams."""
        contained: NotRequired[bool]
        """The first process is pid 1 of a sandbox with namespaces."""
        prepare: NotRequired[list[Step]]
        """What the leader does before it forks pid 1: what only root can do."""
        namespaces: NotRequired[list[str]]
        """The namespaces that pid 1 is born into, by name."""
        network: NotRequired[list[tuple[str, str]]]
        """The network namespace may be one that another sandbox had before (see ``sandbox.networks``): (name below
        /proc/sys, value) of what a new one has; absent: pid 1 is born into one of its own."""
        egress: NotRequired[bool]
        """The last of the leader's descriptors leads to the gateway: there it passes on the sockets that pid 1 made."""
        certificates: NotRequired[bytes]
        """The authorities that this one sandbox trusts, as PEM, for the step «trust»."""

    @final
    class StandbyRequest(TypedDict):
        """The request of one of many sandboxes that stand by; the rest is a draft, which its zygote has already."""

        draft: int
        """The number of the draft."""
        groups: GroupPaths
        standby: Literal[True]
        egress: NotRequired[bool]
        certificates: NotRequired[bytes]
        """As in ``VisitRequest``, as is what stands before it."""

    DraftFile = tuple[int, VisitRequest]
    """What a zygote is given in a file: a number that no other draft of its caller has, and the draft."""

    class ClearRequest(TypedDict):
        """What the scratch cleaner of a box at the process level removes when its caller was killed."""

        scratch: str
        cgroups: list[str]

    class Preload(TypedDict):
        """What a zygote loads ahead for Python jobs."""

        preload: tuple[str, ...]
        """Modules that are imported."""
        packages: tuple[str, ...]
        """Directories that they are imported from, after the interpreter's own."""
        environment: dict[str, str]
        """The environment of most jobs; its effects on an interpreter are applied once."""

    class ZygoteRequest(TypedDict):
        """What a zygote builds, and who owns its sandboxes."""

        template: list[Step]
        """What all of its sandboxes have in common."""
        owner: list[int]
        """User and group that own files on disk, if the caller is root; empty: nobody else."""
        python: Preload | None
        """None: it forks no Python jobs."""
        native: NotRequired[bool]
        """Whether tables of calls are executed by the native part; absent: it makes no sandboxes with namespaces."""
        reuses_networks: NotRequired[bool]
        """It has network namespaces for its sandboxes, each for one at a time."""

        warden: NotRequired[bool]
        """Whether it leads the sandboxes itself, all of them by drafts."""

    class JobOrder(TypedDict):
        """The job of a sandbox that stands by."""

        argv: list[str]
        environment: dict[str, str]
        files: dict[str, bytes]
        """Name in the working directory: content."""
        folder: str
        """Where to go first; empty: it is there."""
        terminal: bool
        """Whether standard input becomes the controlling terminal."""
        python: bytes | None
        """A packed ``PythonRequest``, which is run in place of argv."""

    class PythonRequest(TypedDict):
        """Python work, as it travels into the sandbox (python_jobs/job)."""

        kind: Literal["source", "call"]
        path: tuple[str, ...]
        """Directories to import from before the interpreter's own."""
        packages: tuple[str, ...]
        """The same after them."""
        modules: tuple[str, ...] | None
        """Top-level modules that may be imported; None: all."""
        max_value_bytes: int
        """The size of the value that comes back, encoded."""
        source: NotRequired[str | bytes]
        """For a source, like the next three: its text."""
        name: NotRequired[str]
        """What it is called in tracebacks."""
        arguments: NotRequired[list[str]]
        """sys.argv."""
        value: NotRequired[bool]
        """Whether the value of its last expression is sent back."""
        function: NotRequired[bytes]
        """Of a call: the packed function."""
        packed: NotRequired[bytes]
        """Of a call: its packed arguments."""

    class DumpRequest(TypedDict):
        """Which processes of a living box are written to images (kernel/criu/dump)."""

        first: int
        """pid 1 of the box, as the host knows it."""
        ids: tuple[int, int]
        """The guest's ids, as it sees them."""
        criu: str
        """The program."""
        root: int
        """The first process of the tree, as the box knows it."""
        folder: str
        """Where the images go."""
        covers: str
        """A directory for files that are shown to CRIU in place of /proc's."""
        pids: list[int]
        """All processes of the tree, as the host knows them."""

    class RestoreRequest(TypedDict):
        """Which images become processes in a new living box, and what holds them (kernel/criu/restore)."""

        first: int
        ids: tuple[int, int]
        criu: str
        folder: str
        """As in ``DumpRequest``, as are those before it."""
        identity: int
        """The guest's id on the host."""
        enter: tuple[str, ...]
        """As in ``GroupPaths``."""
        wall: Wall | None
        """None: this kernel has no Landlock."""
        filter: bytes
        """The compiled system-call filter."""
        profile: str
        watched: list[str]
        wired: bool
        """As in ``HeardRequest``, as are the two before it."""
        last_pid: int
        """Processes of ours in the box get numbers from here on."""
        expected: dict[int, str]
        """Every process that must come back, by its number in the box, with the limits that it had."""
        resume: list[int]
        """The processes that go on; the others had been stopped before."""
        pipes: list[tuple[int, int]]
        """(descriptor, number of the pipe in the images) for each pipe that leads out of the box."""
        wall_time_s: float
        """How long they may go on."""

    class KeptTree(TypedDict):
        """What a checkpoint keeps of one process tree beside its images; a caller may have stored it as JSON."""

        root: int
        resume: list[int]
        limits: dict[str, str]
        """By the number of the process in the box."""
        pipes: list[tuple[int, str, str]]
        """(number, which end is the guest's: r or w, where it leads to) for each pipe that leads out of the box."""

    # ---- between a caller and its gateway (egress/client, egress/gateway): lines of JSON

    class EgressLimits(TypedDict):
        """What one sandbox may have of the network in all; 0: no limit."""

        connections: int
        """At once; 0 is none."""
        connections_per_second: float
        bytes: int
        """In both directions together."""
        bytes_out: int
        bytes_in: int
        idle_s: float
        """How long a connection may be idle."""
        total_s: float
        """How long a connection may take."""

    class EgressOrder(TypedDict):
        """From the caller: the rules of a sandbox, at first and whenever they change; or that it is closed."""

        op: Literal["rules", "count", "visit ends", "close"]
        """The third is answered as ``count`` is, once all refusals so far are told."""
        rules: NotRequired[list[str | dict[str, object]]]
        """Each as ``NetworkRule.plain`` writes it."""
        limits: NotRequired[dict[str, float]]
        """``EgressLimits``, those that differ from the defaults."""
        secrets: NotRequired[dict[str, str]]
        """Values of the variables that rules inject, by name."""
        authorities: NotRequired[str]
        """PEM of authorities that servers are verified by, beside the system's."""

    class EgressEvent(TypedDict):
        """One decision, told when the connection has ended."""

        decision: str
        """allowed; refused; or ended: before a decision, or by a limit, an error or the end of the sandbox."""
        protocol: str
        """tls, http, tcp, socks5, connect or dns."""
        name: str
        address: str
        port: int
        rule: str
        reason: str
        bytes_out: int
        bytes_in: int
        duration_ms: int
        process: str
        time_s: float
        """Of the decision."""

    class EgressTotals(TypedDict):
        """What all connections of a sandbox came to."""

        connections: int
        refused: int
        bytes_out: int
        bytes_in: int
        uncounted: int
        """Events that were not told one by one."""

    class EgressCounts(TypedDict):
        """What a sandbox has now, and what all its connections have come to so far."""

        connections: int
        """Open connections."""
        bytes_out: int
        bytes_in: int
        uncounted: int
        """Events that were not told one by one."""

    class EgressAnswer(TypedDict, total=False):
        """From the gateway: one of these. It parses what hostile programs send, so it is checked (egress/answers)."""

        event: EgressEvent
        ca: str
        """The authority of this sandbox as PEM, before ``ready``."""
        ready: bool
        """The rules hold."""
        failed: str
        """They do not, and why."""
        counts: EgressCounts
        """The answer to «count»."""
        totals: EgressTotals
