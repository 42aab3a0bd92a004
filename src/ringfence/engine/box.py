"""``ringfence.open``: a sandbox as a place. Visits come and go; files and background processes stay until it closes.

A box is a policy, a workspace and whatever has happened in it. It decides nothing about isolation: a visit is led like
any other job, in a place that its backend keeps open.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence

from ringfence.backends.dialogue import Dialogue
from ringfence.engine.presence import Presence, Stay, comes
from ringfence.engine.run import backend_for, close_whole, refuse
from ringfence.engine.supervision import Listeners, supervise
from ringfence.errors import SandboxError, UnavailableError, UsageError
from ringfence.model.events import OnEvent, OnOutput
from ringfence.model.job import Job
from ringfence.model.limits import LIMIT_OF, IsolationLevel, OutputOverflow
from ringfence.model.outcome import Changes, Enforcement, Outcome, Status
from ringfence.model.policy import SandboxPolicy
from ringfence.model.record import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ringfence.backends.contract import LivingBox, Visit
    from ringfence.backends.kept_processes import Held, Revived
    from ringfence.checkpoint.transaction import Transaction
    from ringfence.monitor.source import Source

_SIGNALS = range(1, 65)
MAX_FILE_BYTES = 64 * 2**20
"""The most that ``Box.get`` takes unless it is told otherwise."""


def open(
    policy: SandboxPolicy | None = None,
    workspace: str | os.PathLike[str] | None = None,
    *,
    transaction: Transaction | None = None,
) -> Box:
    """A living sandbox; its policy's limits hold for all visits together, its wall time for each.

    ``workspace``: a folder that the box shows at its own path and changes in a layer only; absent: a private one.
    ``transaction``: the box works on its folders, in its layers, which stay when the box closes; ``workspace`` is then
    the one of them in which visits begin, absent: the first.

    >>> with open() as box:
    ...     box.put("greeting.txt", b"hello")
    ...     box.run(["cat", "greeting.txt"]).stdout
    b'hello'
    """
    return Box(policy or SandboxPolicy(isolation=IsolationLevel.STRICT), workspace, transaction)


class Box:
    """A place that takes jobs."""

    def __init__(
        self,
        policy: SandboxPolicy,
        workspace: str | os.PathLike[str] | None = None,
        transaction: Transaction | None = None,
    ) -> None:
        self.policy = policy
        self._owner = os.getpid()
        backend = backend_for(policy.isolation)
        self._partial = bool(refuse(backend, policy))
        self._lock = threading.Lock()
        self._running: list[Handle] = []
        self._presence = Presence("box")
        self._revived: list[Revived] = []
        self._box: LivingBox = backend.open(policy)  # type: ignore[assignment]
        try:
            if transaction is not None:
                self._box.work_on(transaction)
            self._box.live(_folder(workspace) if workspace is not None else None)
        except BaseException:
            close_whole(self._box)
            raise

    @property
    def enforced(self) -> Mapping[str, Enforcement]:
        return self._box.enforced

    @property
    def ended(self) -> bool:
        """It takes no visits any more: a limit of all of them together has ended it, or somebody's hand."""
        return self._presence.closing or self._box.ended()

    @property
    def watchable(self) -> Source:
        """Where a ``ResourceMonitor`` can look at everything in it, and how that is ended."""
        return self._box.source()

    # ---- visits

    def run(
        self,
        job: Job | Sequence[str | os.PathLike[str]],
        *,
        on_event: OnEvent | None = None,
        on_output: OnOutput | None = None,
    ) -> Outcome:
        """One visit, to its end. What it leaves running in the background stays."""
        job = self._checked(Job.of(job))
        with self._enter() as stay:
            self._put_files(job, stay)
            job = replace(job, files={})
            listeners = Listeners(on_event=on_event, on_output=on_output, attach=stay.attach)
            return supervise(self._box, job, self.policy, partial=self._partial, listeners=listeners)

    def start(self, job: Job | Sequence[str | os.PathLike[str]], *, on_output: OnOutput | None = None) -> Handle:
        """A visit in the background."""
        job = self._checked(Job.of(job))
        stay = self._enter()
        try:
            self._put_files(job, stay)
        except BaseException:
            stay.leave()
            raise
        handle = Handle(self._box, replace(job, files={}), self.policy, self._partial, on_output, stay)
        with self._lock:
            ended = {each for each in self._running if each.done}
            for each in ended:
                each.close_input()
            self._running = [each for each in self._running if each not in ended] + [handle]
        if self._presence.closing:
            handle.join()  # who closes may have looked for its input already
        return handle

    def _enter(self, *, our_work: bool = False) -> Stay:
        if self._owner != os.getpid():
            raise UsageError("a box stays with the process that opened it", hint="open a new one after fork")
        return self._presence.enter(our_work=our_work)

    def _checked(self, job: Job) -> Job:
        if job.python:
            raise UsageError("Python work without an interpreter is for pools", hint="run [sys.executable, FILE]")
        if job.files and job.cwd:
            raise UsageError("files of a job go into the working folder of its box, and this job has another",
                             hint="put them with Box.put, by their whole names")  # fmt: skip
        return job

    # ---- files

    def put(self, name: str | os.PathLike[str], content: bytes) -> None:
        """Write a file of the box; a relative name is one in its working folder."""
        if not isinstance(content, bytes | bytearray | memoryview):  # a number would be taken for a descriptor
            raise UsageError(f"{name!r}: the content of a file is bytes, not {type(content).__name__}")
        job = replace(Job.of(("put", name)), stdin=bytes(content) or None)
        with self._enter() as stay:
            self._put(job, stay)

    def _put(self, job: Job, stay: Stay) -> None:
        name = _named(job)
        outcome = self._transfer(("put file", name), job, self.policy, stay)
        if not outcome.ok:
            raise SandboxError(f"{name!r} could not be written: {_why(outcome)}")

    def get(self, name: str | os.PathLike[str], max_bytes: int = MAX_FILE_BYTES) -> bytes:
        """A regular file of the box."""
        job = Job.of(("get", name))
        name = _named(job)
        if type(max_bytes) is not int or not 0 < max_bytes <= LIMIT_OF["output"].largest:
            raise UsageError(f"max_bytes: {max_bytes!r} is no number of bytes that can be read")
        policy = replace(self.policy, output_bytes=max_bytes, on_output_limit=OutputOverflow.TRUNCATE)
        with self._enter() as stay:
            outcome = self._transfer(("get file", name, max_bytes + 1), job, policy, stay)
        if not outcome.ok:
            raise SandboxError(f"{name!r} could not be read: {_why(outcome)}")
        if outcome.stdout_dropped:
            raise SandboxError(f"{name!r} is larger than {max_bytes} bytes", hint="allow more with max_bytes")
        return outcome.stdout

    def _put_files(self, job: Job, stay: Stay) -> None:
        for name, content in job.files.items():
            self._put(Job(argv=("put", name), stdin=content or None), stay)

    def _transfer(self, step: tuple[object, ...], job: Job, policy: SandboxPolicy, stay: Stay) -> Outcome:
        steps, listeners = _Steps(self._box, [step]), Listeners(attach=stay.attach)
        return supervise(steps, job, policy, partial=self._partial, listeners=listeners)

    # ---- processes that are kept

    def held(self) -> Held:
        """What its processes are held by; UnavailableError where running processes can't be kept."""
        if not hasattr(self._box, "held"):
            problem = f"isolation {self.policy.isolation} here has no namespaces to restore them in"
            raise UnavailableError(f"running processes can't be kept: {problem}", missing=("strict isolation",),
                                   hint="use isolation strict as root, or leave processes out")  # fmt: skip
        with self._enter(our_work=True):
            held: Held = self._box.held()
            return held

    @property
    def revived(self) -> tuple[Revived, ...]:
        return tuple(self._revived)

    def adopt(self, revived: Revived) -> None:
        """Processes that were restored here; they end with the box."""
        self._revived.append(revived)

    # ---- changes and the end

    def changes(self) -> Changes:
        """What differs from the workspace that it was opened on."""
        with self._enter(our_work=True):
            return self._box.changes()

    def commit(self) -> None:
        """Carry the changes over into the workspace."""
        with self._enter(our_work=True):
            self._box.commit()

    def close(self) -> None:
        """End everything in it, also what other threads have in there, and leave nothing behind.

        Called from within one of its visits, by what is told of its output, it is done when that visit has ended.
        """
        if self._owner != os.getpid():
            return
        left = self._presence.close(self._end_revived, self._remove)
        if left:
            raise SandboxError(left)

    def _end_revived(self) -> None:
        for revived in self._revived:
            revived.end()

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
        raise UsageError(f"{workspace!r} is no folder", hint="name the folder that the box works on")
    return os.path.abspath(os.fsdecode(workspace))


