"""A box of a service, by the names of the library's ``Box``; and what runs in the background there."""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from ringfence.backends.background_io import BackgroundStreams
from ringfence.client.connection import Connection
from ringfence.client.followed import followed
from ringfence.client.wire import from_bytes, outcome_of, read_changes, read_error, understood
from ringfence.errors import UsageError
from ringfence.model.events import OnEvent, OnOutput
from ringfence.model.job import Job
from ringfence.model.outcome import Changes, Outcome

MAX_FILE_BYTES = 64 * 2**20
_KEPT_BYTES = 1 << 20


class RemoteBox:
    """A box of the service, by the names of the library's ``Box`` (docs/reference/boxes.md)."""

    def __init__(self, connection: Connection, box_id: str) -> None:
        self.id = box_id
        self._connection = connection
        self._path = f"/v1/boxes/{box_id}"

    # ---- visits

    def run(
        self, job: Job | Sequence[str | os.PathLike[str]], *, cwd: str | None = None, input: bytes | None = None,
        timeout: float | None = None, env: Mapping[str, str] | None = None, on_event: OnEvent | None = None,
        on_output: OnOutput | None = None,
    ) -> Outcome:  # fmt: skip
        """One visit, to its end. What it leaves running in the background stays."""
        spec = _spec(job, cwd, input, timeout, env)
        if on_event is None and on_output is None:
            return outcome_of(self._sent(spec))
        return self._started(spec, on_event, on_output).wait()

    def start(
        self, job: Job | Sequence[str | os.PathLike[str]], *, cwd: str | None = None, input: bytes | None = None,
        timeout: float | None = None, env: Mapping[str, str] | None = None, on_event: OnEvent | None = None,
        on_output: OnOutput | None = None,
    ) -> RemoteHandle:  # fmt: skip
        """Start a visit in the background; its input is ``input``, or else what its handle writes."""
        spec = {**_spec(job, cwd, input, timeout, env), **({"interactive": True} if input is None else {})}
        return self._started(spec, on_event, on_output)

    def _started(
        self, spec: dict[str, object], on_event: OnEvent | None, on_output: OnOutput | None
    ) -> RemoteHandle:
        begun = self._sent({**spec, "wait": False})
        return RemoteHandle(self._connection, begun["id"], on_event, on_output)

    def _sent(self, spec: dict[str, object]) -> Any:
        """With a key of its own: if the connection is lost, it is sent again, and is the same run."""
        return self._connection.json("POST", f"{self._path}/runs", spec, key=secrets.token_hex(16))

    # ---- files

    def put(self, name: str | os.PathLike[str], content: bytes) -> None:
        """Write a file of the box."""
        if not isinstance(content, bytes | bytearray | memoryview):
            raise UsageError(f"{name!r}: the content of a file must be bytes, not {type(content).__name__}")
        self._connection.octets("PUT", f"{self._path}/file", bytes(content),
                                {"content-type": "application/octet-stream"}, {"path": os.fspath(name)})  # fmt: skip

    def get(self, name: str | os.PathLike[str], max_bytes: int = MAX_FILE_BYTES) -> bytes:
        """Read a file of the box."""
        data = self._connection.octets("GET", f"{self._path}/file", query={"path": os.fspath(name)})
        if len(data) > max_bytes:
            raise UsageError(f"{name!r} is larger than {max_bytes} bytes", hint="allow more with max_bytes")
        return data

    def files(self, path: str = "") -> list[dict[str, Any]]:
        """A directory of the box."""
        query = {"path": path} if path else None
        found: list[dict[str, Any]] = self._connection.json("GET", f"{self._path}/files", query=query)["files"]
        return found

    # ---- changes

    def changes(self) -> Changes:
        """What differs from the workspace that it was opened on."""
        found = self._connection.json("GET", f"{self._path}/changes")
        return Changes(understood(read_changes, found["changes"]), complete=found["complete"])

    def diff(self, path: str | None = None) -> str:
        """The same as text."""
        query = {"path": path} if path is not None else None
        return understood(self._connection.octets("GET", f"{self._path}/diff", query=query).decode, "utf-8")

    def create_checkpoint(self, name: str = "") -> str:
        """Its id, for ``rollback``."""
        return str(self._connection.json("POST", f"{self._path}/checkpoints", {"name": name})["id"])

    def checkpoints(self) -> list[dict[str, Any]]:
        """Its checkpoints, with id and name."""
        found: list[dict[str, Any]] = self._connection.json("GET", f"{self._path}/checkpoints")["checkpoints"]
        return found

    def remove_checkpoint(self, checkpoint_id: str) -> None:
        """A box keeps a limited number of checkpoints, and of bytes in them."""
        self._connection.json("DELETE", f"{self._path}/checkpoints/{quote(checkpoint_id, safe='')}")

    def rollback(self, checkpoint_id: str) -> int:
        """How many files were restored; what runs in the box ends."""
        made = self._connection.json("POST", f"{self._path}/rollback", {"checkpoint": checkpoint_id})
        return understood(int, made["files_restored"])

    def discard(self) -> int:
        """Drop all changes; how many files were restored. What runs in the box ends."""
        return understood(int, self._connection.json("POST", f"{self._path}/discard", {})["files_restored"])

    def commit(self, paths: Sequence[str] | None = None, *, on_conflict: str = "refuse") -> dict[str, Any]:
        """Carry the changes over into the workspace; ConflictError names what somebody else has changed."""
        spec: dict[str, object] = {"on_conflict": on_conflict, **({} if paths is None else {"paths": list(paths)})}
        found: dict[str, Any] = self._connection.json("POST", f"{self._path}/commit", spec)
        return found

    def park(self) -> None:
        """End what runs in it; its files stay."""
        self._connection.json("POST", f"{self._path}/park", {})

    def close(self) -> None:
        """End everything in it, and leave nothing behind."""
        self._connection.json("DELETE", self._path)

    def __enter__(self) -> RemoteBox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class RemoteHandle(BackgroundStreams):
    """A run in the background: its output as it comes, its input, signals, and how it ends.

    ``stdout`` and ``stderr`` have what has come so far; ``read_stdout(since, timeout_s=…)`` and ``read_stderr`` wait
    for more.
    """

    def __init__(
        self, connection: Connection, run_id: str, on_event: OnEvent | None, on_output: OnOutput | None
    ) -> None:
        super().__init__(_KEPT_BYTES)
        self.id = run_id
        self._connection, self._on_event, self._on_output = connection, on_event, on_output
        self._path = f"/v1/runs/{run_id}"
        self._document: dict[str, Any] | None = None
        self._problem: Exception | None = None
        self._over = threading.Event()
        threading.Thread(target=self._follow, name="ringfence-follow", daemon=True).start()

    def _follow(self) -> None:
        try:
            self._document = followed(self._connection, self.id, self._on_event, self._hear)
        except Exception as error:
            self._problem = error
        finally:
            self._end_output()
            self._over.set()

    def _hear(self, stream: str, piece: bytes) -> None:
        self._add(stream, piece)
        if self._on_output is not None:
            self._on_output(stream, piece)

    @property
    def done(self) -> bool:
        """Whether it has ended."""
        return self._over.is_set()

    def write(self, data: bytes) -> None:
        """Write to its standard input, if ``start`` got no ``input``."""
        self._connection.json("POST", f"{self._path}/input", {"data": from_bytes(bytes(data))})

    def close_input(self) -> None:
        """End its standard input."""
        self._connection.json("POST", f"{self._path}/input", {"close": True})

    def signal(self, number: int) -> None:
        """Send it a signal."""
        self._connection.json("POST", f"{self._path}/signal", {"signal": number})

    def join(self, timeout_s: float | None = None) -> None:
        """Wait until it has ended, or this long."""
        self._over.wait(timeout_s)

    def wait(self, timeout_s: float | None = None) -> Outcome:
        """How it ended; TimeoutError when that takes longer."""
        self.join(timeout_s)
        if not self.done:
            raise TimeoutError("the visit has not ended yet")
        if self._document is None:
            raise self._problem or read_error({})
        return outcome_of(self._document)


def _spec(
    job: Job | Sequence[str | os.PathLike[str]], cwd: str | None, input: bytes | None, timeout: float | None,
    env: Mapping[str, str] | None,
) -> dict[str, object]:  # fmt: skip
    made = Job.of(job)
    if made.python or made.terminal or isinstance(made.stdin, int):
        raise UsageError("a job of a service can't use a terminal or descriptor of this machine",
                         hint="send its input along")  # fmt: skip
    fed = made.stdin if input is None else bytes(input)
    given = {"argv": list(made.argv), "cwd": cwd or made.cwd, "timeout": timeout,
             "env": {**made.environment, **(env or {})} or None,
             "files": {name: from_bytes(data) for name, data in made.files.items()} or None,
             "input": None if fed is None else from_bytes(fed)}  # fmt: skip
    return {name: value for name, value in given.items() if value is not None}
