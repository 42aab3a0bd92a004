"""``ringfence.open``: a sandbox as a place. Visits come and go; files and background processes stay until it closes.

A box is a policy, a workspace and whatever has happened in it. It decides nothing about isolation: a visit is led like
any other job, in a place that its backend keeps open.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from ringfence.engine.handle import Handle
from ringfence.engine.keywords import deadline_of, job_of
from ringfence.engine.occupancy import Occupancy, Occupant
from ringfence.engine.run import backend_for, close_whole, refuse
from ringfence.engine.supervision import Listeners, supervise
from ringfence.errors import FileError, SandboxError, UnavailableError, UsageError
from ringfence.model.events import OnEvent, OnOutput
from ringfence.model.job import Job
from ringfence.model.limits import LIMIT_OF, IsolationLevel, OutputOverflow
from ringfence.model.outcome import Changes, Enforcement, Outcome, Status
from ringfence.model.policy import SandboxPolicy
from ringfence.model.record import replace
from ringfence.model.ways.walk import absolute
from ringfence.roles.file_transfer import NO_REGULAR_FILE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from typing import Unpack

    from ringfence.backends.contract import LivingBox, Steps, Visit
    from ringfence.backends.process_images import Confinement, RestoredTree
    from ringfence.checkpoint.transaction import Transaction
    from ringfence.engine.box_network import BoxNetwork
    from ringfence.engine.keywords import Beside
    from ringfence.monitor.source import Source
    from ringfence.transport.request import Step

_NONE: Mapping[str, float] = MappingProxyType({})
MAX_FILE_BYTES = 64 * 2**20
"""The most bytes that ``Box.get`` takes by default."""


def open(
    policy: SandboxPolicy | None = None,
    workspace: str | os.PathLike[str] | None = None,
    *,
    transaction: Transaction | None = None,
) -> Box:
    """A sandbox that stays open for many visits. The wall time applies to each visit, the other limits to all together.

    ``policy``: absent: strict. A policy that names no ``isolation`` means ``process``, here too.
    ``workspace``: a directory that the box shows at its own path and changes in a layer only; absent: a private one.
    ``transaction``: the box works on its directories, in its layers, which stay when the box closes; ``workspace`` is
    then the one of them in which visits begin, absent: the first.

    >>> with open() as box:
    ...     box.put("greeting.txt", b"hello")
    ...     box.run(["cat", "greeting.txt"]).stdout
    b'hello'
    """
    return Box(policy or SandboxPolicy(isolation=IsolationLevel.STRICT), workspace, transaction)


class Box:
    """A sandbox that stays open and takes jobs, several at a time too."""

    def __init__(
        self,
        policy: SandboxPolicy,
        workspace: str | os.PathLike[str] | None = None,
        transaction: Transaction | None = None,
        turn: AbstractContextManager[object] | None = None,
        network_limits: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        """``turn``: a lock held while the transaction itself is changed, for a caller that lets others use it while a
        box opens. ``network_limits``: what the gateway holds for all connections together (``EgressLimits``)."""
        self.policy = policy
        self._owner = os.getpid()
        backend = backend_for(policy.isolation)
        self._partial = bool(refuse(backend, policy))
        self._lock = threading.Lock()
        self._running: list[Handle] = []
        self._occupancy = Occupancy("box")
        self._restored: list[RestoredTree] = []
        self._box: LivingBox = backend.open(policy)
        try:
            if transaction is not None:
                with turn or threading.Lock():
                    self._box.work_on(transaction)
            if network_limits:
                self._box.network_limits |= network_limits
            self._box.live(_folder(workspace) if workspace is not None else None)
        except BaseException:
            close_whole(self._box)
            raise

    @property
    def enforced(self) -> Mapping[str, Enforcement]:
        """By capability: what was asked for, and what enforces it."""
        return self._box.enforced

    @property
    def ended(self) -> bool:
        """It takes no more visits: a limit on all of them together has ended it, or somebody has closed it."""
        return self._occupancy.closing or self._box.ended()

    @property
    def network(self) -> BoxNetwork:
        """Who it may reach, and how to change that; UsageError if its policy has no network list."""
        egress = self._box.egress()
        if egress is None:
            raise UsageError(f"this box has no network list (its network is {self.policy.network_rule})",
                             hint="open it with a policy that lists whom it may reach")  # fmt: skip
        from ringfence.engine.box_network import BoxNetwork

        return BoxNetwork(egress)

    @property
    def watchable(self) -> Source:
        """Where a ``ResourceMonitor`` can look at everything in it, and how to end that."""
        return self._box.source()

    # ---- visits

    def run(
        self,
        job: Job | Sequence[str | os.PathLike[str]],
        *,
        timeout: float | None = None,
        on_event: OnEvent | None = None,
        on_output: OnOutput | None = None,
        **beside: Unpack[Beside],
    ) -> Outcome:
        """One visit, to its end. What it leaves running in the background stays.

        ``cwd``, ``input`` and ``env`` as with ``ringfence.run``; ``timeout`` can only shorten the policy's time.
        """
        job = self._checked(job_of(job, **beside))
        deadline_s = deadline_of(self.policy, timeout, "box")
        with self._enter() as occupant:
            self._put_files(job, occupant)
            job = replace(job, files={})
            listeners = Listeners(on_event=on_event, on_output=on_output, attach=occupant.attach)
            return self._supervise(job, listeners, deadline_s)

    @property
    def counts_operations(self) -> bool:
        """Whether ``start`` can limit the ``operations`` of a visit."""
        return "operations" in self._box.limits_of_a_visit

    def start(
        self,
        job: Job | Sequence[str | os.PathLike[str]],
        *,
        timeout: float | None = None,
        operations: int | None = None,
        on_event: OnEvent | None = None,
        on_output: OnOutput | None = None,
        **beside: Unpack[Beside],
    ) -> Handle:
        """Start a visit in the background. ``input`` is its whole input; without it, it reads what its handle writes.
        ``operations``: how many calls of the read and the write family it may make; one that makes more is ended, and
        is no success."""
        if operations is not None and not self.counts_operations:
            raise UnavailableError(f"isolation {self.policy.isolation} can't count the calls of a visit here",
                                   missing=("operations",), hint="omit operations")  # fmt: skip
        limits = {} if operations is None else {"operations": operations}
        job = self._checked(job_of(job, **beside))
        deadline_s = deadline_of(self.policy, timeout, "box")
        occupant = self._enter()
        try:
            self._put_files(job, occupant)
        except BaseException:
            occupant.leave()
            raise

        def lead(job: Job, listeners: Listeners) -> Outcome:
            return self._supervise(job, listeners, deadline_s, limits)

        handle = Handle(lead, replace(job, files={}), self.policy.output_bytes, on_output, occupant, on_event)
        with self._lock:
            ended = {each for each in self._running if each.done}
            for each in ended:
                each.close_input()
            self._running = [each for each in self._running if each not in ended] + [handle]
        if self._occupancy.closing:
            handle.join()  # a thread that closes the box may have looked for its input already
        return handle

    def _supervise(
        self, job: Job, listeners: Listeners, deadline_s: float | None, limits: Mapping[str, float] = _NONE
    ) -> Outcome:
        box = _Limited(self._box, limits) if limits else self._box
        return supervise(box, job, self.policy, partial=self._partial, listeners=listeners, deadline_s=deadline_s)

    def _enter(self, *, internal: bool = False) -> Occupant:
        if self._owner != os.getpid():
            raise UsageError("a box stays with the process that opened it", hint="open a new one after fork")
        return self._occupancy.enter(internal=internal)

    def _checked(self, job: Job) -> Job:
        if job.python:
            raise UsageError("Python work without an interpreter needs a pool", hint="run [sys.executable, FILE]")
        if job.files and job.cwd:
            raise UsageError("a job with another directory than its box can't have files",
                             hint="put them with Box.put, by their whole names")  # fmt: skip
        return job

    # ---- files

    def put(self, name: str | os.PathLike[str], content: bytes) -> None:
        """Write a file of the box; a relative name is one in its working directory."""
        if not isinstance(content, bytes | bytearray | memoryview):  # a number would be taken for a descriptor
            raise UsageError(f"{name!r}: the content of a file must be bytes, not {type(content).__name__}")
        job = replace(Job.of(("put", name)), stdin=bytes(content) or None)
        with self._enter() as occupant:
            self._put(job, occupant)

    def _put(self, job: Job, occupant: Occupant) -> None:
        name = _named(job)
        outcome = self._transfer(("put file", name), job, self.policy, occupant)
        if not outcome.ok:
            raise _failed(f"{name!r} could not be written", outcome)

    def get(self, name: str | os.PathLike[str], max_bytes: int = MAX_FILE_BYTES) -> bytes:
        """Return the content of a regular file of the box; a larger one than ``max_bytes`` is a FileError."""
        job = Job.of(("get", name))
        name = _named(job)
        if type(max_bytes) is not int or not 0 < max_bytes <= LIMIT_OF["output"].largest:
            raise UsageError(f"max_bytes: {max_bytes!r} must be an integer between 1 and {LIMIT_OF['output'].largest}")
        policy = replace(self.policy, output_bytes=max_bytes, on_output_limit=OutputOverflow.TRUNCATE)
        with self._enter() as occupant:
            outcome = self._transfer(("get file", name, max_bytes + 1), job, policy, occupant)
        if not outcome.ok:
            raise _failed(f"{name!r} could not be read", outcome)
        if outcome.stdout_dropped:
            raise FileError(f"{name!r} is larger than {max_bytes} bytes", errno=errno.EFBIG,
                            hint="allow more with max_bytes")  # fmt: skip
        return outcome.stdout

    def _put_files(self, job: Job, occupant: Occupant) -> None:
        for name, content in job.files.items():
            self._put(Job(argv=("put", name), stdin=content or None), occupant)

    def _transfer(self, step: Step, job: Job, policy: SandboxPolicy, occupant: Occupant) -> Outcome:
        steps, listeners = _Steps(self._box, [step]), Listeners(attach=occupant.attach)
        return supervise(steps, job, policy, partial=self._partial, listeners=listeners)

    # ---- processes that are kept

    def confinement(self) -> Confinement:
        """What confines its processes; UnavailableError if running processes can't be kept."""
        with self._enter(internal=True):
            held = self._box.confinement()
        if held is None:
            problem = f"isolation {self.policy.isolation} here has no namespaces to restore them in"
            raise UnavailableError(f"running processes can't be checkpointed: {problem}", missing=("strict isolation",),
                                   hint="use isolation strict as root, or leave processes out")  # fmt: skip
        return held

    @property
    def restored(self) -> tuple[RestoredTree, ...]:
        return tuple(self._restored)

    def adopt(self, tree: RestoredTree) -> None:
        """Processes that were restored here; they end with the box."""
        self._restored.append(tree)
        self._box.hear_restored(tree)

    # ---- changes and the end

    def changes(self) -> Changes:
        """What differs from the workspace that it was opened on."""
        with self._enter(internal=True):
            return self._box.changes()

    def commit(self) -> None:
        """Commit the changes into the workspace."""
        with self._enter(internal=True):
            self._box.commit()

    def close(self) -> None:
        """End everything in it, including visits of other threads, and leave nothing behind.

        Called from within one of its visits, by an output callback, it takes effect when that visit has ended.
        """
        if self._owner != os.getpid():
            return
        self._box.begin_closing()
        left = self._occupancy.close(self._end_restored, self._remove)
        if left:
            raise SandboxError(left)

    def _end_restored(self) -> None:
        for tree in self._restored:
            tree.end()

    def _remove(self) -> str:
        for handle in self._running:
            handle.join(0)
        return close_whole(self._box)

    def __enter__(self) -> Box:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _folder(workspace: object) -> str:
    if not isinstance(workspace, str | bytes | os.PathLike):
        raise UsageError(f"{workspace!r} is not a directory", hint="name the directory that the box works on")
    return absolute(os.fsdecode(workspace))


