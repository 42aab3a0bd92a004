"""What runs on a node: a worker process of Ray that keeps a pool, and runs the jobs of a task in it.

Our errors come back as values: Ray would turn a raised one into a type of its own. A pool without work closes itself
after a while, also when the caller has died.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from ringfence.cluster.blobs import Received
from ringfence.cluster.node import check_node
from ringfence.cluster.ray_module import ray_module
from ringfence.cluster.routes import check_route
from ringfence.egress.upstream import is_own
from ringfence.engine.pool import Pool
from ringfence.errors import SandboxError
from ringfence.integrations.ray.wire import PoolSettings, WiredJob, unwired
from ringfence.model.job import Job
from ringfence.model.outcome import Outcome
from ringfence.python_jobs import job as python_job

IDLE_S = 60.0
"""How long a worker's pool stays open without a job."""
_received = Received()


def run_jobs(settings: PoolSettings, jobs: Sequence[WiredJob], timeout: float | None) -> list[Outcome | SandboxError]:
    """Run them, as many at a time as the worker has slots for; how each ended, in order."""
    try:
        check_node(settings.version)
        rules = settings.policy.network_rule
        check_route(rules if isinstance(rules, tuple) else (), (), is_own)  # the caller knew one address of this node
        surroundings = python_job.Surroundings(path=("",), packages=python_job.package_folders())
        ready = [unwired(job, _received, ray_module(), surroundings) for job in jobs]
        with _kept.lent(settings) as pool:
            return [*_ends(pool, ready, timeout)]
    except SandboxError as error:
        return [error] * len(jobs)


def _ends(pool: Pool, jobs: Sequence[Job], timeout: float | None) -> list[Outcome | SandboxError]:
    futures = pool.submit_many(jobs, timeout=timeout)
    ends: list[Outcome | SandboxError] = []
    try:
        for future in futures:
            try:
                ends.append(future.result())
            except SandboxError as error:
                ends.append(error)
    finally:
        for future in futures:
            future.cancel()  # of a task that was cancelled itself
    return ends


class _Kept:
    """The pool of this process; another one when other settings come."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pool: Pool | None = None
        self._settings: PoolSettings | None = None
        self._timer: threading.Timer | None = None

    def lent(self, settings: PoolSettings) -> _Lent:
        return _Lent(self, settings)

    def take(self, settings: PoolSettings) -> Pool:
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None  # it may wait for the lock already, and would close what is lent here
            if self._pool is None or self._settings != settings:
                self._close()
                self._pool = Pool(settings.policy, warm=settings.width + 1, at_once=settings.width,
                                  preload=settings.preload)  # fmt: skip
                self._settings = settings
            return self._pool

    def give_back(self) -> None:
        with self._lock:
            self._timer = threading.Timer(IDLE_S, self._idle)
            self._timer.daemon = True
            self._timer.start()

    def _idle(self) -> None:
        with self._lock:
            if threading.current_thread() is self._timer:  # nobody came in the meantime
                self._close()

    def _close(self) -> None:
        if self._pool is not None:
            self._pool.close()
        self._pool = self._settings = None


class _Lent:
    def __init__(self, kept: _Kept, settings: PoolSettings) -> None:
        self._kept, self._settings = kept, settings

    def __enter__(self) -> Pool:
        return self._kept.take(self._settings)

    def __exit__(self, *_: object) -> None:
        self._kept.give_back()


_kept = _Kept()
