"""How one run is carried out: in a pool, in a sandbox of its own, or in a box; each begins and ends in the same way.

What is handed over is a job and a policy that were checked. Nothing here knows requests or tenants.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

from ringfence.engine.handle import Handle
from ringfence.engine.pool import Pool
from ringfence.engine.run import run
from ringfence.engine.supervision import Listeners
from ringfence.errors import UsageError
from ringfence.model.job import Job
from ringfence.model.outcome import Outcome
from ringfence.model.policy import SandboxPolicy

_SIGKILL = 9
_BEGIN_S = 30.0


class Work(Protocol):
    """One run that has its place."""

    job: Job

    def start(self, told: Listeners) -> Future[Any]:
        """Begin; the future has the outcome."""

    def kill(self) -> None:
        """End it, now or as soon as it has begun."""

    def signal(self, number: int) -> None: ...

    def write(self, data: bytes | None) -> None:
        """Write to its input; None: that was all."""


class PooledWork:
    """In a sandbox that stood by."""

    def __init__(self, pool: Pool, job: Job, timeout: float | None) -> None:
        self.job = job
        self._pool, self._timeout = pool, timeout
        self._killed = False
        self._future: Any = None

    def start(self, told: Listeners) -> Future[Any]:
        self._future = self._pool.submit_watched(self.job, told, timeout=self._timeout)
        if self._killed:
            self._future.kill()
        return self._future  # type: ignore[no-any-return]

    def kill(self) -> None:
        self._killed = True
        if self._future is not None:
            self._future.kill()

    def signal(self, number: int) -> None:
        raise UsageError("only runs in a box take signals", hint="cancel it, or start it in a box")

    def write(self, data: bytes | None) -> None:
        raise UsageError("only runs in a box take input while they run", hint="give the input with the run")


class FreshWork(PooledWork):
    """In a new sandbox, for a policy without sandboxes that stand by."""

    def __init__(self, threads: ThreadPoolExecutor, job: Job, policy: SandboxPolicy) -> None:
        self.job = job
        self._threads, self._policy = threads, policy
        self._killed = False
        self._visit: Any = None

    def start(self, told: Listeners) -> Future[Any]:
        return self._threads.submit(run, self.job, self._policy, on_event=told.on_event, on_output=told.on_output,
                                    attach=self._attach)  # fmt: skip

    def _attach(self, visit: Any, _: object) -> None:
        self._visit = visit
        if self._killed:
            visit.signal(_SIGKILL)

    def kill(self) -> None:
        self._killed = True
        if self._visit is not None:
            self._visit.signal(_SIGKILL)


class BoxedWork:
    """A visit to a box."""

    def __init__(
        self, threads: ThreadPoolExecutor, begin: Callable[[Listeners], Handle], leave: Callable[[], None], job: Job
    ) -> None:
        """``begin``: starts the visit; ``leave``: told when it is over."""
        self.job = job
        self._threads, self._begin, self._leave = threads, begin, leave
        self._handle: Handle | None = None
        self._lock = threading.Lock()
        self._killed = False
        self._ready = threading.Event()

    def start(self, told: Listeners) -> Future[Any]:
        return self._threads.submit(self._visit, told)

    def _visit(self, told: Listeners) -> Outcome:
        try:
            handle = self._begin(told)
            with self._lock:
                self._handle, killed = handle, self._killed
            if killed:
                handle.signal(_SIGKILL)
            self._ready.set()
            return handle.wait()
        finally:
            self._ready.set()
            self._leave()

    def kill(self) -> None:
        with self._lock:
            self._killed, handle = True, self._handle
        if handle is not None:
            handle.signal(_SIGKILL)

    def signal(self, number: int) -> None:
        self._begun().signal(number)

    def write(self, data: bytes | None) -> None:
        handle = self._begun()
        if data is None:
            handle.close_input()
        else:
            handle.write(data)

    def _begun(self) -> Handle:
        """In a thread: a client that was told that it is running may be faster than its start."""
        self._ready.wait(_BEGIN_S)
        with self._lock:
            if self._handle is None:
                raise UsageError("it has not started yet", hint="try again when its state is running")
            return self._handle
