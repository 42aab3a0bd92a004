"""Makes results from the reports of containers and sandboxes, and keeps a file of each."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping

from ringfence.docker_sandbox.conversation import Reply, read_result
from ringfence.docker_sandbox.one_run import Told
from ringfence.docker_sandbox.result import DockerExecutionResult, StrategyStatus, as_dict
from ringfence.errors import UsageError
from ringfence.metrics.life_log import tell
from ringfence.model.outcome import Outcome, Status
from ringfence.model.own_files import make_private, write_whole
from ringfence.model.printed import json_text
from ringfence.model.ways.walk import absolute

MEGABYTE = 1 << 20
LOG_CHARS = 4000
_LIMITS = frozenset({"memory", "pids", "cpu_time"})


def of_told(told: Told, container_id: str, enforced: Mapping[str, object]) -> DockerExecutionResult:
    """From what ``_run_container`` returns."""
    same = {name: told[name] for name in ("metrics", "execution_time", "memory_used_mb", "cpu_percent", "status")}
    return DockerExecutionResult(
        success=told["status"] is StrategyStatus.OK, container_id=container_id,
        error_message=str(told["error"]) or None, log=str(told["log"])[-LOG_CHARS:], enforced=enforced,
        **same,  # type: ignore[arg-type]
    )  # fmt: skip


def of_outcome(outcome: Outcome, reply: Reply | None, problem: str, level: str) -> DockerExecutionResult:
    """From a run at a level of ours."""
    status, error, metrics = _judged(outcome, reply, problem)
    usage, wall_s = outcome.usage, outcome.usage.wall_s or outcome.duration_ms / 1000
    return DockerExecutionResult(
        success=status is StrategyStatus.OK, metrics=metrics, container_id="", execution_time=wall_s,
        memory_used_mb=usage.peak_memory_bytes / MEGABYTE,
        cpu_percent=round((usage.cpu_user_s + usage.cpu_system_s) / max(wall_s, 0.001) * 100, 1),
        error_message=error or None, status=status, isolation=level,
        log=outcome.stderr.decode("utf-8", "replace")[-LOG_CHARS:],
        enforced={name: {"requested": entry.requested, "applied": entry.applied, "mechanism": entry.mechanism,
                         "details": entry.details} for name, entry in outcome.enforced.items()},
    )  # fmt: skip


def _judged(outcome: Outcome, reply: Reply | None, problem: str) -> tuple[StrategyStatus, str, dict[str, object]]:
    if outcome.status is Status.TIMEOUT:
        return StrategyStatus.TIMEOUT, outcome.reason, {}
    if outcome.status is not Status.OK and _LIMITS.intersection(outcome.limits_hit):
        return StrategyStatus.RESOURCE_LIMIT, outcome.reason, {}
    if problem:
        return StrategyStatus.BAD_RESULT, problem, {}
    if outcome.status is not Status.OK or reply is None:
        return StrategyStatus.FAILED, outcome.reason or "it ended without a result", {}
    if not reply.ok:
        return StrategyStatus.FAILED, reply.error or "it failed without an error message", {}
    try:
        return StrategyStatus.OK, "", read_result(reply.payload)
    except UsageError as error:
        return StrategyStatus.BAD_RESULT, str(error), {}


def keep(folder: str, result: DockerExecutionResult) -> None:
    """Write a file for each execution to ``output_dir``; if that fails, it is logged, and the result is not lost."""
    if not folder:
        return
    try:
        make_private(absolute(folder))
        write_whole(os.path.join(folder, f"{result.trace_id}.json"), json_text(as_dict(result)).encode())
    except OSError as error:
        tell("result_not_kept", f"{folder}: {error.strerror}", level=logging.WARNING)
