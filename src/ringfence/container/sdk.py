"""Loads and calls the SDK ``docker``: where an engine is, and what to say when it does not answer."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from typing import Protocol

from ringfence.container.engine import VARIABLE
from ringfence.errors import UnavailableError, hint_for_extra
from ringfence.model.system_text import escape_controls

ANSWER_S = 60.0
PODMAN_SOCKETS = ("{XDG_RUNTIME_DIR}/podman/podman.sock", "/run/podman/podman.sock")
_DOCKER_SOCKET = "unix:///var/run/docker.sock"
_FIXES = {
    "docker": ("install Docker, such as Debian's docker.io, and start its daemon",
               "or set DOCKER_HOST to one that runs"),
    "podman": ("start its service: systemctl --user start podman.socket, or podman system service",
               "or set CONTAINER_HOST to one that runs"),
}  # fmt: skip
_NO_SSH = ("forward its socket: ssh -L /run/other.sock:/var/run/docker.sock HOST",)


class Sdk(Protocol):
    """What we call of ``docker.APIClient``."""

    base_url: str

    def ping(self) -> bool: ...
    def info(self) -> dict[str, object]: ...
    def version(self, api_version: bool = ...) -> dict[str, object]: ...
    def create_container_from_config(self, config: dict[str, object], name: str | None) -> dict[str, object]: ...
    def start(self, container: str) -> None: ...
    def attach_socket(self, container: str, params: dict[str, int]) -> socket.SocketIO: ...
    def wait(self, container: str, timeout: float | None) -> dict[str, object]: ...
    def kill(self, container: str, signal: int | None) -> None: ...
    def remove_container(self, container: str, v: bool, force: bool) -> None: ...
    def inspect_container(self, container: str) -> dict[str, object]: ...
    def stats(self, container: str, decode: bool | None, stream: bool, one_shot: bool) -> dict[str, object]: ...
    def logs(self, container: str, stdout: bool, stderr: bool, tail: int) -> bytes: ...
    def put_archive(self, container: str, path: str, data: bytes) -> bool: ...
    def get_archive(self, container: str, path: str, chunk_size: int) -> tuple[Iterator[bytes], object]: ...
    def containers(self, all: bool, filters: dict[str, object]) -> list[dict[str, object]]: ...
    def inspect_image(self, image: str) -> dict[str, object]: ...
    def pull(self, repository: str, tag: str | None) -> object: ...
    def resize(self, container: str, height: int, width: int) -> None: ...
    def close(self) -> None: ...


def address() -> tuple[str, str]:
    """Return the engine that is meant, docker or podman, and its address: RINGFENCE_ENGINE, then DOCKER_HOST or
    CONTAINER_HOST, then where its socket usually is."""
    named = os.path.basename(os.environ.get(VARIABLE, ""))
    if named.startswith("podman"):
        return "podman", os.environ.get("CONTAINER_HOST") or _podman_socket()
    return "docker", os.environ.get("DOCKER_HOST") or _docker_socket()


def _docker_socket() -> str:
    """The system's, or that of a rootless daemon of this user."""
    own = f"{os.environ.get('XDG_RUNTIME_DIR', '')}/docker.sock"
    system = _DOCKER_SOCKET.removeprefix("unix://")
    return f"unix://{own}" if not os.access(system, os.W_OK) and os.path.exists(own) else _DOCKER_SOCKET


def _podman_socket() -> str:
    places = [each.format(XDG_RUNTIME_DIR=os.environ.get("XDG_RUNTIME_DIR", "/nonexistent")) for each in PODMAN_SOCKETS]
    places = places[::-1] if os.geteuid() == 0 else places
    return "unix://" + next((place for place in places if os.path.exists(place)), places[0])


def load(url: str, kind: str) -> Sdk:
    try:
        import docker
        from docker.errors import DockerException
    except ImportError as error:
        raise UnavailableError(f"the Python package docker can't be loaded: {error}", missing=("docker",),
                               fixes=(hint_for_extra("docker"),)) from error  # fmt: skip
    if url.startswith("ssh:"):
        raise UnavailableError(f"{url}: an engine is reached by a socket or TCP here", missing=("engine",),
                               fixes=_NO_SSH)  # fmt: skip
    try:
        options = {} if kind == "podman" else docker.utils.kwargs_from_env()
        made: Sdk = docker.APIClient(base_url=url, tls=options.get("tls", False), version="auto", timeout=ANSWER_S)
    except (DockerException, OSError, ValueError) as error:
        raise unavailable(kind, url, error) from error
    return made


def unavailable(kind: str, url: str, error: Exception) -> UnavailableError:
    return UnavailableError(f"the container engine at {url} does not answer: {words(error)}", missing=("engine",),
                            fixes=_FIXES[kind])  # fmt: skip


def words(error: Exception) -> str:
    """The innermost cause: the SDK wraps it several times."""
    said: BaseException = error
    for _ in range(8):
        inner = said.__cause__ or said.__context__
        if inner is None or not str(inner):
            break
        said = inner
    explained = getattr(error, "explanation", None)
    known = said.strerror if isinstance(said, OSError) else ""  # without Python's «[Errno 2]»
    return escape_controls(str(explained or known or said))[:400]
