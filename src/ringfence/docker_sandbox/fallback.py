"""If there is no engine and the configuration allows it: runs the same strategy in a sandbox of ours."""

from __future__ import annotations

import os
import sys

from ringfence.container import seccomp_profile
from ringfence.docker_sandbox.config import DockerConfig
from ringfence.docker_sandbox.conversation import HEAD_BYTES, Data, Overflow, Reply, read_reply, request
from ringfence.docker_sandbox.recipe import runner_argv
from ringfence.docker_sandbox.strategy_runner import READY
from ringfence.engine.run import run, traits_of
from ringfence.errors import UsageError
from ringfence.model.job import Job
from ringfence.model.limits import IsolationLevel, SyscallProfile
from ringfence.model.outcome import Outcome
from ringfence.model.policy import NO_NETWORK, SandboxPolicy


def run_at_level(config: DockerConfig, code: str, data: Data, timeout_s: int) -> tuple[Outcome, Reply | None, str]:
    """Run it; return the outcome, the strategy's reply, and what is wrong with the reply."""
    most = config.bytes_of("result_limit")
    policy = policy_of(config, timeout_s)
    asked = request(code, data, cpu_s=cpu_seconds(config, timeout_s), input="input", output="output", watch=False)
    closing = seccomp_profile.closing(os.uname().machine)
    outcome = run(Job(argv=runner_argv(sys.executable, closing), stdin=asked), policy)
    said = outcome.stdout.removeprefix(READY)
    try:
        return outcome, read_reply(said, most), ""
    except (Overflow, UsageError) as error:
        return outcome, None, str(error)


def policy_of(config: DockerConfig, timeout_s: int) -> SandboxPolicy:
    """The limits that the container would have had: no network, no programs, only its own files. By default the level
    process enforces none of that, and a strategy there could do what the caller can. The policy asks for it, so it is
    enforced or nothing is run. Processor time is limited, but there is no processor share."""
    policy = SandboxPolicy(
        isolation=IsolationLevel(config.fallback_level), wall_time_s=timeout_s, mem_bytes=config.memory_bytes,
        cpu_time_s=cpu_seconds(config, timeout_s), pids_max=config.pids_limit, nofile=config.nofile_limit,
        output_bytes=config.bytes_of("result_limit") + 2 * HEAD_BYTES, network=NO_NETWORK,
        syscall_profile=SyscallProfile.TIGHT,
    )  # fmt: skip
    if not traits_of(policy.isolation).files_apart:
        return policy.with_changes(readable_paths=(os.path.realpath(sys.base_prefix),))
    written = sum(map(config.bytes_of, ("tmpfs_size", "data_limit", "result_limit")))
    return policy.with_changes(disk_bytes=written)


def cpu_seconds(config: DockerConfig, timeout_s: int) -> int:
    """As much processor time as the strategy can use in its time: a safety net for one that nobody watches."""
    return int(timeout_s * max(1.0, config.cpu_limit)) + 5