def _named(job: Job) -> str:
    """The file that a job puts or gets, as text."""
    name = job.argv[1]
    if not name:
        raise UsageError("a file needs a name")
    return name


def _failed(what: str, outcome: Outcome) -> FileError:
    """In the words of our own transfer program; if a limit ended it, in the words of that."""
    said = outcome.stderr.decode("utf-8", "replace") if outcome.status is Status.FAILED else ""
    return FileError(f"{what}: {said or outcome.reason}", errno=outcome.rc if said else 0,
                     hint=_HINTS.get(outcome.rc, "") if said else "")  # fmt: skip


_HINTS = {
    errno.ENOENT: "a relative name is one in the working directory of the box; run(['ls', '-a']) lists it",
    NO_REGULAR_FILE: "only regular files come out; have a job in the box pack it, e.g. with tar, and get that",
    errno.EISDIR: "name a file in that directory",
    errno.EACCES: "a job in the box may have taken the permissions off it, or off a directory on the way",
}


class _Limited:
    """Starts visits with limits beside those of the policy."""

    def __init__(self, box: LivingBox, limits: Mapping[str, float]) -> None:
        self._box = box
        self._limits = limits
        self.enforced, self.traits = box.enforced, box.traits

    def start(self, job: Job, streams: tuple[int, ...]) -> Visit:
        return self._box.start_limited(job, streams, self._limits)


class _Steps:
    """Starts one visit that is not a program."""

    def __init__(self, box: LivingBox, steps: Steps) -> None:
        self._box = box
        self._steps = steps
        self.enforced, self.traits = box.enforced, box.traits

    def start(self, job: Job, streams: tuple[int, ...]) -> Visit:
        return self._box.start_steps(self._steps, streams)
