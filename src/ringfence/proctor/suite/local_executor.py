"""Runs entries on this machine, each in a process of its own: a crash, a hang or a kill loses one task only.

Workers are forked, so that secrets go from memory to memory. The parent has one thread. A worker has a session of its
own, because the parent handles Ctrl-C; it ends cleanly when the parent dies, whatever the cause.
"""

from __future__ import annotations

import json
import os
import select
import signal
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from types import FrameType

from ringfence.kernel.proc.processes import die_with_parent
from ringfence.model.record import field_names
from ringfence.proctor.suite.entry import Entry, Order, Result, State, folder_name
from ringfence.proctor.suite.executor import private_prefix, run_entry
from ringfence.roles.removal import remove_tree

HANGS_S = 6 * 3600.0
"""How long the work on one task may take at all; its phases have limits of their own, which are shorter."""
_GRACE_S, _TICK_S = 30.0, 0.25
_OURS = 70
"""Exit status of a worker after an unforeseen error: the machine did not cause it, but an agent may have."""
_READ_BYTES, _WORDS_CHARS = 1 << 20, 500


_LATE = (
    "cryptography.exceptions", "cryptography.hazmat.primitives.asymmetric.ed25519", "subprocess",
    "ringfence.backends.living.visit", "ringfence.backends.closing", "ringfence.backends.layers",
    "ringfence.backends.leader_sources", "ringfence.backends.scratch", "ringfence.backends.strict",
    "ringfence.kernel.calls.native", "ringfence.kernel.cgroup.twin", "ringfence.kernel.cgroup.usage",
    "ringfence.kernel.seccomp.programs", "ringfence.model.policy_file", "ringfence.proctor.run",
    "ringfence.proctor.script_grader", "ringfence.proctor.suite.completeness", "ringfence.proctor.suite.loading",
    "ringfence.roles.spawner", "ringfence.roles.standby", "ringfence.roles.zygote_client",
    "ringfence.sandbox.strict_plan", "ringfence.steps.executor", "ringfence.transport.interpreter",
)  # fmt: skip
"""Modules that a run loads on demand: a third of a tiny task's processor time in this process."""


def preload() -> None:
    """Load once, before workers are forked, what each of them would load by itself."""
    for name in _LATE:
        import_module(name)


class _Worker:
    """One process at work on one entry."""

    def __init__(self, entry: Entry, pid: int, answer: int, noise: int, until: float) -> None:
        self.entry, self.pid, self.answer, self.noise, self.until = entry, pid, answer, noise, until
        self.handle = os.pidfd_open(pid)
        self.asked = self.cancelled = self.hung = False

    def signal(self, number: int) -> None:
        signal.pidfd_send_signal(self.handle, number)

    def ask(self, grace_s: float) -> None:
        """Ask it to end cleanly; after the deadline it is killed."""
        self.asked, self.until = True, time.monotonic() + grace_s
        self.signal(signal.SIGTERM)

    def said(self) -> bytes:
        os.lseek(self.answer, 0, os.SEEK_SET)
        return os.read(self.answer, _READ_BYTES)

    def last_words(self) -> str:
        """The end of what it wrote to stderr: of a crash, the error."""
        size = os.lseek(self.noise, 0, os.SEEK_END)
        os.lseek(self.noise, max(0, size - _READ_BYTES), os.SEEK_SET)
        lines = os.read(self.noise, _READ_BYTES).decode("utf-8", "replace").strip().splitlines()
        return lines[-1][:_WORDS_CHARS] if lines else ""

    def close(self) -> None:
        for descriptor in (self.handle, self.answer, self.noise):
            os.close(descriptor)


