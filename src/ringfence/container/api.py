"""``Client``: containers of one engine through the SDK ``docker``, behind a small typed face.

Docker, podman's compatible socket and rootless ones speak the same. Errors become ours: an engine that does not answer
is an ``UnavailableError`` with what helps, a refusal is a ``SetupError`` with the engine's words.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

from ringfence.container.hardening import ContainerSpec, create_arguments
from ringfence.container.sdk import Sdk, address, load, unavailable, words
from ringfence.container.tar_stream import FILE, TarStream
from ringfence.errors import SandboxError, SetupError, UsageError
from ringfence.model import state_folder
from ringfence.model.own import private_place
from ringfence.model.record import record

IMAGE_STEP = "find the image"
"""The step of the SetupError that says that the engine has no such image."""
_GONE, _CONFLICT = 404, 409
_REMOVE = "remove the container"
_REMOVAL_S, _REMOVAL_LOOK_S = 10.0, 0.05
_T = TypeVar("_T")


@record
class Listed:
    """One container, as an engine lists it."""

    id: str
    name: str
    labels: Mapping[str, str]
    state: str


def connect(url: str = "") -> Client:
    """Return a client of the engine at this address; empty: the one that the environment names. UnavailableError where
    none answers."""
    kind, found = address()
    client = Client(load(url or found, kind), kind=kind, url=url or found)
    client.ping()
    return client


class Attached:
    """The streams of one container over one connection. The reader closes it; ``hang_up`` makes it see the end."""

    def __init__(self, connection: socket.socket, owner: object = None) -> None:
        self._connection = connection
        self._owner = owner  # what would close the connection when it is forgotten
        self._lock = threading.Lock()

    def fileno(self) -> int:
        return self._connection.fileno()

    def receive(self, at_most: int = 1 << 16) -> bytes:
        """Receive some bytes; nothing at the end, or if the connection was lost."""
        try:
            return self._connection.recv(at_most)
        except OSError:
            return b""

    def send(self, data: bytes | memoryview) -> int:
        """Return how much was taken; BlockingIOError if nothing can be sent now, BrokenPipeError if nobody reads."""
        return self._connection.send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)

    def close_input(self) -> None:
        try:
            self._connection.shutdown(socket.SHUT_WR)
        except OSError:
            return  # it has ended

    def hang_up(self) -> None:
        """From any thread, without closing: a descriptor closed while in use may be reused for something else."""
        with self._lock:
            try:
                self._connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                return  # it has ended

    def close(self) -> None:
        self.hang_up()
        with self._lock:
            self._connection.close()
        self._owner = None


class Client:
    """Speaks to one engine; several threads may use it."""

    def __init__(self, sdk: Sdk, *, kind: str = "docker", url: str = "") -> None:
        self._sdk = sdk
        self.kind = kind
        self.url: str = url or str(getattr(sdk, "base_url", ""))

    @property
    def is_local(self) -> bool:
        """Whether it runs on this host, as far as the address says."""
        return self.url.startswith(("unix:", "http+unix:", "/"))

    @property
    def socket_path(self) -> str:
        """The socket of a local engine; empty for any other."""
        return "/" + self.url.rpartition("unix:")[2].lstrip("/") if self.is_local else ""

    def ping(self) -> None:
        """UnavailableError where it does not answer."""
        with self._asked("ask the container engine"):
            self._sdk.ping()

    def info(self) -> dict[str, object]:
        with self._asked("ask the container engine"):
            return _mapping(self._sdk.info())

    def create(self, spec: ContainerSpec, name: str = "") -> str:
        """Create it and return its id; a SetupError with ``IMAGE_STEP`` where its image is not there."""
        try:
            with self._asked("create the container"), self._seccomp_file(spec) as path:
                said = _mapping(self._sdk.create_container_from_config(create_arguments(spec, path), name or None))
        except SetupError as error:
            if not self.has_image(spec.image):
                raise SetupError(IMAGE_STEP, str(error), hint=f"{self.kind} pull {spec.image}, or build it") from error
            raise
        return _text(said, "Id")

    @contextmanager
    def _seccomp_file(self, spec: ContainerSpec) -> Iterator[str]:
        """Podman reads the filter from a file, when the container is created."""
        if self.kind != "podman" or not spec.seccomp:
            yield ""
            return
        import tempfile

        place = state_folder.private_place()
        with tempfile.NamedTemporaryFile("w", prefix="seccomp-", suffix=".json", dir=place) as file:
            if os.geteuid() == 0:  # the engine may be another user's; what it is told is no secret
                private_place.let_others_through()
                os.fchmod(file.fileno(), 0o644)
            file.write(spec.seccomp)
            file.flush()
            yield file.name

    def start(self, container: str) -> None:
        with self._asked("start the container"):
            self._sdk.start(container)

    def attach(self, container: str, *, stdin: bool = True) -> Attached:
        """Connect to its streams; before it is started nothing is missed."""
        params = {"stdin": int(stdin), "stdout": 1, "stderr": 1, "stream": 1}
        with self._asked("attach to the container"):
            found = self._sdk.attach_socket(container, params)
            plain = getattr(found, "_sock", None)
            if not isinstance(found, socket.SocketIO):
                raise SetupError("attach to the container", "the connection can't be used as a socket")
            connection = plain if isinstance(plain, socket.socket) else found  # of TLS the wrapper itself
            if type(connection) is socket.socket:
                connection = socket.socket(fileno=os.dup(connection.fileno()))
            connection.settimeout(None)  # type: ignore[union-attr]
            return Attached(connection, found)  # type: ignore[arg-type]

    def wait(self, container: str, timeout_s: float | None = None) -> int | None:
        """Wait for its end and return its exit code; None: it still runs after that time."""
        timed_out = _timeouts()
        with self._asked("wait for the container"):
            try:
                said = _mapping(self._sdk.wait(container, timeout_s))
            except timed_out as error:
                if timeout_s is not None and _is_timeout(error):
                    return None
                raise
        code = said.get("StatusCode")
        if not isinstance(code, int):
            raise SetupError("wait for the container", f"{code!r} is not an exit code")
        return code

    def kill(self, container: str, signal: int = 9) -> bool:
        """False: it does not run any more."""
        return self._unless_gone("kill the container", lambda: self._sdk.kill(container, signal))

    def remove(self, container: str, force: bool = True) -> None:
        """Remove it and its volumes; it may be gone already. If somebody else is removing it, wait for that."""
        if not self._unless_gone(_REMOVE, lambda: self._sdk.remove_container(container, v=True, force=force)):
            self._await_removal(container)

    def _await_removal(self, container: str) -> None:
        give_up = time.monotonic() + _REMOVAL_S
        while self._unless_gone("look at the container", lambda: self._sdk.inspect_container(container)):
            if time.monotonic() > give_up:
                raise SetupError(_REMOVE, f"{container[:12]} is still there: the engine is removing it")
            time.sleep(_REMOVAL_LOOK_S)

    def inspect(self, container: str) -> dict[str, object]:
        with self._asked("look at the container"):
            return _mapping(self._sdk.inspect_container(container))

    def stats(self, container: str) -> dict[str, object]:
        """What it uses at this moment; empty where it does not run."""
        with self._asked("measure the container"):
            return _mapping(self._sdk.stats(container, decode=None, stream=False, one_shot=True))

    def logs(self, container: str, tail: int = 100) -> bytes:
        """The last lines of what the engine kept; nothing where it keeps none."""
        try:
            with self._asked("read the container's log"):
                return bytes(self._sdk.logs(container, stdout=True, stderr=True, tail=tail))
        except SetupError:
            return b""

    def put(self, container: str, path: str, archive: bytes) -> None:
        """Unpack a tar archive into a directory of the container that can be written."""
        with self._asked("put files into the container"):
            self._sdk.put_archive(container, path, archive)

    def get(self, container: str, path: str, most_bytes: int) -> bytes:
        """Return the content of ONE regular file of the container; UsageError if it is anything else, or larger."""
        with self._asked("get a file of the container"):
            chunks, _ = self._sdk.get_archive(container, path, 1 << 16)
            return read_one_file(chunks, most_bytes)

    def list(self, label: str) -> list[Listed]:
        """All containers with this label, running or not; ``name`` or ``name=value``."""
        with self._asked("list containers"):
            rows: object = self._sdk.containers(all=True, filters={"label": [label]})
            if not isinstance(rows, list):
                raise ValueError(f"{type(rows).__name__} instead of a list")
            return [_listed(_mapping(row)) for row in rows]

    def has_image(self, ref: str) -> bool:
        return self._unless_gone("look at the image", lambda: self._sdk.inspect_image(ref))

    def inspect_image(self, ref: str) -> dict[str, object]:
        with self._asked("look at the image"):
            return _mapping(self._sdk.inspect_image(ref))

    def pull(self, ref: str) -> None:
        """Fetch it from its registry."""
        name, tag = split_ref(ref)
        with self._asked("pull the image"):
            self._sdk.pull(name, tag)

    def resize(self, container: str, rows: int, columns: int) -> None:
        """Set the size of its terminal."""
        self._unless_gone("resize the terminal", lambda: self._sdk.resize(container, rows, columns))

    def close(self) -> None:
        self._sdk.close()

    def _unless_gone(self, step: str, call: Callable[[], _T]) -> bool:
        from docker.errors import APIError

        with self._asked(step):
            try:
                call()
            except APIError as error:
                if error.status_code in (_GONE, _CONFLICT):
                    return False
                raise
        return True

    @contextmanager
    def _asked(self, step: str) -> Iterator[None]:
        """Whatever the SDK raises, as ours."""
        from docker.errors import APIError, DockerException
        from requests.exceptions import InvalidJSONError, RequestException
        from urllib3.exceptions import HTTPError

        try:
            yield
        except SandboxError:
            raise
        except APIError as error:
            raise SetupError(step, words(error)) from error
        except InvalidJSONError as error:  # it answers
            raise SetupError(step, f"the engine's answer can't be used: {error}") from error
        except (RequestException, HTTPError, ConnectionError, TimeoutError, FileNotFoundError) as error:
            raise unavailable(self.kind, self.url, error) from error
        except (DockerException, ValueError, TypeError, AttributeError, LookupError, RecursionError, OSError) as error:
            raise SetupError(step, f"the engine's answer can't be used: {words(error)}") from error


def _timeouts() -> tuple[type[Exception], ...]:
    from requests.exceptions import ConnectionError as Lost
    from requests.exceptions import Timeout

    return (Timeout, Lost)


def _is_timeout(error: BaseException) -> bool:
    """A timeout while the answer is read is reported as a lost connection, with the timeout inside."""
    from requests.exceptions import Timeout
    from urllib3.exceptions import ReadTimeoutError

    return isinstance(error, Timeout) or any(isinstance(inner, ReadTimeoutError) for inner in error.args)


# ---- what an engine says


def read_one_file(chunks: Iterable[bytes], most_bytes: int) -> bytes:
    """Return the content of an archive of ONE regular file; UsageError where it is anything else."""
    stream = TarStream(_reader(iter(chunks)))
    members = iter(stream)
    member = next(members, None)
    if member is None or member.kind != FILE:
        raise UsageError(f"not a regular file but {f'a {member.kind}' if member else 'nothing'}")
    if member.size > most_bytes:
        raise UsageError(f"a file of {member.size:,} bytes; at most {most_bytes:,} are accepted")
    content = bytearray()
    while piece := stream.content(1 << 16):
        content += piece
    if next(members, None) is not None:
        raise UsageError("more than one file")
    return bytes(content)


def _reader(chunks: Iterator[bytes]) -> Callable[[int], bytes]:
    rest = b""

    def read(count: int) -> bytes:
        nonlocal rest
        while not rest:
            piece = next(chunks, None)
            if piece is None:
                return b""
            rest = bytes(piece)
        taken, rest = rest[:count], rest[count:]
        return taken

    return read


def split_ref(ref: str) -> tuple[str, str | None]:
    """Name and tag of an image; a digest stays with the name.

    >>> split_ref("localhost:5000/a/b:1")
    ('localhost:5000/a/b', '1')
    """
    if "@" in ref:
        return ref, None
    name, colon, tag = ref.rpartition(":")
    return (name, tag) if colon and "/" not in tag else (ref, "latest")


def _listed(row: Mapping[str, object]) -> Listed:
    names, found = row.get("Names"), row.get("Labels")
    labels = found if isinstance(found, Mapping) else {}
    name = str(names[0]).lstrip("/") if isinstance(names, list) and names else ""
    return Listed(id=_text(row, "Id"), name=name, labels={str(key): str(value) for key, value in labels.items()},
                  state=str(row.get("State", "")))  # fmt: skip


def _mapping(said: object) -> dict[str, object]:
    if not isinstance(said, dict):
        raise ValueError(f"{type(said).__name__} instead of an object")
    return said


def _text(said: Mapping[str, object], key: str) -> str:
    found = said.get(key)
    if not isinstance(found, str) or not found:
        raise SetupError("read the engine's answer", f"it has no {key}")
    return found
