"""One strategy in one container, from handing it over to its result. Nothing that the strategy does is raised."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping

from ringfence.container import group_files
from ringfence.docker_sandbox.client import EngineClient
from ringfence.docker_sandbox.config import DockerConfig
from ringfence.docker_sandbox.conversation import Data, Ended, Overflow, Reply, read_result, request
from ringfence.docker_sandbox.fallback import cpu_seconds
from ringfence.docker_sandbox.monitor import ISOLATION, ContainerMonitor
from ringfence.docker_sandbox.result import StrategyStatus
from ringfence.docker_sandbox.warm_pool import Living
from ringfence.errors import SandboxError, UsageError
from ringfence.metrics import recorder
from ringfence.metrics.life_log import tell
from ringfence.model.record import record

SAMPLE_S = 1.0
_END_S = 10.0
_STATS_S = 2.0
"""An engine takes a second to measure; one that takes longer does not keep a strategy from its end."""
_BUSY = 0.8
"""A strategy that used this share of its possible processor time was held back by that limit."""


@record(eq=False)
class Assigned:
    """A container and the strategy that it is for."""

    living: Living
    code: str
    data: Data


Told = dict[str, object]


class OneRun:
    """Hands over, waits, measures, and says how it ended."""

    def __init__(
        self, client: EngineClient, config: DockerConfig, monitor: ContainerMonitor, job: Assigned, timeout_s: int
    ) -> None:
        self._client, self._config, self._monitor, self._job = client, config, monitor, job
        self._timeout_s = timeout_s
        self._id = job.living.id
        self._places = group_files.locate(self._id) if config.export_container_stats else {}
        self._began = time.monotonic()
        self._asking: threading.Thread | None = None

    def run(self) -> Told:
        """The result as plain data; UnavailableError if the engine was lost meanwhile."""
        self._monitor.record_run_begins(self._id, self._group())
        tell("execution_started", container_id=self._id, timeout_seconds=self._timeout_s)
        try:
            return self._replied(self._conversed())
        except TimeoutError:
            return self._timed_out()
        except (Overflow, UsageError) as error:
            return self._told(StrategyStatus.BAD_RESULT, str(error))
        except Ended:
            return self._died()

    def _conversed(self) -> Reply:
        until = self._began + self._timeout_s
        asked = request(self._job.code, self._job.data, cpu_s=cpu_seconds(self._config, self._timeout_s))
        talk = self._job.living.conversation
        talk.hand_over(asked, until)
        reply = talk.reply(until, SAMPLE_S, self._sample)
        self._sample()
        return reply

    def _replied(self, reply: Reply) -> Told:
        if not reply.ok:
            return self._told(StrategyStatus.FAILED, reply.error or "it failed without an error message",
                              traceback=reply.traceback)  # fmt: skip
        return self._told(StrategyStatus.OK, "", metrics=read_result(reply.payload))

    def _sample(self) -> None:
        """Measure its use; it must not fail if an engine can't tell, nor wait for one that hangs."""
        if not self._config.export_container_stats:
            return
        found = self._group()
        if found:
            self._monitor.record_resource_usage(self._id, found)
        elif self._asking is None or not self._asking.is_alive():
            self._asking = threading.Thread(target=self._ask, name="ringfence-stats", daemon=True)
            self._asking.start()
            self._asking.join(_STATS_S)

    def _ask(self) -> None:
        try:
            self._monitor.record_resource_usage(self._id, self._client.stats(self._id))
        except SandboxError:
            return  # an engine that is lost ends the streams too

    def _group(self) -> Mapping[str, object]:
        """From the control group itself, on this host: an engine takes a second to answer, and forgets the peak."""
        found = self._places
        if not found:
            return {}
        cpu: dict[str, object] = {"cpu_usage": {"total_usage": group_files.processor_ns(found)}}
        return {"memory_stats": {"usage": group_files.peak_bytes(found)}, "cpu_stats": cpu}

    def _timed_out(self) -> Told:
        """Kill it and throw away its output. If that fails, its removal continues in the background: it had its time,
        and a slow engine is no reason to run it again elsewhere."""
        self._sample()
        used = self._monitor.used(self._id)
        self._job.living.conversation.close()  # an engine waits with the end until all output was read
        try:
            self._client.kill(self._id)
        except SandboxError as error:
            tell("container_cleanup_failed", str(error), container_id=self._id)
        ran_s = time.monotonic() - self._began
        recorder.add("execution_timeout_total", isolation=ISOLATION)
        recorder.observe("execution_timeout_duration_seconds", ran_s, isolation=ISOLATION)
        words = f"it took longer than {self._timeout_s} s and was killed"
        tell("execution_timeout", words, level=logging.WARNING, container_id=self._id, seconds=round(ran_s, 3))
        if used.cpu_s >= _BUSY * self._config.cpu_limit * ran_s:
            words += f"; it used all of its {self._config.cpu_limit:g} cores meanwhile"
            self._limit("cpu", words)
        return self._told(StrategyStatus.TIMEOUT, words)

    def _limit(self, resource: str, words: str) -> None:
        recorder.add("resource_limit_exceeded_total", isolation=ISOLATION, resource=resource)
        tell("resource_limit_exceeded", words, level=logging.WARNING, container_id=self._id, resource=resource)

    def _died(self) -> Told:
        """It ended without a result: by a limit, by its own doing, or with its engine. The control group is asked
        first, while it exists: podman does not report memory with control groups of version 1."""
        killed = group_files.killed_for_memory(self._places or group_files.locate(self._id))
        code = self._client.wait(self._id, _END_S)
        state = self._client.inspect(self._id).get("State")
        if killed or (isinstance(state, Mapping) and state.get("OOMKilled") is True):
            words = f"it used more memory than {self._config.memory_limit} and was killed"
            self._limit("memory", words)
            return self._told(StrategyStatus.RESOURCE_LIMIT, words, exit_code=code)
        return self._told(StrategyStatus.FAILED, f"it ended with exit status {code} and without a result",
                          exit_code=code)  # fmt: skip

    def _told(self, status: StrategyStatus, error: str, **more: object) -> Told:
        used = self._monitor.used(self._id)
        log = bytes(self._job.living.conversation.log).decode("utf-8", "replace")
        return {
            "status": status, "error": error, "metrics": {}, "exit_code": None, "traceback": "", "log": log,
            "execution_time": time.monotonic() - self._began, "memory_used_mb": used.memory_bytes / (1 << 20),
            "cpu_percent": used.cpu_percent, **more,
        }  # fmt: skip