class LocalExecutor:
    """Processes of this machine; ``folder`` gets a directory for each entry, ``on_wait`` is called while results are
    waited for."""

    def __init__(
        self, order: Order, folder: str, jobs: int, *, on_wait: Callable[[], None] = lambda: None,
        work: Callable[[Entry, Order, str], Result] = run_entry, hangs_s: float = HANGS_S, grace_s: float = _GRACE_S,
    ) -> None:  # fmt: skip
        self.slots = jobs
        self._order, self._folder, self._work, self._on_wait = order, folder, work, on_wait
        self._hangs_s, self._grace_s = hangs_s, grace_s
        self._waiting: deque[Entry] = deque()
        self._running: dict[int, _Worker] = {}
        self._ended: deque[Result] = deque()
        self._left: list[str] = []

    def submit(self, entry: Entry) -> None:
        self._waiting.append(entry)

    def results(self) -> Iterator[Result]:
        while self._waiting or self._running or self._ended:
            while self._waiting and len(self._running) < self.slots:
                self._start(self._waiting.popleft())
            self._look(_TICK_S)
            while self._ended:
                yield self._ended.popleft()

    def cancel(self, entry_id: str) -> None:
        for entry in [entry for entry in self._waiting if entry.id == entry_id]:
            self._waiting.remove(entry)
            self._ended.append(Result(id=entry_id, state=State.CANCELLED))
        for worker in [each for each in self._running.values() if each.entry.id == entry_id]:
            worker.cancelled = True
            worker.ask(self._grace_s)

    def close(self) -> None:
        """Ask all to end, and kill after a while; a second interrupt kills at once."""
        self._waiting.clear()
        try:
            for worker in self._running.values():
                worker.cancelled = True
                worker.ask(self._grace_s)
            while self._running:
                self._look(_TICK_S)
        finally:
            for worker in self._running.values():
                worker.signal(signal.SIGKILL)
            while self._running:
                self._look(_TICK_S)
            self._clear()

    def _start(self, entry: Entry) -> None:
        """If no process can be started, the entry has failed: the machine may have room again later."""
        answer, noise = os.memfd_create("answer"), os.memfd_create("noise")
        parent = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            os.close(answer)
            os.close(noise)
            self._ended.append(Result(id=entry.id, state=State.FAILED, error=f"no process: {error.strerror}"))
            return
        if pid == 0:
            self._be_worker(entry, answer, noise, parent)
        worker = _Worker(entry, pid, answer, noise, time.monotonic() + self._hangs_s)
        self._running[worker.handle] = worker

    def _be_worker(self, entry: Entry, answer: int, noise: int, parent: int) -> None:
        """Never returns. The answer is one object, written when all is done."""
        code = 1
        try:
            _settle(noise, self._running.values(), parent)
            out = os.path.join(self._folder, folder_name(entry.id))
            result = self._work(entry, self._order, out)
            os.write(answer, json.dumps({name: getattr(result, name) for name in field_names(result)}).encode())
            _end_spawner()
            code = 0
        except KeyboardInterrupt:
            _end_spawner()
        except BaseException:
            import traceback

            code = _OURS
            os.write(2, traceback.format_exc().encode("utf-8", "backslashreplace"))  # sys.stderr may be a caller's own
        finally:
            os._exit(code)

    def _look(self, wait_s: float) -> None:
        """Wait for a moment, reap workers that have ended, and end those that take too long."""
        poller = select.poll()
        for handle in self._running:
            poller.register(handle, select.POLLIN)
        for handle, _ in poller.poll(wait_s * 1000 if self._running else 0):
            self._ended.append(self._buried(self._running.pop(handle)))
        for worker in [each for each in self._running.values() if time.monotonic() > each.until]:
            if worker.asked:
                worker.signal(signal.SIGKILL)
            else:
                worker.hung = True
                worker.ask(self._grace_s)
        self._on_wait()

    def _buried(self, worker: _Worker) -> Result:
        status = os.waitstatus_to_exitcode(os.waitpid(worker.pid, 0)[1])
        self._left += _private_folders(self._folder, worker.pid)
        self._clear()
        try:
            return _result(worker, status, self._hangs_s)
        finally:
            worker.close()

    def _clear(self) -> None:
        """Remove what killed workers left; their sandboxes may take another moment to end."""
        for path in tuple(self._left):
            try:
                remove_tree(path)
                self._left.remove(path)
            except OSError:
                continue


def _settle(noise: int, others: Iterable[_Worker], parent: int) -> None:
    """Make the forked process independent: nothing of its siblings, no terminal, and a clean end."""
    os.setsid()
    asked = False

    def end(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if not asked:  # once: what is cleaned up then must not be interrupted
            asked = True
            raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, end)
    die_with_parent(signal.SIGTERM)
    if os.getppid() != parent:
        raise KeyboardInterrupt
    for worker in others:
        worker.close()
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor, number in ((nothing, 0), (nothing, 1), (noise, 2)):
        os.dup2(descriptor, number)
    os.close(nothing)


def _end_spawner() -> None:
    from ringfence.roles import spawner

    spawner.shutdown()


def _private_folders(folder: str, pid: int) -> list[str]:
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    return [os.path.join(folder, name) for name in names if name.startswith(private_prefix(pid))]


def _result(worker: _Worker, status: int, hangs_s: float) -> Result:
    """What the worker said, if it finished saying it; else what became of the worker. What an agent can cause, by its
    run time or through a bug of ours, is not tried again: that would give it another chance."""
    if status == 0:
        try:
            said = json.loads(worker.said())
            return Result(**{**said, "state": State(said["state"])})
        except (ValueError, TypeError, KeyError):
            pass
    if worker.cancelled:
        return Result(id=worker.entry.id, state=State.CANCELLED)
    if worker.hung:
        error = f"took longer than {hangs_s:.0f} s, and was ended"
    elif status < 0:
        error = f"the worker was killed by {_signal_name(-status)}"
    else:
        error = f"the worker ended with {status}: {worker.last_words() or 'it said nothing'}"
    state = State.REFUSED if worker.hung or status == _OURS else State.FAILED
    return Result(id=worker.entry.id, state=state, error=error)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
