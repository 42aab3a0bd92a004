"""From a configuration to the container: pure, except that the profile is read from its file."""

from __future__ import annotations

import json
from collections.abc import Mapping

from ringfence.container import seccomp_profile
from ringfence.container.hardening import ContainerSpec
from ringfence.container.job_spec import PODMAN, no_core, own_processes
from ringfence.docker_sandbox import strategy_runner
from ringfence.docker_sandbox.config import DockerConfig, seccomp_file
from ringfence.docker_sandbox.conversation import INPUT, OUTPUT
from ringfence.errors import SetupError, UsageError
from ringfence.model.files import read_file
from ringfence.model.limits import SyscallProfile

MAX_PROFILE_BYTES = 1 << 20
_START = "\nif __name__ =="
_ARCHITECTURES = {"amd64": "x86_64", "arm64": "aarch64"}
_PRIVATE = "rw,noexec,nosuid,nodev"
_SPARE = 64 << 10
"""What the file system needs beyond the bytes of a file."""


def runner_text() -> str:
    """The program of the first process."""
    with open(strategy_runner.__file__, encoding="utf-8") as file:
        return file.read()


def runner_argv(python: str = "python3", closing: str = "") -> tuple[str, ...]:
    """``closing``: source of ``close_the_rest``, which is called before anything is taken in."""
    text = runner_text()
    if closing:
        text = f"{text.rpartition(_START)[0]}\n{closing}\nclose_the_rest()\nmain()\n"
    return (python, "-I", "-B", "-c", text)


def closing_of(config: DockerConfig, profile: str, architecture: str) -> str:
    """Return what closes execve, new processes and sockets once Python runs; empty where the configuration has a
    profile of its own, or a network, whose sockets it would close."""
    if config.network_mode != "none" or json.loads(profile) != seccomp_profile.as_data(SyscallProfile.TIGHT):
        return ""
    known = _ARCHITECTURES.get(architecture, architecture)
    try:
        return seccomp_profile.closing(known)
    except KeyError:
        raise SetupError("close the container", f"system calls of {architecture!r} are not known here") from None


def spec_of(
    config: DockerConfig, labels: Mapping[str, str], architecture: str, engine: str = "docker"
) -> ContainerSpec:
    """Return the container that the configuration means."""
    profile = seccomp_text(config)
    processes = own_processes() if engine == PODMAN else {}
    return ContainerSpec(
        argv=runner_argv(closing=closing_of(config, profile, architecture)),
        image=config.image,
        environment={"HOME": config.tmpfs_path, "TMPDIR": config.tmpfs_path},
        workdir=config.tmpfs_path,
        user=config.user,
        memory_bytes=config.memory_bytes,
        memory_swap_bytes=config.memory_swap_bytes,
        cpus=config.cpu_limit,
        pids=config.pids_limit,
        read_only=config.read_only,
        tmpfs=_mounts(config, engine),
        network_mode=config.network_mode,
        seccomp=profile,
        ulimits={**no_core(), "nofile": (config.nofile_limit, config.nofile_limit), **processes},
        log_bytes=config.bytes_of("log_size"),
        runtime=config.runtime,
        labels=labels,
        stdin=True,
    )


def _mounts(config: DockerConfig, engine: str) -> dict[str, str]:
    """Podman takes no ids for a tmpfs, but has an option that gives it to the container's user."""
    words = config.tmpfs_options.split(",")
    words += [] if "nodev" in words else ["nodev"]
    words += [] if any(word.startswith("mode=") for word in words) else ["mode=1777"]
    user, _, group = config.user.partition(":")
    whose = "mode=0700,U" if engine == PODMAN else f"mode=0700,uid={user},gid={group or user}"
    own = f"{_PRIVATE},{whose}"  # the mode alone would be that of a directory in the image
    return {
        config.tmpfs_path: f"{','.join(words)},size={config.bytes_of('tmpfs_size')}",
        INPUT: f"{own},size={config.bytes_of('data_limit') + _SPARE}",
        OUTPUT: f"{own},size={config.bytes_of('result_limit') + _SPARE}",
    }


def seccomp_text(config: DockerConfig) -> str:
    """The profile; it has to be JSON, since an engine would report an error late and badly."""
    path = seccomp_file(config)
    if not path:
        tight = config.network_mode == "none"  # which closes sockets too
        return seccomp_profile.text(SyscallProfile.TIGHT if tight else SyscallProfile.DEFAULT)
    try:
        text = read_file(path, MAX_PROFILE_BYTES).decode("utf-8")
        json.loads(text)
    except ValueError as error:
        raise UsageError(f"docker.seccomp_profile: {path}: not JSON: {error}") from None
    return text