def _named(job: Job) -> str:
    """The file that a job puts or gets, as text."""
    name = job.argv[1]
    if not name:
        raise UsageError("a file needs a name")
    return name


def _why(outcome: Outcome) -> str:
    """The words of what put or got the file, which are ours; a limit that ended it has others."""
    said = outcome.stderr.decode("utf-8", "replace") if outcome.status is Status.FAILED else ""
    return said or outcome.reason


class Handle(Dialogue):
    """A visit in the background: its output as it comes, its input, signals, and how it ends."""

    def __init__(
        self, box: LivingBox, job: Job, policy: SandboxPolicy, partial: bool, on_output: OnOutput | None, stay: Stay
    ) -> None:
        super().__init__()
        self._stay = stay
        self._visit: Visit | None = None
        self._outcome: Outcome | None = None
        self._problem: BaseException | None = None
        self._on_output = on_output
        self._begun = threading.Event()
        # Not the thread's own end: Python before 3.13 takes a thread for ended when Ctrl-C interrupts join.
        self._ended = threading.Event()
        self._theirs = -1
        """The job's end of its input, until it has a copy."""
        listeners = Listeners(on_output=self._hear, attach=self._attach)
        try:
            if job.stdin is None:
                self._theirs, self._input = os.pipe()
                job = replace(job, stdin=self._theirs)
            self._thread = threading.Thread(
                target=self._work, args=(box, job, policy, partial, listeners), name="ringfence-visit", daemon=True
            )
            self._thread.start()
        except BaseException:
            stay.leave()
            self.close_input()
            self._begin()
            raise
        self._begun.wait()
        if self._problem is not None:
            raise self._problem

    def _work(
        self, box: LivingBox, job: Job, policy: SandboxPolicy, partial: bool, listeners: Listeners
    ) -> None:
        self._stay.thread = threading.get_ident()
        try:
            self._outcome = supervise(box, job, policy, partial=partial, listeners=listeners)
        except BaseException as error:
            self._problem = error
        finally:
            self._begin()
            self._ended.set()
            self._stay.leave()

    def _begin(self) -> None:
        """It has its streams, or never will."""
        theirs, self._theirs = self._theirs, -1
        if theirs >= 0:
            os.close(theirs)
        self._begun.set()

    def _attach(self, visit: Visit, _: object) -> None:
        self._visit = visit
        self._stay.attach(visit)
        self._begin()

    def _hear(self, stream: str, piece: bytes) -> None:
        self._output[stream] += piece
        if self._on_output is not None:
            self._on_output(stream, piece)

    @property
    def done(self) -> bool:
        return self._ended.is_set()

    @property
    def entered(self) -> bool:
        """False: its box had come to its end before, and nothing of the job has begun. Known when it is done."""
        return self._visit is None or self._visit.entered

    def signal(self, number: int) -> None:
        """Signal the job; SIGKILL ends all that belongs to this visit."""
        if number not in _SIGNALS:
            raise UsageError(f"{number!r} is no signal")
        if self._visit is not None and not self.done and self._visit.fileno() >= 0:
            self._visit.signal(number)

    def join(self, timeout_s: float | None = None) -> None:
        if comes(self._ended, timeout_s):
            self.close_input()

    def wait(self, timeout_s: float | None = None) -> Outcome:
        """How it ended; TimeoutError when that takes longer."""
        self.join(timeout_s)
        if not self.done:
            raise TimeoutError("the visit has not ended yet")
        if self._problem is not None:
            raise self._problem
        assert self._outcome is not None
        return self._outcome


class _Steps:
    """A box for one visit that is not a program."""

    def __init__(self, box: LivingBox, steps: list[tuple[object, ...]]) -> None:
        self._box = box
        self._steps = steps
        self.enforced = box.enforced

    def start(self, job: Job, streams: tuple[int, ...]) -> Visit:
        return self._box.start_steps(self._steps, streams)

    def changes(self) -> Changes:
        return Changes()

    def commit(self) -> None:
        return

    def work_on(self, transaction: Transaction) -> None:
        return

    def keep(self, folder: str) -> bool:
        return False

    def close(self) -> str:
        return ""
