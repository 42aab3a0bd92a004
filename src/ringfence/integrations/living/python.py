"""``LivingPython``: one interpreter that stays in a place, asked cell by cell. What comes back is the guest's word.

A cell that takes too long is interrupted as by Ctrl-C and keeps its variables; if it ignores that, it is killed, and
the next cell begins in a fresh interpreter. Cells come one at a time.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Mapping
from types import MappingProxyType

import ringfence
from ringfence.engine.handle import Handle
from ringfence.errors import UsageError
from ringfence.integrations.living.cut import Gathered
from ringfence.integrations.living.guest import CELL, HEAD, LENGTH, MARK_START, VARIABLES
from ringfence.integrations.living.place import Place
from ringfence.model.job import Job
from ringfence.model.outcome import Outcome
from ringfence.model.record import record
from ringfence.python_jobs import pack
from ringfence.python_jobs.reply import MAX_TEXT_CHARS, Raised, Reply, ReplyKind, read_reply, shown

_SIGINT, _SIGKILL = 2, 9
_INTERRUPT_S = 3.0
"""How long a cell may take to react to its interrupt."""
_LOOK_S = 0.05
_MARK_BYTES = 16
_MOST_BESIDE = 16 * MAX_TEXT_CHARS
"""A reply has a value of at most the room for it, or three texts of four bytes a character, and its own head."""

# Load our package from its own directory: its parent need not be readable, and is not on the cells' search path.
_LOADER = """\
import importlib.util, sys
place, room = sys.argv[1], int(sys.argv[2])
spec = importlib.util.spec_from_file_location('ringfence', place + '/__init__.py', submodule_search_locations=[place])
sys.modules['ringfence'] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules['ringfence'])
from ringfence.integrations.living.guest import serve
sys.argv[:] = ['']
serve(room)
"""


@record
class Cell:
    """The result of a cell."""

    stdout: bytes = b""
    stderr: bytes = b""
    value: object = None
    """Of its last expression. Absent: it has none, or one that can't be sent; ``shown`` has its text then."""
    shown: str = ""
    raised: Raised | None = None
    problem: str = ""
    """Why it did not come to its end: a limit, an interruption, the end of the interpreter."""
    lost: bool = False
    """The interpreter is gone, and its variables."""
    outcome: Outcome | None = None
    """How the interpreter ended, where it did."""

    @property
    def ok(self) -> bool:
        return self.raised is None and not self.problem


