"""Real processes for the monitor's tests: each does its part, says so, and waits to be told to go on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ringfence.kernel.proc import procfs
from ringfence.kernel.proc.open_files import DescriptorBudget
from ringfence.monitor.meter import Meter
from ringfence.monitor.source import Source

SAY = "\nimport sys\ndef say():\n    sys.stdout.write('.'); sys.stdout.flush(); sys.stdin.read(1)\n"


class Actor:
    """A program that calls ``say()`` where it stops until ``go_on``."""

    def __init__(self, program: str, cwd: str | None = None) -> None:
        command = ["sh", "-c", '"$@"; exit', "sh", sys.executable, "-c", SAY + program]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=cwd, start_new_session=True
        )

    @property
    def source(self) -> Source:
        """The shell leads; the program and what that starts are below it."""
        return Source(leaders=lambda: (self.process.pid,), terminate=self.kill)

    @property
    def pid(self) -> int:
        """Of the program."""
        (child,) = procfs.children(self.process.pid)
        return child

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)

    def await_word(self) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.read(1) == b".", "the program ended before its time"

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b".")
        self.process.stdin.flush()

    def end(self) -> None:
        if self.process.returncode is None:
            self.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


@contextmanager
def acting(program: str, cwd: str | None = None) -> Iterator[Actor]:
    actor = Actor(program, cwd)
    try:
        actor.await_word()
        yield actor
    finally:
        actor.end()


@contextmanager
def measuring(source: Source, *, doubt_bytes: float = float("inf")) -> Iterator[Meter]:
    meter = Meter(source, DescriptorBudget(100), time.monotonic, doubt_bytes)
    try:
        yield meter
    finally:
        meter.close()


def is_on_disk(folder: Path) -> bool:
    """Whether what is written there is written to storage."""
    before = _own_writes()
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        file.write(bytes(1 << 20))
        file.flush()
        return _own_writes() - before >= 1 << 20


def _own_writes() -> int:
    lines = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(lines["write_bytes"])
