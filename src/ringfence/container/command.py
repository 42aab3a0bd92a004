"""Runs commands of an engine: with a deadline, a clean environment and bounded output. If we end, or the wait is
interrupted, the command ends too.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import IO

from ringfence.errors import SetupError
from ringfence.model.record import record
from ringfence.model.system_text import escape_controls

MAX_OUTPUT_BYTES = 16 << 20
MAX_LOG_BYTES = 64 << 20
_TAIL_BYTES = 4000
_GRACE_S = 10.0
"""How long a command that is to end may take to tidy up."""
_PASSED = ("PATH", "HOME", "USER", "LOGNAME", "TMPDIR", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "XDG_DATA_HOME",
           "DBUS_SESSION_BUS_ADDRESS", "SSH_AUTH_SOCK", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY",
           "http_proxy", "https_proxy", "no_proxy")  # fmt: skip
_PASSED_STARTS = ("DOCKER_", "BUILDKIT_", "CONTAINER_", "CONTAINERS_", "BUILDAH_")


@record
class Said:
    """The result of a command."""

    code: int
    stdout: bytes = b""
    stderr: bytes = b""

    @property
    def last_line(self) -> str:
        """The last line of the error, for people."""
        lines = (self.stderr or self.stdout).decode("utf-8", "replace").strip().splitlines()
        return escape_controls(lines[-1][:400]) if lines else f"exit status {self.code}"


def environment() -> dict[str, str]:
    """What is needed to find an engine, and no secret of the caller's."""
    return {name: value for name, value in os.environ.items() if name in _PASSED or name.startswith(_PASSED_STARTS)}


def run(argv: Sequence[str], *, deadline_s: float, step: str) -> Said:
    """Run it to its end; SetupError where it takes too long."""
    with _Command(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as command:
        process = command.start()
        parts: list[bytearray] = [bytearray(), bytearray()]
        assert process.stdout is not None and process.stderr is not None
        readers = [threading.Thread(target=_collect, args=(stream, part), daemon=True)
                   for stream, part in zip((process.stdout, process.stderr), parts, strict=True)]  # fmt: skip
        for reader in readers:
            reader.start()
        code = _wait(process, deadline_s, step)
        for reader in readers:
            reader.join(_GRACE_S)
    return Said(code=code, stdout=bytes(parts[0]), stderr=bytes(parts[1]))


def run_logged(argv: Sequence[str], log: str, *, deadline_s: float, step: str, **also: str) -> Said:
    """Run it with all that it says in a new file; the end of that is what it said. ``also``: more variables."""
    os.close(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    with _Command(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **also) as command:
        process = command.start()
        assert process.stdout is not None
        copier = threading.Thread(target=_copy, args=(process.stdout, log), daemon=True)
        copier.start()
        code = _wait(process, deadline_s, step)
        copier.join(_GRACE_S)
    with open(log, "rb") as told:
        told.seek(max(0, os.path.getsize(log) - _TAIL_BYTES))
        return Said(code=code, stdout=told.read())


@contextmanager
def streamed(argv: Sequence[str], *, step: str) -> Iterator[IO[bytes]]:
    """Its standard output, to be read to the end; SetupError afterwards where the command failed."""
    with _Command(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as command:
        process = command.start()
        assert process.stdout is not None and process.stderr is not None
        wrong = bytearray()
        reader = threading.Thread(target=_collect, args=(process.stderr, wrong), daemon=True)
        reader.start()
        with process.stdout:
            yield process.stdout
        code = _wait(process, _GRACE_S * 6, step)
        reader.join(_GRACE_S)
    if code:
        raise SetupError(step, Said(code=code, stderr=bytes(wrong)).last_line)


class _Command:
    """A command in a session of its own: Ctrl-C reaches only us, and we end the command ourselves, when the ``with`` is
    left. Entering it starts nothing: an interrupt before its first line would leave the command running.
    """

    def __init__(self, argv: Sequence[str], *, stdout: int, stderr: int, **also: str) -> None:
        self._argv, self._also = argv, also
        self._stdout, self._stderr = stdout, stderr
        self._process: subprocess.Popen[bytes] | None = None
        self._failed: OSError | None = None
        self._begun, self._done = False, threading.Event()

    def __enter__(self) -> _Command:
        return self

    def start(self) -> subprocess.Popen[bytes]:
        """Start it in another thread, since an interrupt in the middle of the start would leave it running. The thread
        is not joined: a join that was interrupted takes the thread for ended."""
        self._begun = True
        threading.Thread(target=self._start, daemon=True).start()
        self._done.wait()
        if self._process is None:
            assert self._failed is not None
            reason = f"{self._failed.strerror}"
            raise SetupError(f"start {self._argv[0]}", reason, errno=self._failed.errno or 0) from self._failed
        return self._process

    def _start(self) -> None:
        try:
            self._process = subprocess.Popen(
                self._argv, stdin=subprocess.DEVNULL, stdout=self._stdout, stderr=self._stderr,
                env={**environment(), **self._also}, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            self._failed = error
        finally:
            self._done.set()

    def __exit__(self, *_: object) -> None:
        if self._begun and not self._done.wait(_GRACE_S):  # the thread itself was never made
            return
        if self._process is not None:
            _end(self._process)  # the reader of its streams closes them


def _end(process: subprocess.Popen[bytes]) -> None:
    """First as Ctrl-C would, so that it tells the engine to drop what it began; then for good."""
    for each in (signal.SIGINT, signal.SIGKILL):
        if process.poll() is not None:
            return
        try:
            os.killpg(process.pid, each)
            process.wait(_GRACE_S)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue


def _wait(process: subprocess.Popen[bytes], deadline_s: float, step: str) -> int:
    until = time.monotonic() + deadline_s
    while time.monotonic() < until:
        try:
            return process.wait(min(1.0, max(0.0, until - time.monotonic())))
        except subprocess.TimeoutExpired:
            continue
    raise SetupError(step, f"it took longer than {deadline_s:g} s")


def _collect(stream: IO[bytes], into: bytearray) -> None:
    """Output beyond what we keep is still read, so that the command never blocks."""
    with stream:
        while data := os.read(stream.fileno(), 1 << 16):
            into += data[: max(0, MAX_OUTPUT_BYTES - len(into))]


def _copy(stream: IO[bytes], log: str) -> None:
    room = MAX_LOG_BYTES
    with stream, open(log, "wb", buffering=0) as file:  # it is read while it grows
        while data := os.read(stream.fileno(), 1 << 16):
            file.write(data[:room])
            room = max(0, room - len(data))
