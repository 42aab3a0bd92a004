"""``DockerExecutor``: runs untrusted strategies, each in a container of its own that is used once.

The result says what the strategy did, or that the engine is missing. Only mistakes of the caller are raised.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import weakref
from collections.abc import Callable, Mapping
from traceback import clear_frames
from types import TracebackType

from ringfence.container import orphans
from ringfence.container.api import IMAGE_STEP, connect
from ringfence.container.guardian import guardian_of
from ringfence.container.hardening import ContainerSpec
from ringfence.docker_sandbox.applied_table import enforced
from ringfence.docker_sandbox.client import Connect, EngineClient
from ringfence.docker_sandbox.config import EMERGENCY, DockerConfig, emergency_stop
from ringfence.docker_sandbox.conversation import Data
from ringfence.docker_sandbox.fallback import run_at_level
from ringfence.docker_sandbox.gate import Validator, data_of, rejections, validator_of
from ringfence.docker_sandbox.monitor import ISOLATION, ContainerMonitor
from ringfence.docker_sandbox.one_run import Assigned, OneRun, Told
from ringfence.docker_sandbox.recipe import spec_of
from ringfence.docker_sandbox.removal import Remover
from ringfence.docker_sandbox.result import DockerExecutionResult, StrategyStatus, as_dict, failed
from ringfence.docker_sandbox.told import keep, of_outcome, of_told
from ringfence.docker_sandbox.warm_pool import Guard, Living, WarmPool
from ringfence.errors import SandboxError, SetupError, UnavailableError, UsageError
from ringfence.metrics import recorder
from ringfence.metrics.life_log import checked_trace_id, tell, traced
from ringfence.model.record import replace

_living: weakref.WeakSet[DockerExecutor] = weakref.WeakSet()
_IMAGE, _CREATE = "image", "create"


class DockerExecutor:
    """Runs strategies. Use it as a context manager: standby containers are removed when it is closed, or at exit.
    docs/how-to/containers has examples."""

    def __init__(
        self, config: DockerConfig | None = None, *, validator: Validator | None = None,
        monitor: ContainerMonitor | None = None, connect: Connect = connect,
        guard: Callable[[str], Guard] = guardian_of,
    ) -> None:  # fmt: skip
        self.config = config or DockerConfig.load()
        self.monitor = monitor or ContainerMonitor(self.config.alert_on_orphaned_containers)
        self._validator = validator
        self._connect, self._guard = connect, guard
        self._lock = threading.RLock()
        self._client: EngineClient | None = None
        self._pool: WarmPool | None = None
        self._info: Mapping[str, object] = {}
        self._assigned: dict[str, Assigned] = {}
        self._remover = Remover(self._engine, self.monitor)
        self._closed = False
        self._owner = os.getpid()
        recorder.switch_on_if_asked()
        _living.add(self)

    def __enter__(self) -> DockerExecutor:
        self.warm_up()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 where: TracebackType | None) -> None:  # fmt: skip
        self.close()

    def warm_up(self) -> None:
        """Prepare containers in the background. Without an engine, or with one whose answers can't be used, nothing
        happens: an execution will report that."""
        try:
            if self._enabled():
                self._containers().fill()
        except UnavailableError as error:
            tell("docker_unavailable", str(error), level=logging.WARNING)
        except SetupError as error:
            tell("warm_container_failed", str(error), level=logging.WARNING)

    def execute_strategy(self, code: str, data: object = None) -> dict[str, object]:
        """Execute it and return the fields of ``DockerExecutionResult`` as a dict."""
        return as_dict(self.execute(code, data))

    def execute(
        self, code: str, data: object = None, *, timeout: int | None = None, trace_id: str = ""
    ) -> DockerExecutionResult:
        """Call the code's ``run(data)`` in a container. ``data``: a value for JSON, or the path of a file."""
        if not isinstance(code, str):
            raise UsageError(f"code must be a string, not {type(code).__name__}")
        if self._closed or os.getpid() != self._owner:
            raise UsageError("the executor is closed, or another process made it", hint="make another")
        given = data_of(data, self.config.bytes_of("data_limit"))
        config = self.config if timeout is None else self.config.with_arguments(timeout_seconds=timeout)
        with traced(checked_trace_id(trace_id)) as trace:
            try:
                result = replace(self._executed(code, given, config.timeout_seconds), trace_id=trace)
            except (KeyboardInterrupt, SystemExit) as error:
                _let_go(error)
                raise
            self._tell_end(result)
            keep(self.config.output_dir, result)
            return result

    def _executed(self, code: str, data: Data, limit: int) -> DockerExecutionResult:
        rejected = rejections(self._validator or validator_of(self.config), code) if self._checks() else []
        if rejected:
            words = f"rejected before a container was made: {rejected[0]}"
            return failed(StrategyStatus.REJECTED, words, security_rejections=rejected)
        if not self._enabled():
            return self._without_engine(code, data, limit, StrategyStatus.DISABLED,
                                        f"containers are switched off ({EMERGENCY} or docker.enabled)")  # fmt: skip
        try:
            return self._in_container(code, data, limit)
        except UnavailableError as error:
            self._forget_engine()
            why = "; ".join((str(error), *error.fixes))
            return self._without_engine(code, data, limit, StrategyStatus.UNAVAILABLE, why)
        except SetupError as error:
            return failed(StrategyStatus.CREATION_FAILED, str(error))

    def _checks(self) -> bool:
        return self.config.validate or self._validator is not None

    def _enabled(self) -> bool:
        return self.config.enabled and not emergency_stop()

    def _in_container(self, code: str, data: Data, limit: int) -> DockerExecutionResult:
        pool = self._containers()
        living = self._taken(pool)
        try:
            told = self._run(Assigned(living=living, code=code, data=data), limit)
        finally:
            pool.discard(living, background=bool(self.config.warm_containers))
        return of_told(told, living.id, living.enforced)

    def _taken(self, pool: WarmPool) -> Living:
        try:
            return pool.take()
        except SetupError as error:
            if error.step != IMAGE_STEP or not self.config.pull:
                raise self._not_created(error) from error
            return self._after_pull(pool, error)

    def _create_container(self, code: str) -> str:
        """Create a container with all its limits, or take one that stands by; return its id."""
        living = self._taken(self._containers())
        self._assigned[living.id] = Assigned(living=living, code=code, data=Data(payload=b"null"))
        return living.id

    def _after_pull(self, pool: WarmPool, missing: SetupError) -> Living:
        """Fetch the image and try once more."""
        tell("image_missing", str(missing), image=self.config.image)
        try:
            self._engine().pull(self.config.image)
            tell("image_pulled", image=self.config.image)
            return pool.take()
        except SetupError as error:
            raise self._not_created(error) from error

    def _not_created(self, error: SetupError) -> SetupError:
        reason = _IMAGE if error.step in (IMAGE_STEP, "pull the image") else _CREATE
        recorder.add("container_creation_failed_total", reason=reason)
        tell("container_creation_failed", str(error), level=logging.ERROR, image=self.config.image, reason=reason)
        return error

    def _run_container(self, container_id: str, timeout: int) -> Told:
        """Hand the strategy over and wait for its result, at most this many seconds."""
        if container_id not in self._assigned:
            raise UsageError(f"{container_id[:80]!r} is not a container of this executor")
        return self._run(self._assigned[container_id], timeout)

    def _run(self, job: Assigned, timeout: int) -> Told:
        self._containers().limit(job.living, timeout)
        return OneRun(self._engine(), self.config, self.monitor, job, timeout).run()

    def _cleanup_container(self, container_id: str) -> None:
        """Force the removal of a container with all its processes; what fails is tried again in the background."""
        job, pool = self._assigned.pop(container_id, None), self._pool
        if job is None or pool is None:
            self._remover.remove(container_id)
        else:
            pool.discard(job.living)

    def cleanup_orphaned_containers(self) -> int:
        """Remove containers whose owner is gone, and those that could not be removed before; return how many."""
        client = self._engine()
        found = orphans.find(client)
        gone, problems = orphans.remove(client, found)
        for container_id in [each.id for each in gone]:
            self.monitor.record_container_cleanup(container_id, True)
        for container_id in problems:
            self.monitor.record_container_cleanup(container_id, False)
        count = len(gone) + self._remover.try_again()
        if found or count:
            tell("orphans_removed", found=len(found), removed=count)
        return count

    def close(self) -> None:
        """Remove all standby containers, and wait for removals in progress. A second call does nothing."""
        with self._lock:
            if self._closed or os.getpid() != self._owner:
                return  # a fork of ours owns none of its containers
            self._closed = True
            pool = self._pool
        for container_id in [*self._assigned]:
            self._cleanup_container(container_id)
        if pool is not None:
            pool.close()
        self._remover.close()
        if self._client is not None:
            self._client.close()

    # ---- the engine of the moment

    def _engine(self) -> EngineClient:
        with self._lock:
            if self._client is None:
                self._client = self._connected()
                tell("engine_connected", version=str(self._info.get("ServerVersion", "")))
                self.cleanup_orphaned_containers()
            return self._client

    def _connected(self) -> EngineClient:
        """One that has told about itself; the next execution asks again if it has not."""
        client = self._connect(self.config.engine)
        try:
            self._info = client.info()
        except BaseException:
            client.close()
            raise
        return client

    def _forget_engine(self) -> None:
        """The engine was lost: the next execution connects anew, and removes what the last one left."""
        with self._lock:
            self._client = None

    def _containers(self) -> WarmPool:
        with self._lock:
            self._engine()
            if self._pool is None:
                config = self.config
                spec = spec_of(config, orphans.labels("strategy"), str(self._info.get("Architecture", "")),
                               self._engine().kind)  # fmt: skip
                self._pool = WarmPool(
                    self._engine, spec, most=config.max_containers, warm=config.warm_containers, guard=self._guard,
                    result_bytes=config.bytes_of("result_limit"), monitor=self.monitor,
                    remover=self._remover, read_back=self._read_back, keep=not config.cleanup_on_exit,
                )  # fmt: skip
            return self._pool

    def _read_back(self, client: EngineClient, container: str, spec: ContainerSpec) -> Mapping[str, object]:
        return enforced(client, container, spec, self._info)

    # ---- without one

    def _without_engine(
        self, code: str, data: Data, limit: int, status: StrategyStatus, why: str
    ) -> DockerExecutionResult:
        if not self.config.fallback_to_direct:
            tell("docker_unavailable", why, level=logging.ERROR)
            return failed(status, why)
        level = self.config.fallback_level
        recorder.add("docker_fallback_total", level=level)
        tell("docker_fallback", f"Docker unavailable, falling back to {level.upper()} (UNSAFE)",
             level=logging.WARNING, reason=why, isolation=level)  # fmt: skip
        try:
            return of_outcome(*run_at_level(self.config, code, data, limit), level)
        except SandboxError as error:
            return failed(status, f"{why}; and the level {level} can't be had: {error}", isolation=level)

    def _tell_end(self, result: DockerExecutionResult) -> None:
        if result.isolation == ISOLATION:
            recorder.add("executions_total", isolation=ISOLATION, status=str(result.status))
            recorder.observe("execution_duration_seconds", result.execution_time, isolation=ISOLATION)
        tell("execution_ended", result.error_message or "", container_id=result.container_id, status=str(result.status),
             isolation=result.isolation, seconds=round(result.execution_time, 3),
             memory_used_mb=round(result.memory_used_mb, 1), cpu_percent=result.cpu_percent)  # fmt: skip


def _let_go(error: BaseException | None) -> None:
    """Empty the frames of an interrupt: whoever keeps its traceback, as an interactive Python does, would hold the
    container that was in somebody's hands there."""
    while error is not None:
        clear_frames(error.__traceback__)
        error = error.__context__


def _close_all() -> None:
    for executor in [*_living]:
        try:
            executor.close()
        except SandboxError:
            continue  # the engine is gone, and what is left has our label


atexit.register(_close_all)