class LivingPython:
    """Begins with the first cell."""

    def __init__(
        self, place: Place, *, interpreter: str = "", environment: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """``interpreter``: a Python of the host, at least 3.11; absent: this one."""
        self._place = place
        self._python = interpreter or sys.executable
        self._environment = environment
        self._room = max(4096, place.policy.output_bytes // 2)
        self._handle: Handle | None = None
        self._interrupts = 0
        """Sent to this interpreter so far: it tells by that which of them is meant for an earlier cell."""
        self._read = {"stdout": 0, "stderr": 0}
        self._one_at_a_time = threading.Lock()

    def run(self, source: str, *, timeout: float | None = None, given_up: threading.Event | None = None) -> Cell:
        """Execute a cell; ``timeout``: less time than the policy gives. ``given_up``: once it is set, a running cell is
        interrupted, and a waiting one never begins."""
        return self._ask(CELL, source.encode("utf-8", "surrogatepass"), self._place.seconds(timeout), given_up)

    def set(self, variables: Mapping[str, object]) -> Cell:
        """Give it variables; UsageError names one that can't be sent."""
        return self._ask(VARIABLES, pack.pack_arguments((), dict(variables)), self._place.seconds(None))

    def reset(self) -> None:
        """Begin anew with the next cell; one that runs is killed."""
        handle = self._handle
        if handle is not None:
            handle.signal(_SIGKILL)
            handle.join()

    close = reset

    def _ask(self, kind: bytes, payload: bytes, seconds: float, given_up: threading.Event | None = None) -> Cell:
        given_up = given_up or threading.Event()
        while not self._one_at_a_time.acquire(timeout=_LOOK_S):
            if given_up.is_set():
                break
        else:
            try:
                if not given_up.is_set():
                    return self._asked(kind, payload, seconds, given_up)
            finally:
                self._one_at_a_time.release()
        return Cell(problem="it was cancelled before it started")

    def _asked(self, kind: bytes, payload: bytes, seconds: float, given_up: threading.Event) -> Cell:
        handle = self._living()
        mark = os.urandom(_MARK_BYTES // 2).hex().encode()
        end = time.monotonic() + seconds
        streams = {name: Gathered(self._place.policy.output_bytes) for name in self._read}
        request = HEAD.pack(kind, len(payload), self._interrupts, mark) + payload
        threading.Thread(target=_feed, args=(handle, request), daemon=True).start()
        answer, why = self._listen(handle, mark, streams, end, given_up)
        if answer is None:
            return self._gone(handle, streams, why)
        return _cell(streams, answer, why)

    def _living(self) -> Handle:
        if self._handle is None or self._handle.done:
            argv = (self._python, "-I", "-X", "utf8", "-c", _LOADER,
                    os.path.dirname(os.path.abspath(ringfence.__file__)), str(self._room))  # fmt: skip
            job = Job(argv=argv, environment={"PYTHONUNBUFFERED": "1", **self._environment})
            self._handle = self._place.start(job, unending=True)
            self._interrupts = 0
            self._read = {"stdout": 0, "stderr": 0}
        return self._handle

    def _listen(
        self, handle: Handle, mark: bytes, streams: Mapping[str, Gathered], end: float, given_up: threading.Event
    ) -> tuple[bytes | None, str]:
        """The bytes of the reply, and why it was interrupted; no bytes if the interpreter ended."""
        why, killed_at = "", 0.0
        reply, seen = (_Tail(mark, self._room + _MOST_BESIDE) for _ in range(2))
        while True:
            is_late = time.monotonic() > end  # asked before the look: a cell that has ended by then is not interrupted
            is_due = not why and (is_late or given_up.is_set())
            wait_s = 0 if is_due else _LOOK_S
            streams["stdout"].add(*self._heard(handle, "stdout", reply, 0 if reply.complete else wait_s))
            streams["stderr"].add(*self._heard(handle, "stderr", seen, 0 if seen.found else wait_s))
            if reply.complete and seen.found:
                return reply.payload, why
            if handle.done:
                self._rest(handle, streams, (reply, seen))
                return None, why
            if is_due:
                why, killed_at = self._interrupted(handle, is_late), time.monotonic() + _INTERRUPT_S
            elif killed_at and time.monotonic() > killed_at:
                handle.signal(_SIGKILL)
                why, killed_at = why.replace("interrupted", "killed, because it did not stop"), 0.0

    def _interrupted(self, handle: Handle, is_late: bool) -> str:
        """Interrupt a cell whose time is over or that nobody waits for; which of them, in words."""
        self._interrupts += 1
        handle.signal(_SIGINT)
        return "it took too long and was interrupted" if is_late else "it was interrupted"

    def _rest(self, handle: Handle, streams: Mapping[str, Gathered], tails: tuple[_Tail, _Tail]) -> None:
        for name, tail in zip(("stdout", "stderr"), tails, strict=True):
            streams[name].add(*self._heard(handle, name, tail, 0))
            streams[name].add(tail.held, 0)

    def _heard(self, handle: Handle, name: str, tail: _Tail, wait_s: float) -> tuple[bytes, int]:
        """The cell's part of the output, and how much of it was dropped."""
        read = handle.read_stdout if name == "stdout" else handle.read_stderr
        heard = read(self._read[name], timeout_s=wait_s)
        self._read[name] = heard.position
        return tail.add(heard.data), heard.dropped

    def _gone(self, handle: Handle, streams: Mapping[str, Gathered], why: str) -> Cell:
        outcome = handle.wait()
        problem = why or f"the interpreter ended: {outcome.status}: {outcome.reason}"
        self._handle = None
        return Cell(stdout=streams["stdout"].all(), stderr=streams["stderr"].all(), problem=problem, lost=True,
                    outcome=outcome)  # fmt: skip


def _feed(handle: Handle, request: bytes) -> None:
    """A large one fills the pipe, and the interpreter may end meanwhile."""
    try:
        handle.write(request)
    except (UsageError, OSError):
        pass


class _Tail:
    """One stream: what comes before the mark is the cell's output, what comes after it is the reply.

    The guest writes both, so no more is held than the longest reply; a reply that claims to be longer is cut, and is
    then none.
    """

    def __init__(self, mark: bytes, most: int) -> None:
        self._mark = MARK_START + mark + b"\n"
        self._most = most
        self.held = b""
        self.found = False

    def add(self, data: bytes) -> bytes:
        if self.found:
            self.held += data[: max(0, LENGTH.size + self._most - len(self.held))]
            return b""
        self.held += data
        before, mark, after = self.held.partition(self._mark)
        if mark:
            self.found, self.held = True, after[: LENGTH.size + self._most]
            return before
        keep = _overlap(self.held, self._mark)
        out, self.held = self.held[: len(self.held) - keep], self.held[len(self.held) - keep :]
        return out

    @property
    def complete(self) -> bool:
        return self.found and len(self.held) >= LENGTH.size + self._length()

    def _length(self) -> int:
        told = LENGTH.unpack_from(self.held)[0] if len(self.held) >= LENGTH.size else 0
        return min(told, self._most)

    @property
    def payload(self) -> bytes:
        return self.held[LENGTH.size : LENGTH.size + self._length()]


def _overlap(data: bytes, mark: bytes) -> int:
    """How many bytes at its end may be the beginning of the mark."""
    return next((size for size in range(min(len(data), len(mark) - 1), 0, -1) if data.endswith(mark[:size])), 0)


def _cell(streams: Mapping[str, Gathered], answer: bytes, why: str) -> Cell:
    out, err = streams["stdout"].all(), streams["stderr"].all()
    read: Reply = read_reply(answer)
    if read.kind is ReplyKind.RAISED:
        return Cell(stdout=out, stderr=err, raised=read.raised, problem=why)
    if read.kind is not ReplyKind.VALUE:
        return Cell(stdout=out, stderr=err, problem=why or read.problem)
    told = read.value if type(read.value) is dict else {}
    text = told.get("shown", "")
    return Cell(stdout=out, stderr=err, value=told.get("value"), problem=why,
                shown=shown(text) if type(text) is str else "")  # fmt: skip
